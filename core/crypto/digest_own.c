/* SPDX-License-Identifier: Apache-2.0
 * SHA-256 as FIPS 180-4 has it, without OpenSSL: for a trainer that is built alone
 * (-Dtrainer_only=true), in place of digest_openssl.c, which is some three times as fast. */
#include "core/crypto/digest.h"

#include <stdlib.h>
#include <string.h>

enum { BLOCK_BYTES = 64, LENGTH_AT = 56, ROUNDS = 64 };

struct digest {
	uint32_t state[8];
	uint64_t bytes; /* given so far */
	unsigned char block[BLOCK_BYTES];
};

/* The first 32 bits of the fractional parts of the cube roots of the first 64 primes. */
static const uint32_t round_word[ROUNDS] = { 0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5,
	0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3,
	0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc,
	0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7,
	0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13,
	0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3,
	0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5,
	0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208,
	0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2 };

static uint32_t turn(uint32_t x, int bits)
{
	return x >> bits | x << (32 - bits);
}

static void take_block(uint32_t state[static 8], const unsigned char *p)
{
	uint32_t w[ROUNDS], s[8];
	for (int i = 0; i < 16; i++)
		w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 |
			(uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
	for (int i = 16; i < ROUNDS; i++) {
		uint32_t a = w[i - 15], b = w[i - 2];
		w[i] = w[i - 16] + (turn(a, 7) ^ turn(a, 18) ^ a >> 3) + w[i - 7] +
			(turn(b, 17) ^ turn(b, 19) ^ b >> 10);
	}
	memcpy(s, state, sizeof(s));
	for (int i = 0; i < ROUNDS; i++) {
		uint32_t t1 = s[7] + (turn(s[4], 6) ^ turn(s[4], 11) ^ turn(s[4], 25)) +
			((s[4] & s[5]) ^ (~s[4] & s[6])) + round_word[i] + w[i];
		uint32_t t2 = (turn(s[0], 2) ^ turn(s[0], 13) ^ turn(s[0], 22)) +
			((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
		memmove(s + 1, s, 7 * sizeof(*s));
		s[4] += t1;
		s[0] = t1 + t2;
	}
	for (int i = 0; i < 8; i++)
		state[i] += s[i];
}

/* The first 32 bits of the fractional parts of the square roots of the first 8 primes. */
static void start(struct digest *d)
{
	*d = (struct digest){ .state = { 0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f,
							  0x9b05688c, 0x1f83d9ab, 0x5be0cd19 } };
}

int digest_create(struct digest **ret)
{
	struct digest *d = malloc(sizeof(*d));
	if (!d)
		return ERR_NO_MEMORY;
	start(d);
	*ret = d;
	return 0;
}

int digest_update(struct digest *d, const void *data, size_t bytes)
{
	const unsigned char *p = data;
	size_t have = d->bytes % BLOCK_BYTES;
	d->bytes += bytes;
	if (have > 0) {
		size_t more = bytes < BLOCK_BYTES - have ? bytes : BLOCK_BYTES - have;
		if (more > 0)
			memcpy(d->block + have, p, more);
		if (have + more < BLOCK_BYTES)
			return 0;
		take_block(d->state, d->block);
		p += more;
		bytes -= more;
	}
	for (; bytes >= BLOCK_BYTES; p += BLOCK_BYTES, bytes -= BLOCK_BYTES)
		take_block(d->state, p);
	if (bytes > 0)
		memcpy(d->block, p, bytes);
	return 0;
}

int digest_final(struct digest *d, unsigned char ret_sum[static DIGEST_BYTES])
{
	static const unsigned char fill[BLOCK_BYTES] = { 0x80 };
	unsigned char length[8];
	size_t have = d->bytes % BLOCK_BYTES;
	for (int i = 0; i < 8; i++)
		length[i] = (unsigned char)(d->bytes * 8 >> (56 - 8 * i));
	int rc = digest_update(
		d, fill, have < LENGTH_AT ? LENGTH_AT - have : BLOCK_BYTES + LENGTH_AT - have);
	if (rc == 0)
		rc = digest_update(d, length, sizeof(length));
	for (int i = 0; i < DIGEST_BYTES; i++)
		ret_sum[i] = (unsigned char)(d->state[i / 4] >> (24 - i % 4 * 8));
	return rc;
}

void digest_destroy(struct digest *d)
{
	free(d);
}

void digest_destroyp(struct digest **d)
{
	digest_destroy(*d);
	*d = NULL;
}

int digest_bytes(const void *data, size_t bytes, unsigned char ret_sum[static DIGEST_BYTES])
{
	struct digest d;
	start(&d);
	int rc = digest_update(&d, data, bytes);
	return rc < 0 ? rc : digest_final(&d, ret_sum);
}

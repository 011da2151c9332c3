/* SPDX-License-Identifier: Apache-2.0
 * OpenSSL's random bytes and constant-time comparison; CRC-32. Thread-safe. */
#include "core/crypto/random.h"

#include "core/base/err.h"

#include <limits.h>
#include <openssl/crypto.h>
#include <openssl/rand.h>

int random_bytes(void *ret_bytes, size_t bytes)
{
	if (bytes > INT_MAX)
		return ERR_TOO_LARGE;
	return RAND_bytes(ret_bytes, (int)bytes) == 1 ? 0 : ERR_INTERNAL;
}

bool random_equal(const void *a, const void *b, size_t bytes)
{
	return CRYPTO_memcmp(a, b, bytes) == 0;
}

uint32_t random_crc32(const void *data, size_t bytes)
{
	const unsigned char *p = data;
	uint32_t crc = 0xFFFFFFFFu;
	for (size_t i = 0; i < bytes; i++) {
		crc ^= p[i];
		for (int bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (0xEDB88320u & -(crc & 1));
	}
	return ~crc;
}

/* SPDX-License-Identifier: Apache-2.0
 * Makes and checks the text of API keys. Called by create-key, the operators' handlers and the
 * daemon's gate; no state. */
#include "server/auth/api_key.h"

#include "core/base/err.h"
#include "core/crypto/random.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum {
	PREFIX_LEN = 3,
	RANDOM_LEN = 32,
	TAIL_LEN = 7,
	BITS_PER_CHAR = 5,
	SHOWN_LEN = 4,
};

static const char alphabet[] = "0123456789abcdefghjkmnpqrstvwxyz"; /* Crockford's, lower case */

static void write_tail(const char *head, char ret_tail[static TAIL_LEN])
{
	uint32_t crc = random_crc32(head, PREFIX_LEN + RANDOM_LEN);
	for (int i = TAIL_LEN - 1; i >= 0; i--) {
		ret_tail[i] = alphabet[crc & 31u];
		crc >>= BITS_PER_CHAR;
	}
}

int api_key_hash(const char *text, unsigned char ret_hash[static DIGEST_BYTES])
{
	return digest_bytes(text, strlen(text), ret_hash);
}

int api_key_make(char ret_key[static API_KEY_MAX], unsigned char ret_hash[static DIGEST_BYTES],
	char ret_redacted[static API_KEY_SHOWN_MAX])
{
	unsigned char secret[API_KEY_RANDOM_BYTES];
	int r = random_bytes(secret, sizeof(secret));
	if (r < 0)
		return r;
	char key[API_KEY_MAX] = "ty_";
	unsigned int bits = 0;
	int held = 0;
	size_t at = PREFIX_LEN;
	for (size_t i = 0; i < sizeof(secret); i++) {
		bits = (bits << 8) | secret[i];
		held += 8;
		while (held >= BITS_PER_CHAR) {
			held -= BITS_PER_CHAR;
			key[at++] = alphabet[(bits >> held) & 31u];
		}
	}
	explicit_bzero(secret, sizeof(secret));
	write_tail(key, key + PREFIX_LEN + RANDOM_LEN);
	key[API_KEY_LEN] = '\0';
	r = api_key_hash(key, ret_hash);
	if (r < 0)
		return r;
	(void)snprintf(
		ret_redacted, API_KEY_SHOWN_MAX, "ty_\xe2\x80\xa6%s", key + API_KEY_LEN - SHOWN_LEN);
	memcpy(ret_key, key, sizeof(key));
	explicit_bzero(key, sizeof(key));
	return 0;
}

bool api_key_is_well_formed(const char *text)
{
	if (strnlen(text, API_KEY_MAX) != API_KEY_LEN || strncmp(text, "ty_", PREFIX_LEN) != 0)
		return false;
	for (const char *p = text + PREFIX_LEN; *p; p++) {
		if (!strchr(alphabet, *p))
			return false;
	}
	char tail[TAIL_LEN];
	write_tail(text, tail);
	return random_equal(tail, text + PREFIX_LEN + RANDOM_LEN, TAIL_LEN);
}

/* SPDX-License-Identifier: Apache-2.0
 * HMAC-SHA256 through OpenSSL. Thread-safe. */
#include "core/crypto/hmac.h"

#include <limits.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <string.h>

int hmac_sha256(const void *key, size_t key_bytes, const void *data, size_t bytes,
	unsigned char ret_sum[static DIGEST_BYTES])
{
	unsigned char sum[EVP_MAX_MD_SIZE];
	unsigned int len = 0;
	if (key_bytes > INT_MAX)
		return ERR_TOO_LARGE;
	if (!HMAC(EVP_sha256(), key, (int)key_bytes, data, bytes, sum, &len) || len != DIGEST_BYTES)
		return ERR_INTERNAL;
	memcpy(ret_sum, sum, DIGEST_BYTES);
	return 0;
}

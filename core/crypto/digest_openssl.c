/* SPDX-License-Identifier: Apache-2.0
 * SHA-256 through OpenSSL's EVP. Thread-safe per object. */
#include "core/crypto/digest.h"

#include <assert.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

struct digest {
	EVP_MD_CTX *ctx;
};

int digest_create(struct digest **ret)
{
	cleanup(digest_destroyp) struct digest *d = calloc(1, sizeof(*d));
	if (!d)
		return ERR_NO_MEMORY;
	d->ctx = EVP_MD_CTX_new();
	if (!d->ctx)
		return ERR_NO_MEMORY;
	if (EVP_DigestInit_ex(d->ctx, EVP_sha256(), NULL) != 1)
		return ERR_INTERNAL;
	*ret = take_ptr(d);
	return 0;
}

int digest_update(struct digest *d, const void *data, size_t bytes)
{
	return EVP_DigestUpdate(d->ctx, data, bytes) == 1 ? 0 : ERR_INTERNAL;
}

int digest_final(struct digest *d, unsigned char ret_sum[static DIGEST_BYTES])
{
	unsigned char sum[EVP_MAX_MD_SIZE];
	unsigned int len = 0;
	if (EVP_DigestFinal_ex(d->ctx, sum, &len) != 1)
		return ERR_INTERNAL;
	assert(len == DIGEST_BYTES);
	memcpy(ret_sum, sum, DIGEST_BYTES);
	return 0;
}

void digest_destroy(struct digest *d)
{
	if (!d)
		return;
	EVP_MD_CTX_free(d->ctx);
	free(d);
}

void digest_destroyp(struct digest **d)
{
	digest_destroy(*d);
	*d = NULL;
}

int digest_bytes(const void *data, size_t bytes, unsigned char ret_sum[static DIGEST_BYTES])
{
	unsigned char sum[EVP_MAX_MD_SIZE];
	unsigned int len = 0;
	if (EVP_Digest(data, bytes, sum, &len, EVP_sha256(), NULL) != 1)
		return ERR_INTERNAL;
	assert(len == DIGEST_BYTES);
	memcpy(ret_sum, sum, DIGEST_BYTES);
	return 0;
}

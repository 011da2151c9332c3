/* SPDX-License-Identifier: Apache-2.0
 * Digests of files and as text. The sums are digest_openssl.c's, or, in a trainer that is built
 * alone, digest_own.c's. */
#include "core/crypto/digest.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FILE_CHUNK_BYTES = 64 * 1024 };

int digest_hex_of(const void *data, size_t bytes, char ret_hex[static DIGEST_HEX_MAX])
{
	unsigned char sum[DIGEST_BYTES];
	int r = digest_bytes(data, bytes, sum);
	if (r < 0)
		return r;
	digest_to_hex(sum, ret_hex);
	return 0;
}

/* Feeds the file to d, byte after byte until its end. */
static int update_from(
	struct digest *d, int fd, const char *path, int64_t *ret_bytes, struct err *err)
{
	cleanup(freep) char *chunk = malloc(FILE_CHUNK_BYTES);
	if (!chunk)
		return err_set(err, ERR_NO_MEMORY, NULL, "out of memory");
	int64_t total = 0;
	for (;;) {
		ssize_t n = read(fd, chunk, FILE_CHUNK_BYTES);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return err_errno(err, ERR_IO, errno, "cannot read %s", path);
		if (n == 0)
			break;
		int r = digest_update(d, chunk, (size_t)n);
		if (r < 0)
			return err_set(err, r, NULL, "SHA-256 of %s failed", path);
		total += n;
	}
	*ret_bytes = total;
	return 0;
}

int digest_file(
	const char *path, char ret_hex[static DIGEST_HEX_MAX], int64_t *ret_bytes, struct err *err)
{
	cleanup(closep) int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return err_errno(err, ERR_IO, errno, "cannot open %s", path);
	cleanup(digest_destroyp) struct digest *d = NULL;
	int r = digest_create(&d);
	if (r < 0)
		return err_set(err, r, NULL, "SHA-256 cannot start");
	int64_t total = 0;
	r = update_from(d, fd, path, &total, err);
	if (r < 0)
		return r;
	unsigned char sum[DIGEST_BYTES];
	r = digest_final(d, sum);
	if (r < 0)
		return err_set(err, r, NULL, "SHA-256 of %s failed", path);
	digest_to_hex(sum, ret_hex);
	if (ret_bytes)
		*ret_bytes = total;
	return 0;
}

void digest_to_hex(const unsigned char *sum, char ret_hex[static DIGEST_HEX_MAX])
{
	static const char digits[] = "0123456789abcdef";
	for (int i = 0; i < DIGEST_BYTES; i++) {
		ret_hex[2 * i] = digits[sum[i] >> 4];
		ret_hex[2 * i + 1] = digits[sum[i] & 15];
	}
	ret_hex[2 * DIGEST_BYTES] = '\0';
}

bool digest_is_hex(const char *text)
{
	size_t len = DIGEST_HEX_MAX - 1;
	return text && strlen(text) == len && strspn(text, "0123456789abcdef") == len;
}

/* SPDX-License-Identifier: Apache-2.0
 * SHA-256, whole, streamed and of files. crypto/ is the only user of OpenSSL. Thread-safe per
 * object. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	DIGEST_BYTES = 32,
	DIGEST_HEX_MAX = 65,
};

struct digest; /* a running SHA-256 */
int digest_create(struct digest **ret) must_check;
int digest_update(struct digest *d, const void *data, size_t bytes) must_check;
/* Ends the run; the object may only be destroyed afterwards. */
int digest_final(struct digest *d, unsigned char ret_sum[static DIGEST_BYTES]) must_check;
void digest_destroy(struct digest *d);
void digest_destroyp(struct digest **d);

int digest_bytes(
	const void *data, size_t bytes, unsigned char ret_sum[static DIGEST_BYTES]) must_check;
int digest_hex_of(const void *data, size_t bytes, char ret_hex[static DIGEST_HEX_MAX]) must_check;
/* Reads the whole file. */
int digest_file(const char *path, char ret_hex[static DIGEST_HEX_MAX], int64_t *ret_bytes,
	struct err *err) must_check;

void digest_to_hex(const unsigned char *sum, char ret_hex[static DIGEST_HEX_MAX]);
bool digest_is_hex(const char *text); /* 64 lower-case hex digits */

/* SPDX-License-Identifier: Apache-2.0
 * HMAC-SHA256: tokens that only we can make (agents' attempt tokens, cursors). Thread-safe. */
#pragma once

#include "core/base/attr.h"
#include "core/crypto/digest.h"

/* Compare the result with random_equal, never with memcmp. */
int hmac_sha256(const void *key, size_t key_bytes, const void *data, size_t bytes,
	unsigned char ret_sum[static DIGEST_BYTES]) must_check;

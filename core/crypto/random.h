/* SPDX-License-Identifier: Apache-2.0
 * Random bytes for secrets, constant-time comparison, CRC-32 for the tail of API keys. Thread-safe.
 */
#pragma once

#include "core/base/attr.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

int random_bytes(void *ret_bytes, size_t bytes) must_check;
bool random_equal(const void *a, const void *b, size_t bytes); /* constant time */
/* IEEE 802.3 CRC-32, as in zlib. Not a security measure. */
uint32_t random_crc32(const void *data, size_t bytes);

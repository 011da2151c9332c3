/* SPDX-License-Identifier: Apache-2.0
 * Checking UTF-8 as RFC 3629 defines it: no overlong forms, no surrogates, nothing above U+10FFFF.
 * Thread-safe. */
#pragma once

#include "core/base/attr.h"

#include <stdbool.h>

/* Bytes of the sequence at s (1 to 4), or 0 when it is not valid. bytes > 0. */
size_t utf8_next(const char *s, size_t bytes);
/* Offset of the first byte that is not valid, or bytes when all are. */
size_t utf8_valid_prefix(const char *s, size_t bytes);
bool utf8_is_valid(const char *s, size_t bytes);

/* SPDX-License-Identifier: Apache-2.0
 * Bytes as text (RFC 4648, with padding). Pure. */
#pragma once

#include "core/base/attr.h"
#include "core/base/buf.h"

#include <stddef.h>

/* Appends. */
int base64_encode(struct buf *out, const void *data, size_t bytes);
/* Appends; INVALID_VALUE for what base64_encode would not have written. */
int base64_decode(struct buf *out, const char *text) must_check;

/* SPDX-License-Identifier: Apache-2.0
 * Range and If-None-Match of file replies (RFC 9110). Used by reply.c. Pure. */
#pragma once

#include "core/base/err.h"

#include <stdbool.h>
#include <stdint.h>

enum range_kind { RANGE_WHOLE, RANGE_PART, RANGE_UNSATISFIABLE };

/* What to send of size bytes. More than one range, another unit or a malformed header mean the
 * whole file, as the RFC allows; header may be NULL. */
enum range_kind range_parse(
	const char *header, int64_t size, int64_t *ret_first, int64_t *ret_count);

/* True when the list of entity tags holds this one (weak comparison) or "*". header may be NULL;
 * etag is without quotes. */
bool range_etag_matches(const char *header, const char *etag);

/* SPDX-License-Identifier: Apache-2.0
 * Identifiers: a prefix and a ULID (https://github.com/ulid/spec): 48 bits of milliseconds, 80
 * random bits, Crockford base 32, so ids sort by creation. Thread-safe. */
#pragma once

#include "core/base/attr.h"
#include "core/base/clock.h"

#include <stdbool.h>

enum {
	IDENT_ULID_LEN = 26,
	IDENT_PREFIX_MAX = 12,
	IDENT_MAX = IDENT_PREFIX_MAX + 1 + IDENT_ULID_LEN + 1,
};

/* Writes "<prefix>_<ULID>". Cannot fail (getrandom blocks until the kernel has entropy). */
void ident_new(const struct clock *clock, const char *prefix, char ret_id[static IDENT_MAX]);
/* True for "<prefix>_" followed by a well-formed ULID and nothing else. */
bool ident_is(const char *text, const char *prefix);

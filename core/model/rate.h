/* SPDX-License-Identifier: Apache-2.0
 * Money from time, exactly: whole numbers only, rounded once per line, half to even. Slices of a
 * line share its amount by largest remainder. Pure; used by usage, invoices and quotes. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"

#include <stddef.h>
#include <stdint.h>

enum {
	RATE_MS_PER_HOUR = 3600 * 1000,
	RATE_MICROS_PER_MINOR = 10000, /* USD: a cent is 10,000 micros */
	RATE_MINOR_DIGITS = 2,
	RATE_TEXT_MAX = 24, /* "-92233720368547758.08" */
};

/* Minor units (cents) of ms at micros_per_hour. Both >= 0 (asserted). INVALID_VALUE when the amount
 * does not fit. */
int rate_amount_minor(int64_t ms, int64_t micros_per_hour, int64_t *ret_minor) must_check;

/* "0.04", "-12.30": minor units as a decimal of the major unit. */
void rate_format_minor(int64_t minor, char ret_text[static RATE_TEXT_MAX]);

struct rate_slice {
	int64_t key; /* unique among the slices: ties go to the smaller key, whatever the order */
	int64_t ms;  /* >= 0 */
	int64_t amount_minor; /* filled by rate_share */
};

/* Shares amount_minor (>= 0) among the slices in proportion to their ms: every slice gets its exact
 * share rounded down or up, the sum is the amount. All ms 0 and an amount above 0: INVALID_VALUE.
 * NO_MEMORY. */
int rate_share(int64_t amount_minor, struct rate_slice *slices, size_t count) must_check;

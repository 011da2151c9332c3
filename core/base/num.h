/* SPDX-License-Identifier: Apache-2.0
 * Numbers as text, strictly and whatever the locale: no spaces, no trailing text, no silent
 * overflow; and the small arithmetic of sizes. Thread-safe. */
#pragma once

#include "core/base/attr.h"

#include <stdint.h>

enum { NUM_F64_MAX = 32 };

/* The shortest text that reads back the same. It is a JSON number when v is finite ("-0.0" keeps
 * its sign); otherwise "nan", "inf" or "-inf". */
void num_format_f64(double v, char ret_text[static NUM_F64_MAX]);

/* Decimal digits with an optional '-'. INVALID_VALUE when it is anything else or out of range. */
int num_parse_i64(const char *text, int64_t min, int64_t max, int64_t *ret) must_check;
/* What strtod reads in the C locale, all of it, no leading space. INVALID_VALUE otherwise. */
int num_parse_f64(const char *text, double *ret) must_check;

enum { NUM_MICROS_DIGITS = 6 };
/* A plain decimal ("250.00", "-0.5") as millionths, exactly: at most six digits behind the point.
 * INVALID_VALUE when it is anything else or does not fit. */
int num_parse_micros(const char *text, int64_t *ret) must_check;
/* The inverse, with at least two digits behind the point: "250.00", "0.123456". */
void num_format_micros(int64_t micros, char ret_text[static NUM_F64_MAX]);

/* Sizes: not negative, and far from overflow; unit above 0. */
static inline int64_t num_min(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static inline int64_t num_max(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

static inline int64_t num_ceil_div(int64_t a, int64_t unit)
{
	return (a + unit - 1) / unit;
}

static inline int64_t num_round_up(int64_t a, int64_t unit)
{
	return num_ceil_div(a, unit) * unit;
}

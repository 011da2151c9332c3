/* SPDX-License-Identifier: Apache-2.0
 * Numbers as text. Called by the JSON writer, the log, settings and the database layer. */
#include "core/base/num.h"

#include "core/base/err.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int64_t MICROS_PER_UNIT = 1000000;

/* glibc answers "C" with a constant object: nothing is allocated and nothing to be freed. */
static locale_t c_locale(void)
{
	locale_t locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
	assert(locale != (locale_t)0);
	return locale;
}

void num_format_f64(double v, char ret_text[static NUM_F64_MAX])
{
	if (!isfinite(v)) {
		(void)snprintf(ret_text, NUM_F64_MAX, "%s", isnan(v) ? "nan" : v > 0 ? "inf" : "-inf");
		return;
	}
	if (v == 0) {
		(void)snprintf(ret_text, NUM_F64_MAX, "%s", signbit(v) ? "-0.0" : "0");
		return;
	}
	locale_t c = c_locale();
	locale_t previous = uselocale(c);
	for (int digits = 15; digits <= 17; digits++) {
		(void)snprintf(ret_text, NUM_F64_MAX, "%.*g", digits, v);
		if (strtod(ret_text, NULL) == v)
			break;
	}
	(void)uselocale(previous);
}

int num_parse_i64(const char *text, int64_t min, int64_t max, int64_t *ret)
{
	bool negative = text[0] == '-';
	const char *p = text + negative;
	if (*p == '\0')
		return ERR_INVALID_VALUE;
	int64_t value = 0;
	for (; *p; p++) {
		if (*p < '0' || *p > '9')
			return ERR_INVALID_VALUE;
		/* Counted downwards, because INT64_MIN has no positive twin. */
		if (__builtin_mul_overflow(value, 10, &value) ||
			__builtin_sub_overflow(value, *p - '0', &value))
			return ERR_INVALID_VALUE;
	}
	if (!negative && __builtin_sub_overflow((int64_t)0, value, &value))
		return ERR_INVALID_VALUE;
	if (value < min || value > max)
		return ERR_INVALID_VALUE;
	*ret = value;
	return 0;
}

int num_parse_f64(const char *text, double *ret)
{
	if (strspn(text, "0123456789+-.eEinfatyINFATY") != strlen(text) || text[0] == '\0')
		return ERR_INVALID_VALUE;
	char *end;
	double value = strtod_l(text, &end, c_locale());
	if (*end != '\0')
		return ERR_INVALID_VALUE;
	*ret = value;
	return 0;
}

int num_parse_micros(const char *text, int64_t *ret)
{
	bool negative = text[0] == '-';
	const char *p = text + negative;
	size_t whole = strspn(p, "0123456789");
	if (whole == 0)
		return ERR_INVALID_VALUE;
	int64_t value = 0;
	int fraction_digits = 0;
	for (size_t i = 0; p[i]; i++) {
		if (i == whole) {
			if (p[i] != '.' || p[i + 1] == '\0')
				return ERR_INVALID_VALUE;
			continue;
		}
		if (p[i] < '0' || p[i] > '9' || (i > whole && ++fraction_digits > NUM_MICROS_DIGITS))
			return ERR_INVALID_VALUE;
		if (__builtin_mul_overflow(value, 10, &value) ||
			__builtin_add_overflow(value, p[i] - '0', &value))
			return ERR_INVALID_VALUE;
	}
	for (; fraction_digits < NUM_MICROS_DIGITS; fraction_digits++) {
		if (__builtin_mul_overflow(value, 10, &value))
			return ERR_INVALID_VALUE;
	}
	*ret = negative ? -value : value;
	return 0;
}

void num_format_micros(int64_t micros, char ret_text[static NUM_F64_MAX])
{
	uint64_t magnitude = micros < 0 ? -(uint64_t)micros : (uint64_t)micros;
	int len = snprintf(ret_text, NUM_F64_MAX, "%s%" PRIu64 ".%06" PRIu64, micros < 0 ? "-" : "",
		magnitude / (uint64_t)MICROS_PER_UNIT, magnitude % (uint64_t)MICROS_PER_UNIT);
	for (int dropped = 0; dropped < 4 && ret_text[len - 1] == '0'; dropped++)
		ret_text[--len] = '\0';
}

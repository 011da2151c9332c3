/* SPDX-License-Identifier: Apache-2.0
 * Rating in whole numbers. No floating point, no rounding but the one at the line. */
#include "core/model/rate.h"

#include <assert.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

/* ms x micros per hour -> minor units: one division by all of it, so that it rounds once. */
static const int64_t MINOR_DIVISOR = (int64_t)RATE_MS_PER_HOUR * RATE_MICROS_PER_MINOR;

int rate_amount_minor(int64_t ms, int64_t micros_per_hour, int64_t *ret_minor)
{
	assert(ms >= 0 && micros_per_hour >= 0);
	__int128 product = (__int128)ms * micros_per_hour;
	__int128 minor = product / MINOR_DIVISOR;
	int64_t rest = (int64_t)(product % MINOR_DIVISOR);
	bool up = rest > MINOR_DIVISOR / 2 || (rest == MINOR_DIVISOR / 2 && minor % 2 == 1);
	minor += up;
	if (minor > INT64_MAX)
		return ERR_INVALID_VALUE;
	*ret_minor = (int64_t)minor;
	return 0;
}

void rate_format_minor(int64_t minor, char ret_text[static RATE_TEXT_MAX])
{
	/* Through unsigned, so that the least number has a magnitude. */
	uint64_t magnitude = minor < 0 ? -(uint64_t)minor : (uint64_t)minor;
	(void)snprintf(ret_text, RATE_TEXT_MAX, "%s%" PRIu64 ".%0*" PRIu64, minor < 0 ? "-" : "",
		magnitude / 100, RATE_MINOR_DIGITS, magnitude % 100);
}

struct remainder {
	int64_t rest;
	int64_t key;
	struct rate_slice *slice;
};

static int by_rest_then_key(const void *a, const void *b)
{
	const struct remainder *x = a, *y = b;
	if (x->rest != y->rest)
		return x->rest > y->rest ? -1 : 1;
	return x->key < y->key ? -1 : x->key > y->key;
}

int rate_share(int64_t amount_minor, struct rate_slice *slices, size_t count)
{
	assert(amount_minor >= 0);
	int64_t total_ms = 0;
	for (size_t i = 0; i < count; i++) {
		assert(slices[i].ms >= 0);
		if (__builtin_add_overflow(total_ms, slices[i].ms, &total_ms))
			return ERR_INVALID_VALUE;
	}
	if (total_ms == 0 && amount_minor > 0)
		return ERR_INVALID_VALUE;
	if (amount_minor == 0 || count == 0) {
		for (size_t i = 0; i < count; i++)
			slices[i].amount_minor = 0;
		return 0;
	}

	cleanup(freep) struct remainder *rests = calloc(count, sizeof(*rests));
	if (!rests)
		return ERR_NO_MEMORY;
	int64_t left = amount_minor;
	for (size_t i = 0; i < count; i++) {
		__int128 share = (__int128)amount_minor * slices[i].ms;
		slices[i].amount_minor = (int64_t)(share / total_ms);
		left -= slices[i].amount_minor;
		rests[i] = (struct remainder){ (int64_t)(share % total_ms), slices[i].key, &slices[i] };
	}
	/* The remainders add up to left x total_ms and each is below total_ms, so at least `left` of
	 * them are above zero. */
	assert(left >= 0 && (size_t)left <= count);
	qsort(rests, count, sizeof(*rests), by_rest_then_key);
	for (int64_t i = 0; i < left; i++)
		rests[i].slice->amount_minor++;
	return 0;
}

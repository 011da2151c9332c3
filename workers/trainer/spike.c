/* SPDX-License-Identifier: Apache-2.0
 * Detection of losses that went up and stayed there. */
#include "workers/trainer/spike.h"

#include <stdlib.h>
#include <string.h>

static const double MEDIAN_TIMES = 2, FIRST_SHARE = 0.3;

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static double median(const double *values, int count)
{
	double sorted[SPIKE_WINDOW];
	memcpy(sorted, values, sizeof(*values) * (size_t)count);
	qsort(sorted, (size_t)count, sizeof(*sorted), by_size);
	return (sorted[(count - 1) / 2] + sorted[count / 2]) / 2;
}

static double limit(const struct spike *s)
{
	double middle = median(s->window, SPIKE_WINDOW), first = median(s->first, SPIKE_FIRST);
	double by_median = MEDIAN_TIMES * middle, by_first = middle + FIRST_SHARE * first;
	return by_median > by_first ? by_median : by_first;
}

enum spike_verdict spike_step(struct spike *s, double loss, double *ret_limit)
{
	*ret_limit = 0;
	if (s->seen < SPIKE_FIRST)
		s->first[s->seen] = loss;
	s->seen++;
	if (s->calm >= SPIKE_WINDOW)
		*ret_limit = limit(s);
	if (s->calm < SPIKE_WINDOW || loss <= *ret_limit) {
		s->window[s->calm++ % SPIKE_WINDOW] = loss; /* high ones never become the measure */
		s->high = 0;
		return SPIKE_CALM;
	}
	s->high++;
	if (s->high >= SPIKE_FAIL_STEPS)
		return SPIKE_FAIL;
	return s->high == SPIKE_WARN_STEPS ? SPIKE_WARN : SPIKE_CALM;
}

/* SPDX-License-Identifier: Apache-2.0
 * Tests workers/trainer/span.c against the plain way: element by element. */
#include "tests/support/check.h"
#include "workers/trainer/span.h"

enum { ROUNDS = 3000, TOTAL_MAX = 240 };

static struct plan_cut random_cut(struct check_random *r, int64_t total)
{
	int64_t period = 0;
	do
		period = check_random_range(r, 1, total);
	while (total % period != 0);
	int64_t run = check_random_range(r, 1, period);
	return (struct plan_cut){ check_random_range(r, 0, period - run), run, period };
}

static struct span random_span(struct check_random *r, int64_t total)
{
	struct span s = { .cut = random_cut(r, total) };
	int64_t kept = total / s.cut.period * s.cut.run;
	s.begin = check_random_range(r, 0, kept - 1);
	s.count = check_random_range(r, 0, kept - s.begin);
	return s;
}

static void what_two_have_in_common_is_copied_and_nothing_else(void **state)
{
	struct check_random r = check_random_start();
	(void)state;
	for (int round = 0; round < ROUNDS; round++) {
		int64_t total = check_random_range(&r, 1, TOTAL_MAX);
		struct span to = random_span(&r, total), from = random_span(&r, total);
		float have[TOTAL_MAX], got[TOTAL_MAX], want[TOTAL_MAX], whole[TOTAL_MAX];
		if (round % 4 == 0)
			from.cut = to.cut, from.begin = 0, from.count = total / to.cut.period * to.cut.run;
		for (int64_t i = 0; i < total; i++)
			whole[i] = -1;
		for (int64_t i = 0; i < from.count; i++) {
			int64_t at = plan_cut_at(&from.cut, from.begin + i);
			have[i] = whole[at] = (float)at;
		}
		for (int64_t i = 0; i < to.count; i++) {
			got[i] = -1;
			want[i] = whole[plan_cut_at(&to.cut, to.begin + i)];
		}
		span_copy(&to, HALF_F32, got, &from, HALF_F32, have);
		assert_memory_equal(got, want, (size_t)to.count * sizeof(*got));
	}
}

static void a_stretch_has_what_lies_inside(void **state)
{
	struct check_random r = check_random_start();
	(void)state;
	for (int round = 0; round < ROUNDS; round++) {
		int64_t total = check_random_range(&r, 1, TOTAL_MAX);
		struct span s = random_span(&r, total);
		int64_t begin = check_random_range(&r, 0, total - 1);
		int64_t end = check_random_range(&r, begin, total), count = 0;
		struct span in = span_inside(&s, begin, end);
		for (int64_t i = s.begin; i < s.begin + s.count; i++) {
			int64_t at = plan_cut_at(&s.cut, i);
			bool inside = at >= begin && at < end;
			count += inside;
			assert_int_equal(inside, i >= in.begin && i < in.begin + in.count);
		}
		assert_int_equal(in.count, count);
	}
}

static int compare(const void *a, const void *b)
{
	return span_compare(a, b);
}

/* Random parts that make up a whole do; without one, with one twice, or with one moved they do
 * not, and what is missing is named. */
static void only_a_whole_is_one(void **state)
{
	struct check_random r = check_random_start();
	(void)state;
	for (int round = 0; round < ROUNDS; round++) {
		struct span all[TOTAL_MAX + 1];
		int n = 0;
		int64_t period = check_random_range(&r, 1, 12);
		int64_t total = period * check_random_range(&r, 1, 12);
		for (int64_t first = 0, run = 0; first < period; first += run) {
			run = check_random_range(&r, 1, period - first);
			int64_t kept = total / period * run;
			for (int64_t at = 0, count = 0; at < kept; at += count) {
				count = check_random_range(&r, 1, kept - at);
				all[n++] = (struct span){ { first, run, period }, at, count };
			}
		}
		int at = (int)check_random_range(&r, 0, n - 1);
		const int fault = round % 4; /* none, missing, twice, another period */
		struct span lost = all[at];
		if (fault == 1)
			all[at] = all[--n];
		else if (fault == 2)
			all[n++] = all[at];
		else if (fault == 3)
			all[at].cut = plan_cut_none(2 * total);
		qsort(all, (size_t)n, sizeof(*all), compare);
		struct span_tiling t = { 0 };
		enum span_fit fit = SPAN_FITS;
		for (int i = 0; i < n && fit == SPAN_FITS; i++)
			fit = span_add(&t, &all[i], total);
		bool whole = fit == SPAN_FITS && span_is_whole(&t, total);
		assert_int_equal(whole, fault == 0);
		if (fault == 1)
			assert_int_equal(span_missing(&t, total), plan_cut_at(&lost.cut, lost.begin));
		if (fault == 2)
			assert_int_equal(fit, SPAN_OVERLAPS);
	}
}

/* The columns of a large matrix are copied run by run: as many steps as rows, not elements. */
static void columns_are_runs(void **state)
{
	const int64_t rows = 4096, columns = 16384;
	const struct span kept = { { 4096, 4096, columns }, 0, rows * 4096 };
	const struct span whole = span_stretch(rows * columns, 0, rows * columns);
	struct span_run run = { 0 };
	int64_t runs = 0;
	(void)state;
	while (span_next(&kept, &whole, &run)) {
		assert_int_equal(run.count, 4096);
		runs++;
	}
	assert_int_equal(runs, rows);
	run = (struct span_run){ 0 };
	assert_true(span_next(&kept, &kept, &run));
	assert_int_equal(run.count, kept.count);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_two_have_in_common_is_copied_and_nothing_else),
		cmocka_unit_test(a_stretch_has_what_lies_inside),
		cmocka_unit_test(only_a_whole_is_one),
		cmocka_unit_test(columns_are_runs),
	};
	return cmocka_run_group_tests_name("span", tests, NULL, NULL);
}

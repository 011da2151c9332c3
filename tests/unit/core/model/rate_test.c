/* SPDX-License-Identifier: Apache-2.0
 * Rating: cases from rate_cases.txt (first argument), and properties over seeded random lines. */
#include "core/model/rate.h"

#include "core/base/num.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SEED = 20250101, ROUNDS = 4000, SLICES_MAX = 40 };

static const char *cases_path;

static uint64_t next_random(uint64_t *state)
{
	/* splitmix64 */
	uint64_t z = (*state += 0x9E3779B97F4A7C15u);
	z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
	z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
	return z ^ (z >> 31);
}

static int64_t below(uint64_t *state, int64_t bound)
{
	return (int64_t)(next_random(state) % (uint64_t)bound);
}

static void test_cases(void **state)
{
	FILE *f = fopen(cases_path, "re");
	assert_non_null(f);
	char line[256];
	int count = 0;
	while (fgets(line, sizeof(line), f)) {
		char ms_text[32], micros_text[32], want[32];
		if (line[0] == '#' || sscanf(line, "%31s %31s %31s", ms_text, micros_text, want) != 3)
			continue;
		int64_t ms, micros, minor = -1;
		assert_int_equal(num_parse_i64(ms_text, 0, INT64_MAX, &ms), 0);
		assert_int_equal(num_parse_i64(micros_text, 0, INT64_MAX, &micros), 0);
		int r = rate_amount_minor(ms, micros, &minor);
		char got[32] = "overflow";
		if (r == 0)
			(void)snprintf(got, sizeof(got), "%lld", (long long)minor);
		else
			assert_int_equal(minor, -1);
		if (strcmp(got, want) != 0)
			fail_msg("%s ms at %s: %s, not %s", ms_text, micros_text, got, want);
		count++;
	}
	(void)fclose(f);
	assert_true(count >= 30);
}

/* |2 (amount x divisor - product)| <= divisor, and an exact half lands on an even amount. */
static void test_nearest(void **state)
{
	uint64_t random = SEED;
	const __int128 divisor = (__int128)RATE_MS_PER_HOUR * RATE_MICROS_PER_MINOR;
	for (int i = 0; i < ROUNDS * 10; i++) {
		/* Multiples of 25 s at multiples of 0.36 meet the half often. */
		bool halves = i % 2;
		int64_t ms = halves ? below(&random, 100000) * 25000 : below(&random, INT64_C(1) << 40);
		int64_t micros = halves ? below(&random, 10) * 360000 : below(&random, INT64_C(1) << 30);
		int64_t minor;
		assert_int_equal(rate_amount_minor(ms, micros, &minor), 0);
		__int128 twice = 2 * (minor * divisor - (__int128)ms * micros);
		assert_true(twice <= divisor && twice >= -divisor);
		if (twice == divisor || twice == -divisor)
			assert_int_equal(minor % 2, 0);
	}
}

static int64_t fill(uint64_t *random, struct rate_slice *slices, size_t count)
{
	int64_t total = 0;
	for (size_t i = 0; i < count; i++) {
		/* Few distinct lengths make ties; zeros must get nothing. */
		int64_t ms = below(random, 3) ? below(random, 4) * 1000 : below(random, 100000000);
		slices[i] = (struct rate_slice){ .key = (int64_t)i * 7 + 1, .ms = ms };
		total += ms;
	}
	return total;
}

static void test_share_is_exact(void **state)
{
	uint64_t random = SEED;
	for (int round = 0; round < ROUNDS; round++) {
		struct rate_slice slices[SLICES_MAX];
		size_t count = 1 + (size_t)below(&random, SLICES_MAX);
		int64_t total = fill(&random, slices, count), amount, sum = 0;
		if (total == 0)
			continue;
		assert_int_equal(rate_amount_minor(total, below(&random, 5000000), &amount), 0);
		assert_int_equal(rate_share(amount, slices, count), 0);
		for (size_t i = 0; i < count; i++) {
			__int128 exact = (__int128)amount * slices[i].ms;
			assert_true((__int128)slices[i].amount_minor * total > exact - total);
			assert_true((__int128)slices[i].amount_minor * total < exact + total);
			if (slices[i].ms == 0)
				assert_int_equal(slices[i].amount_minor, 0);
			sum += slices[i].amount_minor;
		}
		assert_int_equal(sum, amount);
	}
}

static void shuffle(uint64_t *random, struct rate_slice *slices, size_t count)
{
	for (size_t i = count; i > 1; i--) {
		size_t j = (size_t)below(random, (int64_t)i);
		struct rate_slice held = slices[i - 1];
		slices[i - 1] = slices[j];
		slices[j] = held;
	}
}

static void test_share_ignores_order(void **state)
{
	uint64_t random = SEED + 1;
	for (int round = 0; round < ROUNDS; round++) {
		struct rate_slice first[SLICES_MAX], second[SLICES_MAX];
		size_t count = 1 + (size_t)below(&random, SLICES_MAX);
		int64_t total = fill(&random, first, count);
		int64_t amount = total ? below(&random, 1000) : 0;
		memcpy(second, first, sizeof(first));
		shuffle(&random, second, count);
		assert_int_equal(rate_share(amount, first, count), 0);
		assert_int_equal(rate_share(amount, second, count), 0);
		for (size_t i = 0; i < count; i++)
			for (size_t j = 0; j < count; j++)
				if (first[i].key == second[j].key)
					assert_int_equal(first[i].amount_minor, second[j].amount_minor);
	}
}

static void test_share_of_nothing(void **state)
{
	struct rate_slice none[2] = { { .key = 1 }, { .key = 2 } };
	assert_int_equal(rate_share(0, none, 2), 0);
	assert_int_equal(rate_share(1, none, 2), ERR_INVALID_VALUE);
	assert_int_equal(rate_share(0, NULL, 0), 0);
	struct rate_slice huge[2] = { { .key = 1, .ms = INT64_MAX }, { .key = 2, .ms = 1 } };
	assert_int_equal(rate_share(1, huge, 2), ERR_INVALID_VALUE);
	/* The cent of three equal slices goes to the one written first. */
	struct rate_slice equal[3] = { { 30, 5, 0 }, { 10, 5, 0 }, { 20, 5, 0 } };
	assert_int_equal(rate_share(4, equal, 3), 0);
	assert_int_equal(equal[0].amount_minor, 1);
	assert_int_equal(equal[1].amount_minor, 2);
	assert_int_equal(equal[2].amount_minor, 1);
}

static void test_text(void **state)
{
	static const struct {
		int64_t minor;
		const char *text;
	} cases[] = { { 0, "0.00" }, { 4, "0.04" }, { 100, "1.00" }, { 123456, "1234.56" },
		{ -5, "-0.05" }, { INT64_MAX, "92233720368547758.07" },
		{ INT64_MIN, "-92233720368547758.08" } };
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		char text[RATE_TEXT_MAX];
		rate_format_minor(cases[i].minor, text);
		assert_string_equal(text, cases[i].text);
	}
}

int main(int argc, char **argv)
{
	if (argc != 2)
		return EXIT_FAILURE;
	cases_path = argv[1];
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_cases),
		cmocka_unit_test(test_nearest),
		cmocka_unit_test(test_share_is_exact),
		cmocka_unit_test(test_share_ignores_order),
		cmocka_unit_test(test_share_of_nothing),
		cmocka_unit_test(test_text),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}

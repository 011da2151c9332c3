/* SPDX-License-Identifier: Apache-2.0
 * Tests core/base/clock.c. */
#include "core/base/clock.h"
#include "core/base/err.h"
#include "tests/support/check.h"

static void known_instants(void **state)
{
	static const struct {
		int64_t us;
		const char *text;
	} cases[] = {
		{ 0, "1970-01-01T00:00:00.000Z" },
		{ -1, "1969-12-31T23:59:59.999Z" },
		{ 951782400000000, "2000-02-29T00:00:00.000Z" },
		{ 1796004241123000, "2026-11-30T02:04:01.123Z" },
		{ 253402300799999999, "9999-12-31T23:59:59.999Z" },
		{ INT64_MAX, "9999-12-31T23:59:59.999Z" },
		{ INT64_MIN, "0000-01-01T00:00:00.000Z" },
	};
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		char text[CLOCK_RFC3339_MAX];
		clock_rfc3339(cases[i].us, text);
		assert_string_equal(text, cases[i].text);
	}
}

/* Every day of 800 years agrees with the C library, and reads back. */
static void days_agree_with_the_c_library(void **state)
{
	for (int64_t day = -146097; day < 146097; day++) {
		time_t t = (time_t)(day * 86400 + 86399);
		struct tm tm;
		assert_non_null(gmtime_r(&t, &tm));
		char expected[80];
		(void)snprintf(expected, sizeof(expected), "%04d-%02d-%02dT%02d:%02d:%02d.000Z",
			tm.tm_year + 1900, tm.tm_mon + 1, tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec);
		char text[CLOCK_RFC3339_MAX];
		clock_rfc3339((int64_t)t * 1000000, text);
		assert_string_equal(text, expected);
		int64_t us;
		assert_int_equal(clock_parse_rfc3339(text, &us), 0);
		assert_true(us == (int64_t)t * 1000000);
	}
}

static void accepted_forms(void **state)
{
	static const struct {
		const char *text;
		int64_t us;
	} cases[] = {
		{ "1970-01-01T00:00:00Z", 0 },
		{ "1970-01-01T00:00:01.5Z", 1500000 },
		{ "1970-01-01T00:00:00.123456Z", 123456 },
		{ "1970-01-01t00:00:00z", 0 },
		{ "1970-01-01T02:00:00+02:00", 0 },
		{ "1969-12-31T18:30:00-05:30", 0 },
		{ "2024-02-29T00:00:00Z", 1709164800000000 },
	};
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		int64_t us = -1;
		assert_int_equal(clock_parse_rfc3339(cases[i].text, &us), 0);
		assert_true(us == cases[i].us);
	}
}

static void refused_forms(void **state)
{
	static const char *const cases[] = { "", "1970", "1970-01-01", "1970-01-01T00:00:00",
		"1970-01-01 00:00:00Z", "1970-13-01T00:00:00Z", "1970-00-01T00:00:00Z",
		"1970-01-00T00:00:00Z", "1970-02-29T00:00:00Z", "1900-02-29T00:00:00Z",
		"1970-01-01T24:00:00Z", "1970-01-01T00:60:00Z", "1970-01-01T00:00:60Z",
		"1970-01-01T00:00:00.Z", "1970-01-01T00:00:00.1234567Z", "1970-01-01T00:00:00Zx",
		"1970-01-01T00:00:00+0200", "1970-01-01T00:00:00+24:00", "+970-01-01T00:00:00Z",
		"1970-01-01T00:00:00+02:60", "1970-1-1T0:0:0Z", "1970-01-01T00:00:00-" };
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		int64_t us = 77;
		assert_int_equal(clock_parse_rfc3339(cases[i], &us), ERR_INVALID_VALUE);
		assert_int_equal(us, 77);
	}
}

static void manual_clock_moves_only_by_hand(void **state)
{
	struct clock_manual c;
	clock_manual_init(&c, 5000000);
	assert_int_equal(clock_wall_us(&c.base), 5000000);
	int64_t mono = clock_mono_us(&c.base);
	clock_manual_advance(&c, 250);
	assert_int_equal(clock_wall_us(&c.base), 5000250);
	assert_int_equal(clock_mono_us(&c.base), mono + 250);
	assert_int_equal(clock_boot_us(&c.base), mono + 250);
}

static void system_clock_runs(void **state)
{
	const struct clock *c = clock_system();
	int64_t before = clock_mono_us(c);
	assert_true(clock_mono_us(c) >= before);
	assert_true(clock_boot_us(c) >= before);
	assert_true(clock_wall_us(c) > 1577836800000000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(known_instants),
		cmocka_unit_test(days_agree_with_the_c_library),
		cmocka_unit_test(accepted_forms),
		cmocka_unit_test(refused_forms),
		cmocka_unit_test(manual_clock_moves_only_by_hand),
		cmocka_unit_test(system_clock_runs),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}

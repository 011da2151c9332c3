/* SPDX-License-Identifier: Apache-2.0
 * Tests core/base/num.c. */
#include "core/base/err.h"
#include "core/base/num.h"
#include "tests/support/check.h"

#include <math.h>

static void doubles_read_back(void **state)
{
	struct check_random random = check_random_start();
	for (int i = 0; i < 200000; i++) {
		uint64_t bits = check_random_bits(&random);
		double v, back;
		memcpy(&v, &bits, sizeof(v));
		if (i % 2)
			v = (double)check_random_range(&random, -100000, 100000) / 1000;
		if (!isfinite(v))
			continue;
		char text[NUM_F64_MAX];
		num_format_f64(v, text);
		assert_true(strlen(text) < NUM_F64_MAX - 1);
		assert_int_equal(num_parse_f64(text, &back), 0);
		assert_true(memcmp(&v, &back, sizeof(v)) == 0 || (v == 0 && back == 0));
	}
}

static void doubles_are_short(void **state)
{
	static const struct {
		double v;
		const char *text;
	} cases[] = {
		{ 0.1, "0.1" },
		{ 3e-4, "0.0003" },
		{ 1e-8, "1e-08" },
		{ 1.0 / 3, "0.3333333333333333" },
		{ 32, "32" },
		{ 0, "0" },
		{ -0.0, "-0.0" },
		{ 1e300, "1e+300" },
		{ 5e-324, "4.94065645841247e-324" },
		{ NAN, "nan" },
		{ INFINITY, "inf" },
		{ -INFINITY, "-inf" },
	};
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		char text[NUM_F64_MAX];
		num_format_f64(cases[i].v, text);
		assert_string_equal(text, cases[i].text);
	}
}

static void integers_are_strict(void **state)
{
	int64_t v = 7;
	assert_int_equal(num_parse_i64("9223372036854775807", INT64_MIN, INT64_MAX, &v), 0);
	assert_true(v == INT64_MAX);
	assert_int_equal(num_parse_i64("-9223372036854775808", INT64_MIN, INT64_MAX, &v), 0);
	assert_true(v == INT64_MIN);
	assert_int_equal(num_parse_i64("0042", 0, 100, &v), 0);
	assert_int_equal(v, 42);
	static const char *const cases[] = { "", "-", "+1", " 1", "1 ", "1x", "0x10", "1.0", "1e3",
		"9223372036854775808", "-9223372036854775809", "99999999999999999999999", "101", "-1" };
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		v = 7;
		assert_int_equal(num_parse_i64(cases[i], 0, strlen(cases[i]) > 10 ? INT64_MAX : 100, &v),
			ERR_INVALID_VALUE);
		assert_int_equal(v, 7);
	}
}

static void floats_are_strict(void **state)
{
	double v = 7;
	static const char *const cases[] = { "", " 1", "1 ", "0x10", "1,5", "1.5x", "--1", "." };
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		assert_int_equal(num_parse_f64(cases[i], &v), ERR_INVALID_VALUE);
		assert_true(v == 7);
	}
	assert_int_equal(num_parse_f64("-Infinity", &v), 0);
	assert_true(isinf(v) && v < 0);
	assert_int_equal(num_parse_f64("NaN", &v), 0);
	assert_true(isnan(v));
}

static void micros_are_exact(void **state)
{
	static const struct {
		const char *text;
		int64_t micros;
		const char *written;
	} cases[] = {
		{ "250.00", 250000000, "250.00" },
		{ "0", 0, "0.00" },
		{ "0.1", 100000, "0.10" },
		{ "-0.5", -500000, "-0.50" },
		{ "3", 3000000, "3.00" },
		{ "0.000001", 1, "0.000001" },
		{ "1.234500", 1234500, "1.2345" },
		{ "9223372036854.775807", INT64_MAX, "9223372036854.775807" },
		{ "-9223372036854.775807", -INT64_MAX, "-9223372036854.775807" },
	};
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		int64_t micros = 1;
		char text[NUM_F64_MAX];
		assert_int_equal(num_parse_micros(cases[i].text, &micros), 0);
		assert_true(micros == cases[i].micros);
		num_format_micros(micros, text);
		assert_string_equal(text, cases[i].written);
	}
	static const char *const refused[] = { "", "-", ".", "1.", ".5", "1.1234567", "+1", " 1", "1 ",
		"1e3", "1,5", "0x1", "9223372036854.775808", "99999999999999", "1.2.3", "1.-2" };
	for (size_t i = 0; i < ARRAY_LEN(refused); i++) {
		int64_t micros = 5;
		assert_int_equal(num_parse_micros(refused[i], &micros), ERR_INVALID_VALUE);
		assert_int_equal(micros, 5);
	}
	char text[NUM_F64_MAX];
	num_format_micros(INT64_MIN, text);
	assert_string_equal(text, "-9223372036854.775808");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(doubles_read_back),
		cmocka_unit_test(doubles_are_short),
		cmocka_unit_test(integers_are_strict),
		cmocka_unit_test(floats_are_strict),
		cmocka_unit_test(micros_are_exact),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}

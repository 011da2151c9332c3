/* SPDX-License-Identifier: Apache-2.0
 * Tests workers/trainer/half.c: every 16-bit value, and roundings, against arithmetic. */
#include "tests/unit/workers/trainer/trainer_fixture.h"

#include "workers/trainer/half.h"

#include <math.h>

static double f16_value(uint16_t h)
{
	int exponent = (h >> 10) & 31, rest = h & 0x3ff;
	double x = exponent == 0 ? ldexp(rest, -24) : ldexp(1024 + rest, exponent - 25);
	return h & 0x8000 ? -x : x;
}

static void every_f16_is_an_f32_and_comes_back(void **state)
{
	(void)state;
	for (int i = 0; i < 65536; i++) {
		uint16_t h = (uint16_t)i, back = 0;
		float x = 0;
		half_convert(1, HALF_F16, &h, HALF_F32, &x);
		half_convert(1, HALF_F32, &x, HALF_F16, &back);
		if ((h & 0x7fff) > 0x7c00) {
			assert_true(isnan(x));
			assert_true((back & 0x7fff) > 0x7c00);
			continue;
		}
		if ((h & 0x7fff) == 0x7c00)
			assert_true(isinf(x));
		else
			assert_true((double)x == f16_value(h));
		assert_int_equal(back, h);
	}
}

static void every_bf16_is_an_f32_and_comes_back(void **state)
{
	(void)state;
	for (int i = 0; i < 65536; i++) {
		uint16_t h = (uint16_t)i, back = 0;
		uint32_t bits = 0, upper = (uint32_t)i << 16;
		half_convert(1, HALF_BF16, &h, HALF_F32, &bits);
		assert_int_equal(bits, upper);
		half_convert(1, HALF_F32, &bits, HALF_BF16, &back);
		if ((h & 0x7fff) > 0x7f80)
			assert_true((back & 0x7fff) > 0x7f80);
		else
			assert_int_equal(back, h);
	}
}

/* Between two neighbours: the nearer one, and the even one in the middle. */
static void values_between_round_to_the_nearest_even(void **state)
{
	(void)state;
	for (int i = 0; i < 0x7bff; i++) {
		uint16_t low = (uint16_t)i, got = 0;
		double a = f16_value(low), b = f16_value((uint16_t)(i + 1)), middle = (a + b) / 2;
		const struct {
			float x;
			uint16_t want;
		} cases[] = {
			{ (float)middle, i % 2 == 0 ? low : (uint16_t)(i + 1) },
			{ nextafterf((float)middle, 0), low },
			{ nextafterf((float)middle, INFINITY), (uint16_t)(i + 1) },
		};
		for (size_t k = 0; k < ARRAY_LEN(cases); k++) {
			half_convert(1, HALF_F32, &cases[k].x, HALF_F16, &got);
			assert_int_equal(got, cases[k].want);
			float minus = -cases[k].x;
			half_convert(1, HALF_F32, &minus, HALF_F16, &got);
			assert_int_equal(got, cases[k].want | 0x8000);
		}
	}
	static const struct {
		uint32_t bits;
		uint16_t bf16;
	} cases[] = {
		{ 0x3f808000, 0x3f80 }, /* the middle, down to even */
		{ 0x3f818000, 0x3f82 }, /* the middle, up to even */
		{ 0x3f808001, 0x3f81 },
		{ 0x3f807fff, 0x3f80 },
		{ 0x7f7fffff, 0x7f80 }, /* above the largest: infinity */
		{ 0x00000001, 0x0000 },
		{ 0x00018000, 0x0002 },
	};
	for (size_t k = 0; k < ARRAY_LEN(cases); k++) {
		uint16_t got = 0;
		half_convert(1, HALF_F32, &cases[k].bits, HALF_BF16, &got);
		assert_int_equal(got, cases[k].bf16);
	}
}

static void what_is_too_large_for_f16_is_infinite(void **state)
{
	static const float in[] = { 65504, 65519.996F, 65520, 1e30F, INFINITY };
	static const uint16_t out[] = { 0x7bff, 0x7bff, 0x7c00, 0x7c00, 0x7c00 };
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(in); i++) {
		uint16_t got = 0;
		half_convert(1, HALF_F32, &in[i], HALF_F16, &got);
		assert_int_equal(got, out[i]);
	}
}

static void types_have_the_words_of_safetensors(void **state)
{
	enum half_type type;
	(void)state;
	assert_true(half_type_of("F32", &type) && type == HALF_F32);
	assert_true(half_type_of("BF16", &type) && type == HALF_BF16);
	assert_true(half_type_of("F16", &type) && type == HALF_F16);
	assert_false(half_type_of("F64", &type));
	assert_false(half_type_of("", &type));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_f16_is_an_f32_and_comes_back),
		cmocka_unit_test(every_bf16_is_an_f32_and_comes_back),
		cmocka_unit_test(values_between_round_to_the_nearest_even),
		cmocka_unit_test(what_is_too_large_for_f16_is_infinite),
		cmocka_unit_test(types_have_the_words_of_safetensors),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}

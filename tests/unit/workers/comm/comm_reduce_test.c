/* SPDX-License-Identifier: Apache-2.0
 * The reductions: every 16-bit value, rounding once, NaN and infinity. */
#include "tests/support/check.h"
#include "workers/comm/comm_private.h"

#include <math.h>

enum { ALL_HALVES = 1 << 16 };

static void halves_survive(void **state)
{
	(void)state;
	static uint16_t in[ALL_HALVES], out[ALL_HALVES];
	const void *parts[] = { in };
	for (int i = 0; i < ALL_HALVES; i++)
		in[i] = (uint16_t)i;
	for (int type = COMM_BF16; type <= COMM_F16; type++) {
		unsigned top = type == COMM_BF16 ? 0x7f80 : 0x7c00,
				 quiet = type == COMM_BF16 ? 0x40 : 0x200;
		comm_reduce_parts((enum comm_type)type, COMM_SUM, out, parts, 1, ALL_HALVES);
		for (unsigned i = 0; i < ALL_HALVES; i++)
			assert_int_equal(out[i], (i & 0x7fff) > top ? i | quiet : i);
	}
}

/* 256 + 1 + 1 in bf16 (8 bits) and 2048 + 1 + 1 in fp16 (11 bits): rounded at each step they would
 * stay. */
static void sums_round_once(void **state)
{
	(void)state;
	uint16_t big = 0x4380, one = 0x3f80, out = 0;
	const void *parts[] = { &big, &one, &one };
	comm_reduce_parts(COMM_BF16, COMM_SUM, &out, parts, 3, 1);
	assert_int_equal(out, 0x4381);
	big = 0x6800;
	one = 0x3c00;
	comm_reduce_parts(COMM_F16, COMM_SUM, &out, parts, 3, 1);
	assert_int_equal(out, 0x6801);
	uint16_t huge = 0x7bff; /* 65504: twice that is out of range, and back again */
	uint16_t less = 0xfbff;
	const void *back[] = { &huge, &huge, &less };
	comm_reduce_parts(COMM_F16, COMM_SUM, &out, back, 3, 1);
	assert_int_equal(out, 0x7bff);
}

static void the_order_is_that_of_the_parts(void **state)
{
	(void)state;
	float a = 0x1p24F, b = 1.0F, c = -0x1p24F, out = 0;
	const void *first[] = { &a, &b, &c }, *second[] = { &a, &c, &b };
	comm_reduce_parts(COMM_F32, COMM_SUM, &out, first, 3, 1);
	assert_true(out == 0.0F);
	comm_reduce_parts(COMM_F32, COMM_SUM, &out, second, 3, 1);
	assert_true(out == 1.0F);
}

static void a_maximum_keeps_a_nan(void **state)
{
	(void)state;
	float a[4] = { 1, NAN, 3, -INFINITY }, b[4] = { 2, 5, NAN, -1 }, out[4] = { 0 };
	const void *parts[] = { a, b };
	comm_reduce_parts(COMM_F32, COMM_MAX, out, parts, 2, 4);
	assert_true(out[0] == 2 && isnan(out[1]) && isnan(out[2]) && out[3] == -1);
}

/* More than a tile, and not a multiple of a vector; the result takes the place of each part in
 * turn. */
static void the_result_may_be_any_part(void **state)
{
	(void)state;
	enum { PARTS = 4, COUNT = 2 * 2048 + 5 };
	static float parts[PARTS][COUNT];
	for (int n = 1; n <= PARTS; n++) {
		for (int place = 0; place < n; place++) {
			const void *list[PARTS];
			for (int p = 0; p < n; p++) {
				list[p] = parts[p];
				for (int i = 0; i < COUNT; i++)
					parts[p][i] = (float)(i % 97 + (p + 1) * 1000);
			}
			comm_reduce_parts(COMM_F32, COMM_SUM, parts[place], list, n, COUNT);
			for (int i = 0; i < COUNT; i++)
				assert_true(parts[place][i] == (float)(n * (i % 97) + n * (n + 1) / 2 * 1000));
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_result_may_be_any_part),
		cmocka_unit_test(halves_survive),
		cmocka_unit_test(sums_round_once),
		cmocka_unit_test(the_order_is_that_of_the_parts),
		cmocka_unit_test(a_maximum_keeps_a_nan),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}

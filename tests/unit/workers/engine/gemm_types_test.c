/* SPDX-License-Identifier: Apache-2.0
 * The types around products: every 16-bit value comes through, results are rounded to nearest even,
 * NaN and infinity show. */
#include "tests/unit/workers/engine/gemm_fixture.h"

static uint16_t round_to(enum gemm_type type, double x)
{
	uint16_t best = 0;
	double distance = INFINITY;
	for (uint32_t h = 0; h < 0x8000; h++) {
		double v = load(type, &(uint16_t){ (uint16_t)h }, 0), d = fabs(v - fabs(x));
		if (d < distance || (d == distance && h % 2 == 0)) {
			distance = d;
			best = (uint16_t)h;
		}
	}
	return x < 0 ? best | 0x8000 : best;
}

/* Every value of 16 bits comes through a product with 1 unchanged, in either direction. */
static void every_half_survives(void **state)
{
	enum { COUNT = 65536 };
	static uint16_t in[COUNT], out[COUNT];
	static float wide[COUNT];
	float one = 1;
	void *ws = malloc(GEMM_WORKSPACE_MIN);
	assert_non_null(ws);
	for (int type = GEMM_BF16; type <= GEMM_F16; type++)
		FOR_KERNELS(&(struct gemm){ 0 }, k)
		{
			for (int i = 0; i < COUNT; i++)
				in[i] = (uint16_t)i;
			struct gemm g = { .m = 1,
				.n = COUNT,
				.k = 1,
				.alpha = 1,
				.a = { .base = &one, .row_stride = 1 },
				.b = { .type = (enum gemm_type)type, .base = in, .row_stride = COUNT },
				.c = wide,
				.c_stride = COUNT,
				.workspace = ws,
				.workspace_bytes = GEMM_WORKSPACE_MIN };
			gemm_run_with(&g, k);
			g.c = out;
			g.c_type = (enum gemm_type)type;
			gemm_run_with(&g, k);
			for (int i = 0; i < COUNT; i++) {
				double want = load((enum gemm_type)type, in, i);
				if (isnan(want)) {
					assert_true(isnan(wide[i]) && isnan(load((enum gemm_type)type, out, i)));
					continue;
				}
				assert_true((double)wide[i] == want);
				assert_int_equal(out[i] & 0x7fff, in[i] & 0x7fff); /* 0 + -0 is 0 */
			}
		}
	free(ws);
}

/* Outputs are rounded to nearest even: near, at and beside the middle of two neighbours. */
static void outputs_round_to_nearest_even(void **state)
{
	enum { COUNT = 300 };
	float in[COUNT], one = 1;
	uint16_t out[COUNT];
	void *ws = malloc(GEMM_WORKSPACE_MIN);
	assert_non_null(ws);
	for (int type = GEMM_BF16; type <= GEMM_F16; type++) {
		for (int i = 0; i < COUNT; i++) {
			uint16_t h = (uint16_t)pick(0, type == GEMM_BF16 ? 0x7f7e : 0x7bfe);
			double low = load((enum gemm_type)type, &h, 0);
			h++;
			double high = load((enum gemm_type)type, &h, 0);
			double where[3] = { 0.5, 0.5 + 0x1p-10, 0.5 - 0x1p-10 };
			in[i] = (float)(low + (high - low) * where[i % 3]) * (i % 2 ? -1 : 1);
		}
		struct gemm g = { .m = COUNT,
			.n = 1,
			.k = 1,
			.alpha = 1,
			.a = { .base = in, .row_stride = 1 },
			.b = { .base = &one, .row_stride = 1 },
			.c_type = (enum gemm_type)type,
			.c = out,
			.c_stride = 1,
			.workspace = ws,
			.workspace_bytes = GEMM_WORKSPACE_MIN };
		uint16_t want[COUNT];
		for (int i = 0; i < COUNT; i++)
			want[i] = round_to((enum gemm_type)type, (double)in[i]);
		FOR_KERNELS(&g, k)
		{
			gemm_run_with(&g, k);
			assert_memory_equal(out, want, sizeof(out));
		}
		/* The same rounding on the way in: bf16 products of fp32 values. */
		g.bf16 = type == GEMM_BF16;
		FOR_KERNELS(&g, k)
		{
			gemm_run_with(&g, k);
			for (int i = 0; i < COUNT; i++) /* bf16 instructions take subnormals for 0 */
				if (k->unit == 1 || fabsf(in[i]) >= 0x1.02p-126f)
					assert_int_equal(out[i], want[i]);
		}
	}
	free(ws);
}

/* NaN and infinity of the inputs show in the outputs, whatever the activation. */
static void broken_values_show(void **state)
{
	float a[3] = { 1, NAN, INFINITY }, one = 1, c[3];
	void *ws = malloc(GEMM_WORKSPACE_MIN);
	assert_non_null(ws);
	for (int act = GEMM_NONE; act <= GEMM_GELU; act++) {
		struct gemm g = { .m = 3,
			.n = 1,
			.k = 1,
			.alpha = 1,
			.act = (enum gemm_act)act,
			.a = { .base = a, .row_stride = 1 },
			.b = { .base = &one, .row_stride = 1 },
			.c = c,
			.c_stride = 1,
			.workspace = ws,
			.workspace_bytes = GEMM_WORKSPACE_MIN };
		FOR_KERNELS(&g, k)
		{
			gemm_run_with(&g, k);
			assert_true(isfinite(c[0]) && isnan(c[1]) && isinf(c[2]));
		}
	}
	free(ws);
}

int main(void)
{
	random_source = check_random_start();
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_half_survives),
		cmocka_unit_test(outputs_round_to_nearest_even),
		cmocka_unit_test(broken_values_show),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 * Links, collectives and products of the known clusters against what was measured on such machines,
 * and what a collective must move whatever the machine. */
#include "tests/unit/workers/plan/scale_fixture.h"

static const double MIB = 1024.0 * 1024, GB = 1e9;

static void test_rate_follows_the_measured_points(void **state)
{
	struct scale_cluster c;
	scale_cluster_known(SCALE_H200, 8, &c);
	const struct {
		double mib, rate;
	} measured[] = { { 1, 40 }, { 16, 220 }, { 64, 347 }, { 512, 450 }, { 16384, 482 } };
	for (size_t i = 0; i < ARRAY_LEN(measured); i++)
		assert_near(scale_link_rate(&c.inside, measured[i].mib * MIB), measured[i].rate * GB, 1e-9);
	assert_near(scale_link_rate(&c.inside, 32 * MIB), (220 + 347) / 2.0 * GB, 1e-9);
	assert_near(scale_link_rate(&c.inside, 1e15), 482 * GB, 1e-9);
	/* Below the first point the time stays. */
	assert_near(MIB / scale_link_rate(&c.inside, MIB),
		0.01 * MIB / scale_link_rate(&c.inside, 0.01 * MIB), 1e-9);
	(void)state;
}

/* (n-1)/n of the buffer for a gather or a scatter, twice that for an all-reduce. */
static void test_bytes_of_a_collective(void **state)
{
	struct scale_cluster c;
	scale_cluster_known(SCALE_H200, 8, &c);
	double bytes = 512 * MIB, rate = 450 * GB;
	for (int n = 2; n <= 8; n *= 2) {
		double share = (n - 1.0) / n;
		assert_near(
			scale_collective_s(&c, SCALE_ALL_GATHER, bytes, n, n), share * bytes / rate, 1e-9);
		assert_near(
			scale_collective_s(&c, SCALE_REDUCE_SCATTER, bytes, n, n), share * bytes / rate, 1e-9);
		assert_near(
			scale_collective_s(&c, SCALE_ALL_REDUCE, bytes, n, n), 2 * share * bytes / rate, 1e-9);
	}
	assert_true(scale_collective_s(&c, SCALE_ALL_REDUCE, bytes, 1, 1) == 0);
	(void)state;
}

/* Two machines: eight ranks of each use eight adapters, one rank its own. */
static void test_adapters_are_shared(void **state)
{
	struct scale_cluster c;
	scale_cluster_known(SCALE_H100, 16, &c);
	double bytes = 16 * GB;
	double eight = scale_collective_s(&c, SCALE_ALL_GATHER, bytes, 16, 8);
	double one = scale_collective_s(&c, SCALE_ALL_GATHER, bytes, 2, 1);
	assert_near(eight, 15.0 / 16 * bytes / (8 * 47 * GB), 0.01);
	assert_near(one, 1.0 / 2 * bytes / (47 * GB), 0.01);
	(void)state;
}

/* nccl#1229: reduce-scatter over 4 machines of H100 360 GB/s, over 128 260. */
static void test_rates_fade_with_machines(void **state)
{
	struct scale_cluster c;
	scale_cluster_known(SCALE_H100, 1024, &c);
	double bytes = 256 * GB; /* so many that latency is nothing */
	double few = scale_collective_s(&c, SCALE_REDUCE_SCATTER, bytes, 32, 8) * 32 / 31;
	double many = scale_collective_s(&c, SCALE_REDUCE_SCATTER, bytes, 1024, 8) * 1024 / 1023;
	assert_near(few / many, 260.0 / 360, 0.02);
	(void)state;
}

/* A ring's latency grows with its members, a tree's with their logarithm. */
static void test_latency(void **state)
{
	struct scale_cluster c;
	scale_cluster_known(SCALE_H100, 4096, &c);
	double gather = scale_collective_s(&c, SCALE_ALL_GATHER, 8, 4096, 8);
	double reduce = scale_collective_s(&c, SCALE_ALL_REDUCE, 8, 4096, 8);
	assert_near(gather, 511 * 14e-6 + 3584 * 3.4e-6 + 8.4e-6, 0.01);
	assert_true(reduce < gather / 20);
	(void)state;
}

/* TFLOP/s of bf16 products of an H100, measured for XLA's cost model (M, N, K). */
static void test_products_as_measured(void **state)
{
	struct scale_cluster c;
	scale_cluster_known(SCALE_H100, 8, &c);
	const struct {
		double m, n, k, measured, within;
	} products[] = {
		{ 2048, 2048, 4096, 738, 0.10 },
		{ 4096, 4096, 1024, 677, 0.10 },
		{ 512, 4096, 4096, 644, 0.10 },
		{ 2048, 1024, 4096, 653, 0.10 },
		{ 1024, 4096, 2048, 634, 0.10 },
		{ 4096, 2048, 1024, 593, 0.10 },
		{ 1024, 1024, 4096, 470, 0.30 },
		{ 2048, 512, 4096, 451, 0.30 },
		{ 512, 2048, 512, 143, 0.30 },
		{ 2048, 1024, 256, 142, 0.30 },
		{ 512, 512, 1024, 71, 0.30 },
	};
	for (size_t i = 0; i < ARRAY_LEN(products); i++) {
		double m = products[i].m, n = products[i].n, k = products[i].k, flops = 2 * m * n * k;
		double s = scale_product_s(&c.device, SCALE_BF16, flops, 2 * (m * k + k * n + m * n), 1);
		print_message("%5.0f x %5.0f x %5.0f: %.0f of %.0f TFLOP/s\n", m, n, k, flops / s / 1e12,
			products[i].measured);
		assert_near(flops / s / 1e12, products[i].measured, products[i].within);
	}
	/* Two rows: the weights' bytes decide. */
	double thin = scale_product_s(&c.device, SCALE_BF16, 2e9, 2e9, 0);
	assert_near(thin, 2e9 / (3350e9 * 0.9), 1e-9);
	(void)state;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rate_follows_the_measured_points),
		cmocka_unit_test(test_bytes_of_a_collective),
		cmocka_unit_test(test_adapters_are_shared),
		cmocka_unit_test(test_rates_fade_with_machines),
		cmocka_unit_test(test_latency),
		cmocka_unit_test(test_products_as_measured),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}

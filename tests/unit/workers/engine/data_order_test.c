/* SPDX-License-Identifier: Apache-2.0
 * The order of samples: each once an epoch, different between epochs and seeds, well mixed. */
#include "tests/unit/workers/engine/data_fixture.h"

static void check_epochs(int64_t n, uint64_t seed)
{
	unsigned char *seen = calloc((size_t)n, 1);
	for (int64_t epoch = 0; epoch < 3; epoch++) {
		for (int64_t i = 0; i < n; i++) {
			int64_t s = data_sample_at(n, seed, true, epoch * n + i);
			assert_true(s >= 0 && s < n);
			assert_int_equal(seen[s], epoch);
			seen[s]++;
		}
	}
	free(seen);
}

static void test_each_once(void **state)
{
	for (int64_t n = 1; n <= 70; n++)
		check_epochs(n, 42);
	const int64_t sizes[] = { 255, 256, 257, 1023, 4096, 4097, 60000 };
	for (size_t i = 0; i < ARRAY_LEN(sizes); i++)
		check_epochs(sizes[i], 7);
}

static void test_orders_differ(void **state)
{
	enum { N = 1000 };
	int same_epoch = 0, same_seed = 0, same_place = 0;
	for (int64_t i = 0; i < N; i++) {
		int64_t a = data_sample_at(N, 1, true, i);
		same_epoch += a == data_sample_at(N, 1, true, N + i);
		same_seed += a == data_sample_at(N, 2, true, i);
		same_place += a == i;
	}
	/* One on average in each; 12 has a chance below 1e-9. */
	assert_true(same_epoch < 12 && same_seed < 12 && same_place < 12);
}

/* Neighbours stay no neighbours, and halves of the epoch see both halves of the data. */
static void test_mixed(void **state)
{
	enum { N = 10000 };
	int near = 0, low = 0;
	for (int64_t i = 0; i < N; i++) {
		int64_t a = data_sample_at(N, 3, true, i), b = data_sample_at(N, 3, true, i + 1);
		near += llabs(a - b) < 100;
		low += i < N / 2 && a < N / 2;
	}
	assert_in_range(near, 130, 270); /* 2 % expected */
	assert_in_range(low, N / 4 - 250, N / 4 + 250);
}

static void test_file_order(void **state)
{
	for (int64_t i = 0; i < 20; i++)
		assert_int_equal(data_sample_at(7, 42, false, i), i % 7);
}

static void test_huge(void **state)
{
	int64_t n = INT64_C(3) << 40;
	int high = 0;
	for (int64_t i = 0; i < 1000; i++) {
		int64_t s = data_sample_at(n, 42, true, n * 5 + i * 12345);
		assert_true(s >= 0 && s < n);
		high += s >= n / 2;
	}
	assert_in_range(high, 400, 600);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_each_once),
		cmocka_unit_test(test_orders_differ),
		cmocka_unit_test(test_mixed),
		cmocka_unit_test(test_file_order),
		cmocka_unit_test(test_huge),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}

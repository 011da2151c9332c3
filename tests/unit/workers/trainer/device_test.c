/* SPDX-License-Identifier: Apache-2.0
 * Which backend a trainer takes, in a build without CUDA, and which of several GPUs a rank takes.
 */
#include "workers/trainer/device.h"

#include "tests/support/check.h"

#include <stdlib.h>

#define VISIBLE "CUDA_VISIBLE_DEVICES"

static void words(void **state)
{
	static const struct {
		const char *word;
		enum device_kind kind;
	} rows[] = { { NULL, DEVICE_AUTO }, { "auto", DEVICE_AUTO }, { "cpu", DEVICE_CPU },
		{ "cuda", DEVICE_CUDA } };
	static const char *const wrong[] = { "", "CPU", "cuda:0", "gpu" };
	struct err err = { 0 };
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		enum device_kind kind = DEVICE_CPU;
		assert_int_equal(device_parse(rows[i].word, "--device", &kind, &err), 0);
		assert_int_equal(kind, rows[i].kind);
	}
	for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
		enum device_kind kind = DEVICE_CUDA;
		assert_int_equal(device_parse(wrong[i], "--device", &kind, &err), ERR_INVALID_VALUE);
		assert_string_equal(err.param, "--device");
		assert_int_equal(kind, DEVICE_CUDA);
	}
}

static void without_a_gpu(void **state)
{
	struct err err = { 0 };
	enum device_kind kind = DEVICE_CUDA;
	assert_int_equal(device_choose(DEVICE_AUTO, &kind, &err), 0);
	assert_int_equal(kind, DEVICE_CPU);
	assert_int_equal(device_choose(DEVICE_CPU, &kind, &err), 0);
	assert_int_equal(kind, DEVICE_CPU);
	assert_int_equal(device_choose(DEVICE_CUDA, &kind, &err), ERR_UNAVAILABLE);
	assert_non_null(strstr(err.message, "without the CUDA toolkit"));
	assert_false(device_is_apart(DEVICE_CPU));
}

static void expect_taken(enum device_kind kind, const char *list, int rank, const char *want)
{
	struct err err = { 0 };
	if (list != NULL)
		setenv(VISIBLE, list, 1);
	else
		unsetenv(VISIBLE);
	assert_int_equal(device_take(kind, rank, &err), 0);
	if (want == NULL)
		assert_null(getenv(VISIBLE));
	else
		assert_string_equal(getenv(VISIBLE), want);
}

static void each_rank_takes_one(void **state)
{
	expect_taken(DEVICE_CUDA, NULL, 0, "0");
	expect_taken(DEVICE_AUTO, NULL, 3, "3");
	expect_taken(DEVICE_CUDA, "2,5", 1, "5");
	expect_taken(DEVICE_CUDA, "GPU-5f1c,MIG-77aa", 0, "GPU-5f1c");
	expect_taken(DEVICE_CUDA, "GPU-5f1c,MIG-77aa", 1, "MIG-77aa");
	/* There are no more: CUDA then says that no device is visible. */
	expect_taken(DEVICE_CUDA, "2,5", 2, "");
	expect_taken(DEVICE_CUDA, "", 0, "");
	expect_taken(DEVICE_CUDA, "2,", 7, "");
	expect_taken(DEVICE_CPU, NULL, 1, NULL);
	expect_taken(DEVICE_CPU, "2,5", 1, "2,5");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(words),
		cmocka_unit_test(without_a_gpu),
		cmocka_unit_test(each_rank_takes_one),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 * Holds what a mesh trained to against what one rank alone did, and its ranks against each other. */
#pragma once

#include "tests/parallel/parallel_fixture.h"

static inline double compare_relative(double a, double b)
{
	double size = fmax(fabs(a), fabs(b));
	return size > 0 ? fabs(a - b) / size : 0;
}

/* What twenty steps may make of sums in another order. */
struct compare_bounds {
	double loss, norm, weights;
};
static const struct compare_bounds compare_bounds_of[] = {
	[SPEC_FP32] = { 1e-6, 1e-5, 1e-3 },
	[SPEC_BF16] = { 2e-2, 2e-1, 5e-2 },
	[SPEC_FP16] = { 2e-3, 5e-2, 2e-2 },
};

static inline void compare_steps(const char *name, const struct run_result *alone,
	const struct run_result *together, int size, const struct compare_bounds *b)
{
	for (int i = 0; i < RUN_STEPS; i++) {
		const struct run_step *want = &alone->step[0][i], *got = &together->step[0][i];
		if (compare_relative(want->loss, got->loss) > b->loss)
			fail_msg(
				"%s: step %d: loss %.9g, one rank has %.9g", name, i + 1, got->loss, want->loss);
		if (compare_relative(want->norm, got->norm) > b->norm)
			fail_msg("%s: step %d: gradient norm %.9g, one rank has %.9g", name, i + 1, got->norm,
				want->norm);
		assert_true(want->learning_rate == got->learning_rate);
		assert_int_equal(want->samples, got->samples);
		assert_int_equal(want->tokens, got->tokens);
		for (int r = 1; r < size; r++)
			if (memcmp(got, &together->step[r][i], sizeof(*got)) != 0)
				fail_msg("%s: step %d: rank %d tells another step than rank 0", name, i + 1, r);
	}
}

static inline void compare_weights(const char *name, const struct run_result *alone,
	const struct run_result *together, const struct compare_bounds *b)
{
	double diff = 0, size = 0;
	assert_int_equal(alone->params_count, together->params_count);
	if (together->owned != together->params_count)
		fail_msg("%s: the ranks own %lld of %lld elements", name, (long long)together->owned,
			(long long)together->params_count);
	for (int64_t i = 0; i < alone->params_count; i++) {
		diff += pow((double)alone->params[i] - (double)together->params[i], 2);
		size += pow((double)alone->params[i], 2);
	}
	if (!(sqrt(diff / size) <= b->weights))
		fail_msg("%s: the weights differ by %.3g", name, sqrt(diff / size));
}

/* Ranks of the data axis have the same weights below ZeRO 3, those of the tensor axis what is not cut;
 * and what the plan says of memory is so. */
static inline void compare_ranks(
	const char *name, const struct run_result *together, int size, int tensor)
{
	for (int r = 0; r < size; r++) {
		const int first = r % tensor, neighbour = r - r % tensor;
		assert_int_equal(together->plan_bytes[r], together->memory_bytes[r]);
		if (memcmp(together->weights[first], together->weights[r],
				(size_t)together->weights_bytes[r]) != 0)
			fail_msg("%s: rank %d has other weights than rank %d", name, r, first);
		if (together->alike[r] != together->alike[neighbour])
			fail_msg("%s: rank %d has other values than rank %d of what both have whole", name, r,
				neighbour);
	}
}

static inline void compare_evaluation(const char *name, const struct run_result *alone,
	const struct run_result *together, int size, const struct compare_bounds *b)
{
	const struct engine_evaluation *want = &alone->evaluation[0], *got = &together->evaluation[0];
	if (compare_relative(want->loss, got->loss) > 10 * b->loss)
		fail_msg("%s: evaluation: loss %.9g, one rank has %.9g", name, got->loss, want->loss);
	assert_int_equal(want->samples, got->samples);
	for (int r = 1; r < size; r++)
		assert_memory_equal(got, &together->evaluation[r], sizeof(*got));
}

/* Ranks that share layers (tensor) are neighbours. */
static inline void compare(const char *name, const struct run_result *alone,
	const struct run_result *together, int size, int tensor, const struct compare_bounds *b)
{
	compare_steps(name, alone, together, size, b);
	compare_weights(name, alone, together, b);
	compare_ranks(name, together, size, tensor);
	compare_evaluation(name, alone, together, size, b);
}

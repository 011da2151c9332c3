/* SPDX-License-Identifier: Apache-2.0
 * Holds what a mesh has trained against what one rank has. Included by the tests of meshes. */
#pragma once

#include "tests/parallel/parallel_fixture.h"

static struct run_result *alone, *together;

static inline double relative(double a, double b)
{
	double size = fmax(fabs(a), fabs(b));
	return size > 0 ? fabs(a - b) / size : 0;
}

/* What twenty steps may make of sums in another order. */
struct bounds {
	double loss, norm, weights;
};
static const struct bounds bounds_of[] = {
	[SPEC_FP32] = { 1e-6, 1e-5, 1e-3 },
	[SPEC_BF16] = { 2e-2, 2e-1, 5e-2 },
	[SPEC_FP16] = { 2e-3, 5e-2, 2e-2 },
};

static inline void compare_steps(const char *name, int size, const struct bounds *b)
{
	for (int i = 0; i < run_steps(); i++) {
		const struct run_step *want = &alone->step[0][i], *got = &together->step[0][i];
		if (relative(want->loss, got->loss) > b->loss)
			fail_msg(
				"%s: step %d: loss %.9g, one rank has %.9g", name, i + 1, got->loss, want->loss);
		if (relative(want->norm, got->norm) > b->norm)
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

static inline void compare_weights(const char *name, const struct bounds *b)
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

/* A parameter that several ranks have whole is the same on all; and what the plan says of memory.
 */
static inline void compare_ranks(const char *name, int size)
{
	for (int r = 0; r < size; r++)
		assert_int_equal(together->plan_bytes[r], together->memory_bytes[r]);
	for (int i = 0; i < RUN_PARAMS_MAX; i++)
		for (int r = 0; r < size; r++)
			for (int other = r + 1; other < size; other++) {
				const struct run_weight *a = &together->weight[r][i],
										*b = &together->weight[other][i];
				bool same = a->bytes > 0 && b->bytes > 0 && a->cut_first == b->cut_first;
				if (same &&
					(a->bytes != b->bytes ||
						memcmp(&together->weights[r][a->at], &together->weights[other][b->at],
							(size_t)a->bytes) != 0))
					fail_msg("%s: ranks %d and %d have other weights in parameter %d", name, r,
						other, i);
			}
}

static inline void compare_evaluation(const char *name, int size, const struct bounds *b)
{
	const struct engine_evaluation *want = &alone->evaluation[0], *got = &together->evaluation[0];
	if (relative(want->loss, got->loss) > 10 * b->loss)
		fail_msg("%s: evaluation: loss %.9g, one rank has %.9g", name, got->loss, want->loss);
	assert_int_equal(want->samples, got->samples);
	for (int r = 1; r < size; r++)
		assert_memory_equal(got, &together->evaluation[r], sizeof(*got));
}

static inline void compare_runs(const char *name, int size, const struct bounds *b)
{
	compare_steps(name, size, b);
	compare_weights(name, b);
	compare_ranks(name, size);
	compare_evaluation(name, size, b);
}

/* A case by its files: made, trained on meshes of the test's, removed. */
static inline void compare_case(
	struct job_spec spec, const char *name, void (*meshes)(struct fixture *f, const char *name))
{
	struct fixture f = { .spec = spec };
	fixture_files(&f);
	meshes(&f, name);
	for (int i = 0; i < f.files; i++)
		unlink(f.file[i].path);
}

static inline void compare_begin(void)
{
	alone = fixture_shared(sizeof(*alone));
	together = fixture_shared(sizeof(*together));
}

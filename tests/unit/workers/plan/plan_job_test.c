/* SPDX-License-Identifier: Apache-2.0
 * The work of a job is the sum of what its ranks do, on every mesh: shares of layers, heads, the
 * vocabulary and the batch; and that of one rank's plan. */
#include "tests/unit/workers/plan/scale_fixture.h"
#include "workers/plan/plan_job.h"

#include <time.h>

enum { BATCH = 16 };

static struct plan *compile(const struct job_spec *s, int rank)
{
	struct plan *p = NULL;
	if (plan_compile_rank(s, NULL, rank, &p, &err))
		fail_msg("%s (%s)", err.message, err.param);
	return p;
}

static void check(struct job_spec s, struct spec_parallel parallel, double whole)
{
	int ranks = (int)(parallel.data * parallel.tensor * parallel.pipeline);
	double sum = 0;
	s.parallel = parallel;
	for (int r = 0; r < ranks; r++) {
		struct plan *p = compile(&s, r);
		struct plan_job job;
		assert_int_equal(plan_job_of(p, &s, &job, &err), 0);
		assert_near(job.flops_per_step, whole, 1e-12);
		assert_near(job.flops_per_sample, whole / BATCH, 1e-12);
		assert_near(job.flops_per_token, whole / BATCH / (double)p->sequence_length, 1e-12);
		sum += p->flops_per_step;
		plan_destroy(p);
	}
	assert_near(sum, whole, 1e-12);
}

static void test_the_sum_of_ranks(void **state)
{
	static const struct spec_parallel meshes[] = {
		{ .data = 1, .tensor = 1, .pipeline = 1 },
		{ .data = 4, .tensor = 1, .pipeline = 1, .zero_stage = 3 },
		{ .data = 1, .tensor = 4, .pipeline = 1 },
		{ .data = 1, .tensor = 1, .pipeline = 3 },
		{ .data = 2, .tensor = 2, .pipeline = 2, .interleave = 2, .zero_stage = 1 },
	};
	struct job_spec specs[] = { fixture_gpt2(5, 8, 32, 16, 263),
		fixture_llama(5, 8, 4, 32, 48, 16, 263), fixture_gpt2(5, 8, 32, 16, 263) };
	specs[2].checkpointing = SPEC_FULL;
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(specs); i++) {
		specs[i].hyper.batch_size = BATCH;
		specs[i].hyper.micro_batch_size = 2;
		struct plan *one = compile(&specs[i], 0);
		double whole = one->flops_per_step;
		plan_destroy(one);
		for (size_t k = 0; k < ARRAY_LEN(meshes); k++)
			check(specs[i], meshes[k], whole);
	}
}

/* A micro-batch that nobody has named is what a rank has of the batch. */
static void test_of_any_family(void **state)
{
	struct job_spec s = fixture_cnn();
	struct plan_job job;
	(void)state;
	s.hyper.batch_size = BATCH;
	s.hyper.micro_batch_size = 0;
	struct plan *one = compile(&s, 0);
	s.parallel = (struct spec_parallel){ .data = 4 };
	struct plan *p = compile(&s, 3);
	assert_int_equal(plan_job_of(p, &s, &job, &err), 0);
	assert_near(job.flops_per_step, one->flops_per_step, 1e-12);
	assert_near(job.flops_per_sample, one->flops_per_sample, 1e-12);
	assert_near(4 * p->flops_per_step, one->flops_per_step, 1e-12);
	plan_destroy(p);
	plan_destroy(one);
}

/* The whole of what no rank could have. */
static void test_of_the_largest(void **state)
{
	struct job_spec s = scale_fixture_spec("405b", 1024);
	struct plan_job job;
	clock_t begin = clock();
	(void)state;
	s.hyper.micro_batch_size = 1;
	s.parallel = (struct spec_parallel){ .data = 4, .tensor = 8, .pipeline = 16 };
	struct plan *p = compile(&s, 0);
	assert_int_equal(plan_job_of(p, &s, &job, &err), 0);
	print_message("%.4g FLOPs a step, %.3f s\n", job.flops_per_step,
		(double)(clock() - begin) / CLOCKS_PER_SEC);
	/* The field's 6 a parameter and token, and attention beside it. */
	double field = 6 * 405e9 * 8192 * 1024;
	assert_true(job.flops_per_step > field && job.flops_per_step < 1.2 * field);
	plan_destroy(p);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_the_sum_of_ranks),
		cmocka_unit_test(test_of_any_family), cmocka_unit_test(test_of_the_largest) };
	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 * What "auto" becomes: always a mesh that the plan accepts and the device holds, whatever axes this
 * version has; what was given stays; and where nothing can be chosen, the reason. */
#include "tests/unit/workers/plan/scale_fixture.h"
#include "workers/plan/scale_choose.h"
#include "workers/plan/scale_type.h"

#include <time.h>

static struct scale_chosen chosen;

static const struct spec_open all_open = {
	.mesh = true, .micro_batch = true, .checkpointing = true, .micro_batch_most = 8
};

static struct job_spec on_devices(struct job_spec s, int64_t count)
{
	s.device_count = count;
	s.parallel = (struct spec_parallel){ .data = count, .tensor = 1, .pipeline = 1 };
	s.hyper.micro_batch_size = 1;
	return s;
}

static struct scale_cluster cluster(const char *type, int devices)
{
	struct scale_cluster c;
	scale_type_cluster(&(struct scale_type){ .name = type }, devices, &c);
	return c;
}

static bool accepted(const struct job_spec *s, int rank, int64_t *ret_bytes)
{
	struct plan *p = NULL;
	struct err ignored = { 0 };
	if (plan_compile_rank(s, NULL, rank, &p, &ignored))
		return false;
	*ret_bytes = p->total_bytes;
	plan_destroy(p);
	return true;
}

/* Every stage's plan is there, and fits. */
static void assert_runs(const struct job_spec *s, const struct scale_cluster *c)
{
	const struct spec_parallel *m = &s->parallel;
	assert_int_equal(m->data * m->tensor * m->pipeline, s->device_count);
	assert_int_equal(s->hyper.batch_size % (m->data * s->hyper.micro_batch_size), 0);
	for (int64_t stage = 0; stage < m->pipeline; stage++) {
		int64_t bytes = 0;
		assert_true(accepted(s, (int)(stage * m->data * m->tensor), &bytes));
		assert_true((double)bytes <= c->device.memory_bytes);
	}
}

static void choose(struct job_spec *s, const struct spec_open *open, const struct scale_cluster *c)
{
	clock_t begin = clock();
	if (scale_choose(s, open, c, &chosen, &err))
		fail_msg("%s (%s)", err.message, err.param);
	print_message("data %lld ZeRO-%lld tensor %lld pipeline %lld/%lld micro %lld checkpointing %d, "
				  "%.2f s: %s\n",
		(long long)chosen.parallel.data, (long long)chosen.parallel.zero_stage,
		(long long)chosen.parallel.tensor, (long long)chosen.parallel.pipeline,
		(long long)chosen.parallel.interleave, (long long)s->hyper.micro_batch_size,
		s->checkpointing, (double)(clock() - begin) / CLOCKS_PER_SEC, chosen.reason);
	assert_memory_equal(&chosen.parallel, &s->parallel, sizeof(chosen.parallel));
	assert_runs(s, c);
	assert_non_null(strstr(chosen.reason, "fastest that fits"));
}

/* The field's rule, whatever axes there are: below and at 7B by data alone, ZeRO as memory asks. */
static void test_small_models_are_shared_by_data(void **state)
{
	static const char *const names[] = { "124m", "1.5b", "7b" };
	static const int devices[] = { 8, 64 };
	for (size_t n = 0; n < ARRAY_LEN(names); n++)
		for (size_t i = 0; i < ARRAY_LEN(devices); i++) {
			struct scale_cluster c = cluster("h100-80gb", devices[i]);
			struct job_spec s =
				on_devices(scale_fixture_spec(names[n], INT64_C(16) * devices[i]), devices[i]);
			choose(&s, &all_open, &c);
			assert_int_equal(s.parallel.data, devices[i]);
			assert_true(s.hyper.micro_batch_size <= 8);
			if (strcmp(names[n], "7b") == 0)
				assert_true(s.parallel.zero_stage >= 1); /* 121 GB without */
		}
	(void)state;
}

/* An axis that the plan refuses is not chosen; one that it has may be. */
static void test_the_plan_is_asked(void **state)
{
	struct scale_cluster c = cluster("h100-80gb", 64);
	struct job_spec s = on_devices(scale_fixture_spec("70b", 64 * 4), 64);
	struct job_spec tensor = s, stages = s;
	int64_t bytes = 0;
	tensor.parallel = (struct spec_parallel){ .data = 32, .tensor = 2, .pipeline = 1 };
	stages.parallel = (struct spec_parallel){ .data = 32, .tensor = 1, .pipeline = 2 };
	bool has_tensor = accepted(&tensor, 0, &bytes), has_stages = accepted(&stages, 0, &bytes);
	choose(&s, &all_open, &c);
	assert_true(s.parallel.zero_stage >= 1 || s.parallel.data == 1);
	if (!has_tensor)
		assert_int_equal(s.parallel.tensor, 1);
	if (!has_stages)
		assert_int_equal(s.parallel.pipeline, 1);
	if (has_tensor && has_stages)
		assert_true(s.parallel.tensor > 1 && s.parallel.tensor <= 8);
	(void)state;
}

static void test_what_is_given_stays(void **state)
{
	struct scale_cluster c = cluster("h100-80gb", 8);
	struct spec_open open = { .mesh = true };
	struct job_spec s = on_devices(scale_fixture_spec("1.5b", 64), 8);
	s.hyper.micro_batch_size = 2;
	s.checkpointing = SPEC_FULL;
	choose(&s, &open, &c);
	assert_int_equal(s.hyper.micro_batch_size, 2);
	assert_int_equal(s.checkpointing, SPEC_FULL);
	(void)state;
}

static void test_cores_of_a_machine(void **state)
{
	struct scale_cluster c = cluster("cpu-dev", 2);
	struct job_spec s = on_devices(fixture_gpt2(2, 2, 64, 64, 256), 2);
	s.hyper.batch_size = 8;
	choose(&s, &all_open, &c);
	assert_int_equal(s.parallel.data, 2);
	struct job_spec cnn = on_devices(fixture_cnn(), 2);
	cnn.hyper.batch_size = 8;
	choose(&cnn, &all_open, &c);
	assert_int_equal(cnn.parallel.data, 2);
	(void)state;
}

static void test_what_the_data_decides_is_shared_by_data(void **state)
{
	struct scale_cluster c = cluster("cpu-dev", 2);
	struct job_spec s = on_devices(fixture_cnn(), 2);
	s.hyper.batch_size = 8;
	s.model.in_channels = s.model.in_height = s.model.in_width = 0;
	assert_int_equal(scale_choose(&s, &all_open, &c, &chosen, &err), 0);
	assert_int_equal(chosen.parallel.data, 2);
	assert_non_null(strstr(chosen.reason, "by data"));
	s.hyper.batch_size = 7;
	assert_int_equal(scale_choose(&s, &all_open, &c, &chosen, &err), ERR_INVALID_VALUE);
	assert_string_equal(err.param, "$.hyperparameters.batch_size");
	assert_null(strstr(err.message, "parallelism.data")); /* that nobody gave */
	(void)state;
}

static void test_no_mesh(void **state)
{
	struct scale_cluster c = cluster("cpu-dev", 2);
	struct job_spec s = on_devices(fixture_cnn(), 2);
	s.hyper.batch_size = 7;
	assert_int_equal(scale_choose(&s, &all_open, &c, &chosen, &err), ERR_INVALID_VALUE);
	assert_string_equal(err.param, "$.hyperparameters.batch_size");
	assert_null(strstr(err.message, "micro_batch_size"));               /* that nobody gave */
	assert_non_null(strstr(err.message, "$.parallelism is left open")); /* nor the mesh */
	/* None fits: the smallest is told, and taken by those who have more memory. */
	c = cluster("h100-80gb", 8);
	s = on_devices(scale_fixture_spec("405b", 64), 8);
	assert_int_equal(scale_choose(&s, &all_open, &c, &chosen, &err), ERR_PLAN_TOO_LARGE);
	assert_non_null(strstr(err.message, "no mesh fits"));
	assert_non_null(strstr(chosen.reason, "none fits"));
	assert_int_equal(chosen.parallel.data * chosen.parallel.tensor * chosen.parallel.pipeline, 8);
	assert_memory_equal(&chosen.parallel, &s.parallel, sizeof(s.parallel));
	(void)state;
}

/* The catalogue's figures count before those of the name; names that nobody knows have no limit. */
static void test_types(void **state)
{
	struct scale_cluster a, b;
	scale_type_cluster(
		&(struct scale_type){ .name = "cpu-dev", .memory_bytes = 1e6, .machine_devices = 3 }, 6,
		&a);
	assert_true(a.device.memory_bytes == 1e6 && a.machine_devices == 3 && a.devices == 6);
	scale_type_cluster(&(struct scale_type){ .name = "h100-80gb", .fp32_flops = 1 }, 16, &a);
	scale_cluster_known(SCALE_H100, 16, &b);
	assert_true(a.device.flops[SCALE_FP32] == b.device.flops[SCALE_FP32]);
	assert_true(a.inside.point[4].bytes_s == b.inside.point[4].bytes_s);
	scale_type_cluster(&(struct scale_type){ .name = "rtx-3090", .fp32_flops = 2e12 }, 2, &a);
	assert_true(a.device.flops[SCALE_FP32] == 2e12);
	assert_true(a.device.flops[SCALE_TF32] == 2e12); /* nothing is said of it */
	scale_type_cluster(
		&(struct scale_type){ .name = "a100-slice", .fp32_flops = 7e12, .tf32_flops = 6e13 }, 2,
		&a);
	assert_true(a.device.flops[SCALE_FP32] == 7e12 && a.device.flops[SCALE_TF32] == 6e13);
	assert_true(a.inside.point[1].bytes_s < b.inside.point[4].bytes_s);
	scale_type_cluster(&(struct scale_type){ .name = "mine" }, 2, &a);
	assert_true(a.device.memory_bytes > 1e15 && a.machine_devices > 0);
	(void)state;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_small_models_are_shared_by_data),
		cmocka_unit_test(test_the_plan_is_asked),
		cmocka_unit_test(test_what_is_given_stays),
		cmocka_unit_test(test_cores_of_a_machine),
		cmocka_unit_test(test_what_the_data_decides_is_shared_by_data),
		cmocka_unit_test(test_no_mesh),
		cmocka_unit_test(test_types),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}

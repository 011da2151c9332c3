/* SPDX-License-Identifier: Apache-2.0
 * The search knows no rule of thumb; that the field's come out of it is what is tested here, over
 * the usual models on clusters of 8 to 4,096 H100, and that it has tried what it should. */
#include "tests/support/check.h"
#include "tests/unit/workers/plan/scale_fixture.h"

static struct scale_search found;

/* At least 8,192 tokens for each device: with less, no mesh of thousands of devices computes much.
 */
static struct scale_model *model_for(const char *name, int64_t batch_tokens, int devices)
{
	struct job_spec s = scale_fixture_spec(name, 1);
	int64_t t = s.data.sequence_length, least = INT64_C(8192) * devices;
	s.hyper.batch_size = (batch_tokens > least ? batch_tokens : least) / t;
	return scale_fixture_model(&s);
}

static const struct scale_choice *best_of(
	const char *name, int64_t batch_tokens, int devices, int want)
{
	struct scale_cluster c;
	scale_cluster_known(SCALE_H100, devices, &c);
	struct scale_model *m = model_for(name, batch_tokens, devices);
	clock_t begin = clock();
	int rc = scale_search(m, &c, &found, &err);
	double took_s = (double)(clock() - begin) / CLOCKS_PER_SEC;
	const struct scale_choice *b = &found.choice[0];
	print_message("%4s on %4d: data %4d ZeRO-%d tensor %d pipeline %2d/%d micro %lld, %.0f GB, MFU "
				  "%.1f %%; %lld meshes, %.3f s\n",
		name, devices, b->mesh.data, b->mesh.zero, b->mesh.tensor, b->mesh.pipeline,
		b->mesh.interleave, (long long)b->mesh.micro_batch, b->cost.memory_bytes / 1e9,
		100 * b->cost.mfu, (long long)found.tried, took_s);
	assert_int_equal(rc, want);
	assert_true(took_s < 10); /* 0.1 s on one core; the bound is for sanitizers on a busy one */
	scale_model_destroy(m);
	return b;
}

static const int sizes[] = { 8, 64, 512, 4096 };
static const int64_t MI = 1024 * 1024;

/* Below 7B: data parallel alone, with ZeRO as the memory asks for it. At 4,096 devices the rings
 * are so long that from 1.5B a second stage pays. */
static void test_small_models_are_split_over_data(void **state)
{
	const char *const names[] = { "124m", "1.5b", "7b" };
	const int64_t tokens[] = { MI / 2, MI, 4 * MI };
	for (size_t n = 0; n < ARRAY_LEN(names); n++)
		for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
			const struct scale_choice *b = best_of(names[n], tokens[n], sizes[i], 0);
			assert_int_equal(b->mesh.tensor, 1);
			if (sizes[i] < 4096)
				assert_int_equal(b->mesh.pipeline, 1);
			assert_true(b->mesh.pipeline <= 2);
			assert_true(b->mesh.zero <= 1);
		}
	/* 7B needs 121 GB without ZeRO. */
	struct scale_cluster c;
	scale_cluster_known(SCALE_H100, 8, &c);
	struct scale_model *m = model_for("7b", 4 * MI, 8);
	struct scale_mesh plain = scale_fixture_mesh(8, 1, 1);
	assert_false(scale_fixture_cost(m, &c, &plain).fits);
	scale_model_destroy(m);
	(void)state;
}

/* 13B is on the border: data with more ZeRO, or two stages. 70B does not go by data alone. */
static void test_middle_models_are_mixtures(void **state)
{
	for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
		const struct scale_choice *b = best_of("13b", 4 * MI, sizes[i], 0);
		assert_true(b->mesh.tensor * b->mesh.pipeline <= 2);
		assert_true(b->mesh.data > 1 && b->mesh.zero >= 1);
	}
	for (size_t i = 1; i < ARRAY_LEN(sizes); i++) {
		const struct scale_choice *b = best_of("70b", 4 * MI, sizes[i], 0);
		assert_true(b->mesh.tensor > 1 && b->mesh.tensor <= 8);
		assert_true(b->mesh.data > 1);
	}
	(void)state;
}

static void test_large_models_take_all_three(void **state)
{
	for (size_t i = 2; i < ARRAY_LEN(sizes); i++) {
		const struct scale_choice *b = best_of("405b", 16 * MI, sizes[i], 0);
		assert_true(b->mesh.data > 1 && b->mesh.tensor > 1 && b->mesh.pipeline > 1);
		assert_int_equal(b->mesh.tensor, 8); /* a machine, and not beyond it */
	}
	(void)state;
}

static const struct scale_choice *pair(int tensor, int pipeline)
{
	for (int i = 0; i < found.choice_count; i++)
		if (found.choice[i].mesh.tensor == tensor && found.choice[i].mesh.pipeline == pipeline)
			return &found.choice[i];
	fail_msg("no choice has tensor %d and pipeline %d", tensor, pipeline);
	return NULL;
}

static void assert_says(const struct scale_choice *c, const char *words)
{
	print_message("  tensor %d pipeline %d: %s\n", c->mesh.tensor, c->mesh.pipeline, c->reason);
	if (!strstr(c->reason, words))
		fail_msg("\"%s\" does not say \"%s\"", c->reason, words);
}

static void test_nothing_fits(void **state)
{
	best_of("405b", 16 * MI, 8, ERR_PLAN_TOO_LARGE);
	assert_true(strstr(err.message, "no mesh fits") != NULL);
	assert_says(&found.choice[0], "none fits");
	for (int i = 1; i < found.choice_count; i++) {
		assert_says(&found.choice[i], "does not fit");
		assert_true(found.choice[i].cost.memory_bytes >= found.choice[i - 1].cost.memory_bytes);
	}
	best_of("70b", 4 * MI, 8, ERR_PLAN_TOO_LARGE);
	(void)state;
}

static void test_reasons(void **state)
{
	best_of("7b", 4 * MI, 64, 0);
	assert_says(&found.choice[0], "fastest that fits");
	assert_says(pair(8, 1), "tensor parallel: ");
	assert_says(pair(16, 1), "tensor parallel over machines: ");
	assert_says(pair(1, 32), "longer");
	best_of("405b", 16 * MI, 4096, 0);
	assert_says(pair(8, 64), "bubble ");
	assert_says(pair(4, 1), "too little memory to keep activations: ");
	best_of("1.5b", 64, 64, 0);
	assert_says(pair(1, 16), "longer");
	(void)state;
}

/* No mesh drawn at random beats the best, and the list is in order. */
static void test_nothing_better_was_missed(void **state)
{
	struct check_random r = check_random_start();
	struct scale_cluster c;
	scale_cluster_known(SCALE_H100, 64, &c);
	const char *const names[] = { "7b", "70b" };
	for (size_t n = 0; n < ARRAY_LEN(names); n++) {
		struct scale_model *m = model_for(names[n], 4 * MI, 64);
		assert_int_equal(scale_search(m, &c, &found, &err), 0);
		const struct scale_cost *best = &found.choice[0].cost;
		for (int i = 2; i < found.choice_count; i++) {
			const struct scale_cost *a = &found.choice[i - 1].cost, *b = &found.choice[i].cost;
			assert_true(a->fits >= b->fits);
			if (a->fits && b->fits)
				assert_true(a->step_s <= b->step_s);
		}
		int tried = 0;
		while (tried < 5000) {
			int t = 1 << check_random_range(&r, 0, 6), p = 1 << check_random_range(&r, 0, 6);
			struct scale_mesh mesh = scale_fixture_mesh(64 / (t * p) > 0 ? 64 / (t * p) : 1, t, p);
			mesh.zero = (int)check_random_range(&r, 0, 3);
			mesh.interleave = 1 << check_random_range(&r, 0, 3);
			mesh.micro_batch = INT64_C(1) << check_random_range(&r, 0, 6);
			mesh.checkpointing = (enum spec_checkpointing)check_random_range(&r, 0, 2);
			struct scale_cost cost;
			tried++;
			if (scale_estimate(m, &c, &mesh, &cost, &err) || !cost.fits)
				continue;
			/* Two times half a percent: within its pair, and of all. */
			assert_true(cost.step_s >= best->step_s * SCALE_BETTER * SCALE_BETTER);
		}
		scale_model_destroy(m);
	}
	(void)state;
}

/* Whoever knows better what a mesh needs, and which there are. */
struct knows {
	int tensor_least, tensor_most, pipeline_most; /* with less of it there is no room */
	double bytes;                                 /* 0: it breaks down */
	int asked;
};

static int measure(void *ctx, const struct scale_mesh *mesh, double *ret_bytes, struct err *e)
{
	struct knows *k = ctx;
	k->asked++;
	if (mesh->tensor > k->tensor_most || mesh->pipeline > k->pipeline_most)
		return err_set(e, ERR_INVALID_VALUE, NULL, "there is no such axis");
	if (k->bytes == 0)
		return err_set(e, ERR_NO_MEMORY, NULL, "no memory");
	*ret_bytes = mesh->tensor < k->tensor_least ? 200e9 : k->bytes;
	return 0;
}

static void test_others_are_asked(void **state)
{
	struct scale_cluster c;
	scale_cluster_known(SCALE_H100, 512, &c);
	struct scale_model *m = model_for("405b", 16 * MI, 512);
	struct knows all = {
		.tensor_least = 8, .tensor_most = 512, .pipeline_most = 512, .bytes = 79e9
	};
	struct scale_bounds b = { .measure = measure, .ctx = &all };
	assert_int_equal(scale_search_within(m, &c, &b, &found, &err), 0);
	assert_int_equal(found.choice[0].mesh.tensor, 8);
	assert_true(found.choice[0].cost.memory_bytes == 79e9);
	print_message("asked %d times of %lld\n", all.asked, (long long)found.tried);
	assert_true(all.asked < found.tried / 40);
	struct knows stages = { .tensor_most = 1, .pipeline_most = 512, .bytes = 79e9 };
	b.ctx = &stages;
	b.micro_batch_most = 2;
	b.checkpointing_given = true;
	b.checkpointing = SPEC_FULL;
	assert_int_equal(scale_search_within(m, &c, &b, &found, &err), 0);
	for (int i = 0; i < found.choice_count; i++) {
		assert_int_equal(found.choice[i].mesh.tensor, 1);
		assert_true(found.choice[i].mesh.micro_batch <= 2);
		assert_int_equal(found.choice[i].mesh.checkpointing, SPEC_FULL);
	}
	b.micro_batch = 2;
	assert_int_equal(scale_search_within(m, &c, &b, &found, &err), 0);
	assert_int_equal(found.choice[0].mesh.micro_batch, 2);
	/* The bytes that they say count, and what ends them ends the search. */
	stages.bytes = 81e9;
	assert_int_equal(scale_search_within(m, &c, &b, &found, &err), ERR_PLAN_TOO_LARGE);
	stages.bytes = 0;
	assert_int_equal(scale_search_within(m, &c, &b, &found, &err), ERR_NO_MEMORY);
	struct knows none = { 0 };
	b.ctx = &none;
	assert_int_equal(scale_search_within(m, &c, &b, &found, &err), ERR_INVALID_VALUE);
	assert_int_equal(found.choice_count, 0);
	scale_model_destroy(m);
	(void)state;
}

static void test_same_answer_twice(void **state)
{
	static struct scale_search again;
	best_of("70b", 4 * MI, 512, 0);
	struct scale_cluster c;
	scale_cluster_known(SCALE_H100, 512, &c);
	struct scale_model *m = model_for("70b", 4 * MI, 512);
	assert_int_equal(scale_search(m, &c, &again, &err), 0);
	assert_int_equal(again.choice_count, found.choice_count);
	for (int i = 0; i < found.choice_count; i++) {
		const struct scale_mesh *a = &again.choice[i].mesh, *b = &found.choice[i].mesh;
		assert_true(a->tensor == b->tensor && a->pipeline == b->pipeline && a->zero == b->zero &&
			a->interleave == b->interleave && a->micro_batch == b->micro_batch &&
			a->checkpointing == b->checkpointing);
		assert_string_equal(again.choice[i].reason, found.choice[i].reason);
		assert_true(again.choice[i].cost.step_s == found.choice[i].cost.step_s);
	}
	scale_model_destroy(m);
	(void)state;
}

/* A family without layers has one pair. */
static void test_other_families(void **state)
{
	struct scale_cluster c;
	scale_cluster_known(SCALE_H100, 8, &c);
	struct job_spec s = fixture_cnn();
	s.hyper.batch_size = 64;
	struct scale_model *m = scale_fixture_model(&s);
	assert_int_equal(scale_search(m, &c, &found, &err), 0);
	assert_int_equal(found.choice_count, 1);
	assert_int_equal(found.choice[0].mesh.data, 8);
	scale_model_destroy(m);
	s.hyper.batch_size = 63;
	m = scale_fixture_model(&s);
	assert_int_equal(scale_search(m, &c, &found, &err), ERR_INVALID_VALUE);
	scale_model_destroy(m);
	(void)state;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_small_models_are_split_over_data),
		cmocka_unit_test(test_middle_models_are_mixtures),
		cmocka_unit_test(test_large_models_take_all_three),
		cmocka_unit_test(test_nothing_fits),
		cmocka_unit_test(test_reasons),
		cmocka_unit_test(test_nothing_better_was_missed),
		cmocka_unit_test(test_others_are_asked),
		cmocka_unit_test(test_same_answer_twice),
		cmocka_unit_test(test_other_families),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}

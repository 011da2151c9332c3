/* SPDX-License-Identifier: Apache-2.0
 * The engine as the trainer sees it: memory equals the plan's, runs repeat bit for bit, a run
 * restored at any step continues bit for bit, accumulation changes nothing, evaluation sees all. */
#include "tests/unit/workers/engine/engine_fixture.h"
#include "workers/engine/engine_private.h"

enum { STEPS = 20 };

/* Every family with every part of the state: momentum, dropout, accumulation, crossing epochs. */
static int all_specs(struct job_spec ret[static 4])
{
	ret[0] = fixture_spec(SPEC_GPT2);
	ret[0].hyper.dropout = 0.1;
	ret[1] = fixture_spec(SPEC_CNN);
	ret[1].hyper.dropout = 0.2;
	ret[2] = fixture_spec(SPEC_MLP);
	ret[2].hyper.optimizer = SPEC_SGD;
	ret[2].hyper.schedule = SPEC_LINEAR;
	ret[3] = fixture_spec(SPEC_MLP);
	ret[3].task = SPEC_REGRESSION;
	ret[3].model.in_height = 1;
	ret[3].model.n_classes = 3;
	ret[3].hyper.optimizer = SPEC_SGD;
	ret[3].hyper.momentum = 0;
	for (int i = 0; i < 4; i++)
		ret[i].hyper.max_steps = STEPS;
	return 4;
}

struct snapshot {
	struct engine_state state;
	int count;
	void *tensor[256];
};

static void save(struct engine *e, struct snapshot *s)
{
	engine_state_get(e, &s->state);
	s->count = engine_tensor_count(e);
	assert_true(s->count <= 256);
	for (int i = 0; i < s->count; i++) {
		struct engine_tensor t;
		engine_tensor_at(e, i, &t);
		s->tensor[i] = malloc((size_t)t.bytes);
		memcpy(s->tensor[i], t.data, (size_t)t.bytes);
	}
}

static void load(struct engine *e, const struct snapshot *s)
{
	struct err err = { 0 };
	assert_ok(engine_state_set(e, &s->state, &err));
	for (int i = 0; i < s->count; i++) {
		struct engine_tensor t;
		engine_tensor_at(e, i, &t);
		memcpy(t.data, s->tensor[i], (size_t)t.bytes);
	}
}

static void assert_same(struct engine *e, const struct snapshot *s)
{
	assert_int_equal(engine_tensor_count(e), s->count);
	for (int i = 0; i < s->count; i++) {
		struct engine_tensor t;
		engine_tensor_at(e, i, &t);
		if (memcmp(t.data, s->tensor[i], (size_t)t.bytes))
			fail_msg("%s differs", t.name);
	}
}

static void forget(struct snapshot *s)
{
	for (int i = 0; i < s->count; i++)
		free(s->tensor[i]);
}

static void check_resume(const struct job_spec *spec, int threads, int every)
{
	struct err err = { 0 };
	struct fixture f;
	struct snapshot at[STEPS + 1];
	double loss[STEPS], norm[STEPS];
	fixture_open(&f, *spec, threads);
	for (int i = 0; i < STEPS; i++) {
		struct engine_step s;
		save(f.engine, &at[i]);
		assert_ok(engine_step(f.engine, &s, &err));
		loss[i] = s.loss;
		norm[i] = s.grad_norm;
	}
	save(f.engine, &at[STEPS]);
	for (int k = 0; k < STEPS; k += every) {
		struct fixture g;
		fixture_open(&g, *spec, threads);
		load(g.engine, &at[k]);
		for (int i = k; i < STEPS; i++) {
			struct engine_step s;
			struct engine_evaluation x;
			if (i % 7 == 3) /* an evaluation in between leaves no trace */
				assert_ok(engine_evaluate(g.engine, NULL, NULL, &x, &err));
			assert_ok(engine_step(g.engine, &s, &err));
			if (s.loss != loss[i] || s.grad_norm != norm[i])
				fail_msg("from step %d, step %d: loss %.17g, was %.17g", k, i, s.loss, loss[i]);
		}
		assert_same(g.engine, &at[STEPS]);
		fixture_close(&g);
	}
	assert_true(loss[STEPS - 1] != loss[0]);
	for (int i = 0; i <= STEPS; i++)
		forget(&at[i]);
	fixture_close(&f);
}

static void test_resume(void **state)
{
	struct job_spec specs[4];
	for (int i = 0; i < all_specs(specs); i++) {
		check_resume(&specs[i], 1, 1);
		check_resume(&specs[i], 2, 9);
	}
}

/* The memory figure, and that no two live buffers touch: poisoning what a step does not own must
 * not change it. */
static void test_memory(void **state)
{
	struct job_spec specs[4];
	for (int i = 0; i < all_specs(specs); i++) {
		struct err err = { 0 };
		struct fixture f;
		fixture_open(&f, specs[i], 2);
		assert_true(engine_memory_bytes(f.engine) == f.plan->total_bytes);
		struct engine_step s;
		for (int k = 0; k < 3; k++)
			assert_ok(engine_step(f.engine, &s, &err));
		assert_true(engine_memory_bytes(f.engine) == f.plan->total_bytes);
		fixture_close(&f);
	}
}

/* Dirty transients: everything outside weights, optimizer and gradients starts as NaN. */
static void test_poison(void **state)
{
	struct job_spec specs[4];
	for (int i = 0; i < all_specs(specs); i++) {
		struct err err = { 0 };
		struct fixture f, g;
		fixture_open(&f, specs[i], 1);
		fixture_open(&g, specs[i], 1);
		for (int k = 0; k < g.plan->buffer_count; k++) {
			const struct plan_buffer *b = &g.plan->buffers[k];
			if (b->kind == PLAN_ACTIVATIONS || b->kind == PLAN_WORKSPACE || b->kind == PLAN_DATA)
				memset(engine_buffer(g.engine, k), 0xff, (size_t)b->bytes);
		}
		struct engine_step s, t;
		assert_ok(engine_step(f.engine, &s, &err));
		assert_ok(engine_step(g.engine, &t, &err));
		assert_false(t.non_finite);
		assert_true(s.loss == t.loss && s.grad_norm == t.grad_norm);
		fixture_close(&f);
		fixture_close(&g);
	}
}

/* Splitting the batch changes nothing but the order of additions. */
static void test_accumulation(void **state)
{
	struct job_spec specs[4];
	for (int i = 0; i < all_specs(specs); i++) {
		double loss[4] = { 0 }, norm[4] = { 0 };
		for (int k = 0; k < 4; k++) {
			struct err err = { 0 };
			struct fixture f;
			struct engine_step s;
			specs[i].hyper.dropout = 0; /* its mask depends on the place in the micro-batch */
			specs[i].hyper.micro_batch_size = 1 << k;
			fixture_open(&f, specs[i], 1);
			assert_int_equal(f.plan->micro_steps, 8 >> k);
			assert_ok(engine_step(f.engine, &s, &err));
			loss[k] = s.loss;
			norm[k] = s.grad_norm;
			fixture_close(&f);
		}
		for (int k = 1; k < 4; k++) {
			assert_true(fabs(loss[k] - loss[0]) < 1e-6 * loss[0]);
			assert_true(fabs(norm[k] - norm[0]) < 1e-5 * norm[0]);
		}
	}
}

/* All samples count once, whatever the batch: 37 is no multiple of anything. */
static void test_evaluation(void **state)
{
	struct job_spec specs[4];
	for (int i = 0; i < all_specs(specs); i++) {
		struct engine_evaluation x[2];
		for (int k = 0; k < 2; k++) {
			struct err err = { 0 };
			struct fixture f;
			specs[i].hyper.micro_batch_size = k ? 8 : 1;
			fixture_open(&f, specs[i], 1);
			assert_ok(engine_evaluate(f.engine, NULL, NULL, &x[k], &err));
			fixture_close(&f);
		}
		assert_true(fabs(x[0].loss - x[1].loss) < 1e-5 * x[0].loss);
		assert_true(x[0].accuracy == x[1].accuracy);
		bool lm = i == 0;
		assert_int_equal(x[0].samples, lm ? 38 : 37); /* the text's last window is partial */
		assert_int_equal(x[0].tokens, lm ? 37 * 12 + 5 : 0);
		assert_true(!lm || fabs(x[0].bits_per_byte - x[0].loss / log(2)) < 1e-12);
		assert_true(!lm || (x[0].order0_bits_per_byte > 4.5 && x[0].order0_bits_per_byte < 4.71));
	}
}

/* A model of zeros gives every class the same chance: the loss over all rows is exactly known. */
static void test_evaluation_of_nothing(void **state)
{
	const enum spec_family families[2] = { SPEC_GPT2, SPEC_CNN };
	for (int i = 0; i < 2; i++) {
		struct err err = { 0 };
		struct fixture f;
		struct engine_evaluation x;
		fixture_open(&f, fixture_spec(families[i]), 1);
		for (int k = 0; k < f.plan->param_count; k++) {
			struct engine_tensor t;
			engine_tensor_at(f.engine, k, &t);
			memset(t.data, 0, (size_t)t.bytes);
		}
		assert_ok(engine_evaluate(f.engine, NULL, NULL, &x, &err));
		assert_true(fabs(x.loss - log((double)f.plan->n_classes)) < 1e-6);
		fixture_close(&f);
	}
}

static bool stop_at_once(void *ctx, int64_t done, int64_t total)
{
	*(int64_t *)ctx = total;
	return false;
}

static void test_evaluation_stops(void **state)
{
	struct err err = { 0 };
	struct fixture f;
	struct engine_evaluation x;
	int64_t total = 0;
	fixture_open(&f, fixture_spec(SPEC_MLP), 1);
	assert_int_equal(engine_evaluate(f.engine, stop_at_once, &total, &x, &err), ERR_CANCELLED);
	assert_int_equal(total, 37);
	assert_ok(engine_attach(f.engine, f.data, NULL, &err));
	assert_int_equal(engine_evaluate(f.engine, NULL, NULL, &x, &err), ERR_CONFLICT);
	fixture_close(&f);
}

static void test_non_finite(void **state)
{
	struct err err = { 0 };
	struct fixture f;
	struct engine_step s;
	fixture_open(&f, fixture_spec(SPEC_GPT2), 1);
	assert_ok(engine_step(f.engine, &s, &err));
	struct snapshot before;
	struct engine_tensor t;
	engine_tensor_at(f.engine, 0, &t);
	for (int64_t i = 0; i < t.bytes / 4; i++)
		((float *)t.data)[i] = INFINITY;
	save(f.engine, &before);
	assert_ok(engine_step(f.engine, &s, &err));
	assert_true(s.non_finite);
	assert_int_equal(s.samples, 0);
	struct engine_state after;
	engine_state_get(f.engine, &after);
	assert_memory_equal(&after, &before.state, sizeof(after));
	assert_same(f.engine, &before);
	forget(&before);
	fixture_close(&f);
}

static void test_step_report(void **state)
{
	struct err err = { 0 };
	struct fixture f;
	struct engine_step s;
	struct engine_state st;
	struct job_spec spec = fixture_spec(SPEC_GPT2);
	fixture_open(&f, spec, 1);
	assert_int_equal(f.plan->total_steps, 10); /* ceil(2 * 37 / 8) */
	for (int i = 0; i < 10; i++) {
		assert_ok(engine_step(f.engine, &s, &err));
		assert_int_equal(s.step, i + 1);
		assert_int_equal(s.samples, 8);
		assert_int_equal(s.tokens, 96);
		assert_true(s.learning_rate == plan_learning_rate(&f.spec, 10, i));
	}
	assert_true(fabs(s.epoch - 80.0 / 37) < 1e-12);
	engine_state_get(f.engine, &st);
	assert_int_equal(st.position, 80);
	assert_int_equal(st.tokens, 960);
	const struct engine_state bad[] = { { .step = -1, .position = -8, .seed = 42 },
		{ .step = 2, .position = 15, .tokens = 192, .seed = 42 },
		{ .step = 2, .position = 16, .tokens = 191, .seed = 42 },
		{ .step = 2, .position = 16, .tokens = 192, .seed = 43 },
		{ .step = INT64_MAX, .position = 16, .tokens = 192, .seed = 42 } };
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		assert_int_equal(engine_state_set(f.engine, &bad[i], &err), ERR_INVALID_DATA);
	fixture_close(&f);
}

/* Learning happens at all: each family halves its loss (the text is noise: it learns the letters).
 */
static void test_learns(void **state)
{
	struct job_spec specs[4];
	for (int i = 0; i < all_specs(specs); i++) {
		struct err err = { 0 };
		struct fixture f;
		struct engine_step s;
		double first = 0;
		specs[i].hyper.dropout = 0;
		specs[i].hyper.max_steps = 300;
		specs[i].hyper.weight_decay = 0;
		specs[i].hyper.learning_rate = specs[i].hyper.optimizer == SPEC_SGD ? 0.1 : 0.01;
		fixture_open(&f, specs[i], 1);
		for (int k = 0; k < 300; k++) {
			assert_ok(engine_step(f.engine, &s, &err));
			first = k == 0 ? s.loss : first;
		}
		if (!(s.loss < 0.5 * first))
			fail_msg("spec %d: loss %.3f after %.3f", i, s.loss, first);
		fixture_close(&f);
	}
}

/* Distinct names, parameters first, sizes that match shapes. */
static void test_tensors(void **state)
{
	struct job_spec specs[4];
	const int per[4] = { 3, 3, 2, 1 };
	for (int i = 0; i < all_specs(specs); i++) {
		struct fixture f;
		fixture_open(&f, specs[i], 1);
		int n = engine_tensor_count(f.engine);
		assert_int_equal(n, f.plan->param_count * per[i]);
		for (int a = 0; a < n; a++) {
			struct engine_tensor t, u;
			engine_tensor_at(f.engine, a, &t);
			int64_t count = 1;
			for (int k = 0; k < t.rank; k++)
				count *= t.shape[k];
			assert_int_equal(count * 4, t.bytes);
			assert_int_equal(t.kind, a < f.plan->param_count ? ENGINE_PARAMETER : ENGINE_OPTIMIZER);
			for (int b = 0; b < a; b++) {
				engine_tensor_at(f.engine, b, &u);
				assert_string_not_equal(t.name, u.name);
				assert_true(t.data != u.data);
			}
		}
		fixture_close(&f);
	}
}

/* The update is AdamW's, with the bias corrections of the right step, from the gradients that the
 * engine left behind. */
static void test_adamw_steps(void **state)
{
	struct err err = { 0 };
	struct fixture f;
	struct job_spec spec = fixture_spec(SPEC_MLP);
	spec.hyper.grad_clip = 0;
	fixture_open(&f, spec, 1);
	double m[2] = { 0 }, v[2] = { 0 };
	for (int step = 1; step <= 3; step++) {
		float before[2];
		struct engine_step s;
		for (int i = 0; i < 2; i++) /* a weight with decay, a bias without */
			before[i] = *(float *)engine_buffer(f.engine, f.plan->params[i].weight);
		assert_ok(engine_step(f.engine, &s, &err));
		for (int i = 0; i < 2; i++) {
			const struct plan_param *p = &f.plan->params[i];
			double g = (double)*(float *)engine_buffer(f.engine, p->gradient);
			m[i] = 0.9 * m[i] + 0.1 * g;
			v[i] = 0.95 * v[i] + 0.05 * g * g;
			double hat = m[i] / (1 - pow(0.9, step)) / (sqrt(v[i] / (1 - pow(0.95, step))) + 1e-8);
			double w = (double)before[i] -
				s.learning_rate * (hat + (i == 0 ? 0.1 : 0) * (double)before[i]);
			double now = (double)*(float *)engine_buffer(f.engine, p->weight);
			assert_true(fabs(w - now) < 1e-6);
			assert_true(fabs(now - (double)before[i]) > 1e-5);
		}
	}
	fixture_close(&f);
}

/* Gradients longer than grad_clip are shortened to it: without decay and momentum, SGD moves by
 * exactly learning rate times grad_clip. */
static void test_clip(void **state)
{
	struct err err = { 0 };
	struct fixture f;
	struct engine_step s;
	struct snapshot before;
	struct job_spec spec = fixture_spec(SPEC_MLP);
	spec.hyper.optimizer = SPEC_SGD;
	spec.hyper.momentum = spec.hyper.weight_decay = 0;
	spec.hyper.grad_clip = 0.01;
	fixture_open(&f, spec, 1);
	save(f.engine, &before);
	assert_ok(engine_step(f.engine, &s, &err));
	assert_true(s.grad_norm > 0.1);
	double moved = 0;
	for (int i = 0; i < before.count; i++) {
		struct engine_tensor t;
		engine_tensor_at(f.engine, i, &t);
		for (int64_t k = 0; k < t.bytes / 4; k++)
			moved += pow((double)((float *)t.data)[k] - (double)((float *)before.tensor[i])[k], 2);
	}
	assert_true(fabs(sqrt(moved) / (s.learning_rate * 0.01) - 1) < 1e-3);
	forget(&before);
	fixture_close(&f);
}

/* Another place in the stream is another mask, even over the same samples. */
static void test_dropout_masks(void **state)
{
	for (int k = 0; k < 2; k++) {
		struct err err = { 0 };
		struct fixture f;
		struct job_spec spec = fixture_spec(k ? SPEC_GPT2 : SPEC_MLP);
		double loss[3] = { 0 };
		spec.data.shuffle = false;
		spec.hyper.dropout = 0.3;
		fixture_open(&f, spec, 1);
		for (int i = 0; i < 3; i++) /* 37 samples: one epoch on is the same batch */
			assert_ok(engine_step_micro(f.engine, i == 1 ? 37 : 0, 1.0f, &loss[i], &err));
		assert_true(loss[0] == loss[2] && loss[0] != loss[1]);
		fixture_close(&f);
		spec.hyper.dropout = 0;
		fixture_open(&f, spec, 1);
		for (int i = 0; i < 2; i++)
			assert_ok(engine_step_micro(f.engine, i == 1 ? 37 : 0, 1.0f, &loss[i], &err));
		assert_true(loss[0] == loss[1]);
		fixture_close(&f);
	}
}

/* A device that cannot give the bytes says so with the figure. */
static void test_no_memory(void **state)
{
	struct err err = { 0 };
	struct job_spec s = fixture_spec(SPEC_MLP);
	struct plan *p = NULL;
	struct engine *e = NULL;
	assert_ok(plan_compile(&s, NULL, &p, &err));
	p->total_bytes = INT64_C(1) << 60;
	assert_int_equal(engine_create(&s, p, engine_backend_cpu(), 1, &e, &err), ERR_NO_MEMORY);
	assert_non_null(strstr(err.message, "1152921504606846976"));
	assert_null(e);
	assert_int_equal(engine_create(&s, p, engine_backend_cpu(), 0, &e, &err), ERR_INVALID_VALUE);
	plan_destroy(p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_memory),
		cmocka_unit_test(test_poison),
		cmocka_unit_test(test_accumulation),
		cmocka_unit_test(test_evaluation),
		cmocka_unit_test(test_evaluation_of_nothing),
		cmocka_unit_test(test_evaluation_stops),
		cmocka_unit_test(test_non_finite),
		cmocka_unit_test(test_step_report),
		cmocka_unit_test(test_learns),
		cmocka_unit_test(test_tensors),
		cmocka_unit_test(test_adamw_steps),
		cmocka_unit_test(test_clip),
		cmocka_unit_test(test_dropout_masks),
		cmocka_unit_test(test_no_memory),
		cmocka_unit_test(test_resume),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}

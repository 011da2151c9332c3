/* SPDX-License-Identifier: Apache-2.0
 * The engine's memory, fresh parameters, tensors and state, for every family and precision. */
#include "tests/unit/workers/engine/engine_cases.h"
#include "workers/engine/engine_draw.h"
#include "workers/engine/engine_private.h"

/* Calls fn for every family in every precision. */
static void each_case(void (*fn)(const char *name, struct job_spec spec))
{
	struct engine_case cases[CASES_MAX];
	int count = case_families(cases);
	for (int i = 0; i < count * 3; i++) {
		char name[96];
		snprintf(name, sizeof(name), "%s in %s", cases[i / 3].name, case_precision[i % 3]);
		cases[i / 3].spec.precision = (enum spec_precision)(i % 3);
		fn(name, cases[i / 3].spec);
	}
}

static void check_memory(const char *name, struct job_spec spec)
{
	struct err err = { 0 };
	struct fixture f;
	struct engine_step s;
	struct engine_evaluation x;
	fixture_open(&f, spec, 2);
	assert_true(engine_memory_bytes(f.engine) == f.plan->total_bytes);
	for (int k = 0; k < 3; k++)
		assert_ok(engine_step(f.engine, &s, &err));
	assert_ok(engine_evaluate(f.engine, NULL, NULL, &x, &err));
	assert_true(engine_memory_bytes(f.engine) == f.plan->total_bytes);
	fixture_close(&f);
}

/* The backend's figure equals the plan's, before and after work. */
static void test_memory(void **state)
{
	each_case(check_memory);
}

/* The loader may have filled these already. */
static bool is_staging(const struct plan *p, int buffer)
{
	for (int i = 0; i < PLAN_STAGING; i++) {
		const struct plan_inputs *in = &p->staging[i];
		if (buffer == in->input || buffer == in->labels || buffer == in->positions ||
			buffer == in->starts || buffer == in->bags)
			return true;
	}
	return false;
}

/* Dirty transients: whatever does not outlive a step starts as NaN. */
static void check_poison(const char *name, struct job_spec spec)
{
	struct err err = { 0 };
	struct fixture f, g;
	fixture_open(&f, spec, 1);
	fixture_open(&g, spec, 1);
	int last = g.plan->op_count - 1;
	for (int k = 0; k < g.plan->buffer_count; k++) {
		const struct plan_buffer *b = &g.plan->buffers[k];
		bool persists = b->first_op == 0 && b->last_op == last && b->kind != PLAN_DATA;
		if (!persists && !is_staging(g.plan, k))
			memset(engine_buffer(g.engine, k), 0xff, (size_t)b->bytes);
	}
	for (int k = 0; k < 3; k++) {
		struct engine_step s, t;
		assert_ok(engine_step(f.engine, &s, &err));
		assert_ok(engine_step(g.engine, &t, &err));
		if (t.non_finite || s.loss != t.loss || s.grad_norm != t.grad_norm)
			fail_msg(
				"%s: loss %g norm %g, was %g %g", name, t.loss, t.grad_norm, s.loss, s.grad_norm);
	}
	fixture_close(&f);
	fixture_close(&g);
}

static void test_poison(void **state)
{
	each_case(check_poison);
}

/* Distinct names and places, parameters first, sizes that match shapes and types. */
static void check_tensors(const char *name, struct job_spec spec)
{
	struct fixture f;
	fixture_open(&f, spec, 1);
	const struct plan *p = f.plan;
	int trained = 0, n = engine_tensor_count(f.engine);
	for (int i = 0; i < p->param_count; i++)
		trained += p->params[i].role == PLAN_TRAINED;
	bool adam = spec.hyper.optimizer == SPEC_ADAMW;
	int moments = adam ? 2 : spec.hyper.momentum > 0;
	assert_int_equal(n, p->param_count + trained * (moments + (spec.hyper.ema_decay > 0)));
	for (int a = 0; a < n; a++) {
		struct engine_tensor t, u;
		engine_tensor_at(f.engine, a, &t);
		int64_t count = 1;
		for (int k = 0; k < t.rank; k++)
			count *= t.shape[k];
		bool narrow = a < p->param_count && t.role == PLAN_FROZEN && t.rank > 1 &&
			spec.precision != SPEC_FP32;
		assert_int_equal(count * (narrow ? 2 : 4), t.bytes);
		assert_string_equal(t.dtype,
			!narrow                           ? "F32"
				: spec.precision == SPEC_BF16 ? "BF16"
											  : "F16");
		assert_true((t.kind == ENGINE_PARAMETER) == (a < p->param_count));
		assert_true(t.kind == ENGINE_PARAMETER || t.role == PLAN_TRAINED);
		for (int b = 0; b < a; b++) {
			engine_tensor_at(f.engine, b, &u);
			assert_string_not_equal(t.name, u.name);
			assert_true((char *)t.data >= (char *)u.data + u.bytes ||
				(char *)u.data >= (char *)t.data + t.bytes);
		}
	}
	fixture_close(&f);
}

static void test_tensors(void **state)
{
	each_case(check_tensors);
}

/* The optimizer's tensors are named as torch.optim has them. */
static void test_tensor_names(void **state)
{
	struct fixture f;
	struct engine_tensor t;
	struct job_spec s = fixture_spec(SPEC_MLP);
	s.hyper.ema_decay = 0.9;
	fixture_open(&f, s, 1);
	static const char *const expected[] = { "layers.0.weight", "layers.0.bias", "layers.1.weight",
		"layers.1.bias" };
	static const char *const prefix[] = { "", "optimizer.exp_avg.", "optimizer.exp_avg_sq.",
		"average." };
	assert_int_equal(engine_tensor_count(f.engine), 16);
	for (int i = 0; i < 16; i++) {
		char name[64];
		snprintf(name, sizeof(name), "%s%s", prefix[i / 4], expected[i % 4]);
		engine_tensor_at(f.engine, i, &t);
		assert_string_equal(t.name, name);
		assert_int_equal(t.kind,
			i < 4        ? ENGINE_PARAMETER
				: i < 12 ? ENGINE_OPTIMIZER
						 : ENGINE_AVERAGE);
	}
	fixture_close(&f);
	s.hyper.optimizer = SPEC_SGD;
	fixture_open(&f, s, 1);
	engine_tensor_at(f.engine, 4, &t);
	assert_string_equal(t.name, "optimizer.momentum_buffer.layers.0.weight");
	fixture_close(&f);
}

/* What the operations read is the rounded master, and a trained tensor's master is the same in
 * every precision; a frozen one is the rounded draw. */
static void check_draw(const char *name, struct job_spec spec)
{
	struct fixture f, g;
	spec.hyper.ema_decay = 0;
	fixture_open(&f, spec, 1);
	spec.precision = SPEC_FP32;
	fixture_open(&g, spec, 2);
	const struct backend *b = f.engine->backend;
	for (int i = 0; i < f.plan->param_count; i++) {
		const struct plan_param *p = &f.plan->params[i], *q = &g.plan->params[i];
		const float *exact = engine_buffer(g.engine, q->weight);
		size_t bytes = (size_t)p->count * (size_t)plan_type_bytes(f.plan->buffers[p->weight].type);
		void *rounded = malloc(bytes);
		if (bytes == (size_t)p->count * 4)
			memcpy(rounded, exact, bytes);
		else
			b->from_f32(p->count, exact, rounded);
		if (memcmp(rounded, engine_buffer(f.engine, p->weight), bytes) != 0)
			fail_msg("%s: %s is not the rounded draw", name, p->name);
		free(rounded);
		if (p->role == PLAN_TRAINED &&
			memcmp(engine_buffer(f.engine, p->master), exact, (size_t)p->count * 4) != 0)
			fail_msg("%s: the master of %s is not the draw", name, p->name);
	}
	fixture_close(&f);
	fixture_close(&g);
}

static void test_draw(void **state)
{
	each_case(check_draw);
}

/* No two parameters begin alike, and another seed draws others. */
static void test_draw_differs(void **state)
{
	struct fixture f, g;
	struct job_spec s = case_language(SPEC_LLAMA);
	fixture_open(&f, s, 1);
	s.seed++;
	fixture_open(&g, s, 1);
	for (int i = 0; i < f.plan->param_count; i++) {
		struct engine_tensor t, u;
		engine_tensor_at(f.engine, i, &t);
		if (t.rank < 2)
			continue;
		engine_tensor_at(g.engine, i, &u);
		assert_memory_not_equal(t.data, u.data, 64);
		for (int k = 0; k < i; k++) {
			engine_tensor_at(f.engine, k, &u);
			assert_true(u.rank < 2 || memcmp(t.data, u.data, 64) != 0);
		}
	}
	fixture_close(&f);
	fixture_close(&g);
}

/* Moments of a million numbers within five standard errors; neighbours do not go together. */
static void test_draw_moments(void **state)
{
	enum { BLOCKS = 1024 };
	static float x[BLOCKS * ENGINE_DRAW_BLOCK];
	const double n = (double)BLOCKS * ENGINE_DRAW_BLOCK;
	for (int uniform = 0; uniform < 2; uniform++) {
		double m[5] = { 0 }, neighbour = 0;
		for (int64_t i = 0; i < BLOCKS; i++)
			(uniform ? engine_draw_uniform : engine_draw_normal)(
				77, i, 1.0f, x + i * ENGINE_DRAW_BLOCK);
		for (int64_t i = 0; i < BLOCKS * ENGINE_DRAW_BLOCK; i++) {
			double v = (double)x[i], power = 1;
			for (int k = 0; k < 5; k++, power *= v)
				m[k] += power / n;
			if (i > 0)
				neighbour += v * (double)x[i - 1] / n;
		}
		double variance = uniform ? 1.0 / 3 : 1, fourth = uniform ? 1.0 / 5 : 3,
			   sixth = uniform ? 1.0 / 7 : 15, eighth = uniform ? 1.0 / 9 : 105, five = 5 / sqrt(n);
		assert_true(fabs(m[1]) < five * sqrt(variance));
		assert_true(fabs(m[2] - variance) < five * sqrt(fourth - variance * variance));
		assert_true(fabs(m[3]) < five * sqrt(sixth));
		assert_true(fabs(m[4] - fourth) < five * sqrt(eighth - fourth * fourth));
		assert_true(fabs(neighbour) < five * variance);
	}
}

/* Whoever writes masters tells the engine, which rounds them. */
static void test_parameters_changed(void **state)
{
	struct err err = { 0 };
	struct fixture f, g;
	struct engine_evaluation x, y;
	struct job_spec s = case_language(SPEC_LLAMA);
	s.precision = SPEC_BF16;
	fixture_open(&f, s, 1);
	s.seed = 43;
	fixture_open(&g, s, 1);
	assert_ok(engine_evaluate(g.engine, NULL, NULL, &y, &err));
	for (int i = 0; i < f.plan->param_count; i++) {
		struct engine_tensor t, u;
		engine_tensor_at(f.engine, i, &t);
		engine_tensor_at(g.engine, i, &u);
		memcpy(t.data, u.data, (size_t)u.bytes);
	}
	assert_ok(engine_parameters_changed(f.engine, &err));
	assert_ok(engine_evaluate(f.engine, NULL, NULL, &x, &err));
	assert_true(x.loss == y.loss);
	fixture_close(&f);
	fixture_close(&g);
}

static void test_state(void **state)
{
	struct err err = { 0 };
	struct fixture f;
	fixture_open(&f, case_language(SPEC_GPT2), 1);
	const struct engine_state good = {
		.step = 2, .position = 16, .tokens = 192, .loss_scale = 1, .seed = 42
	};
	struct engine_state bad[] = { good, good, good, good, good, good, good }, after;
	bad[0].step = -1;
	bad[0].position = -8;
	bad[1].position = 15;
	bad[2].tokens = 191;
	bad[3].seed = 43;
	bad[4].step = INT64_MAX;
	bad[5].loss_scale = 2;
	bad[6].scale_steps = 1;
	assert_ok(engine_state_set(f.engine, &good, &err));
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		assert_int_equal(engine_state_set(f.engine, &bad[i], &err), ERR_INVALID_DATA);
	engine_state_get(f.engine, &after);
	assert_memory_equal(&after, &good, sizeof(after));
	fixture_close(&f);
	struct job_spec s = case_fine_tune(SPEC_GPT2, false);
	s.precision = SPEC_FP16;
	fixture_open(&f, s, 1);
	engine_state_get(f.engine, &after);
	assert_true(after.loss_scale == 65536 && after.scale_steps == 0);
	after = (struct engine_state){ 2, 16, 100, 4, 1999, 42 };
	assert_ok(engine_state_set(f.engine, &after, &err));
	struct engine_state worse[] = { after, after, after, after, after, after };
	worse[0].tokens = 257;
	worse[1].tokens = -1;
	worse[2].loss_scale = 0.5;
	worse[3].loss_scale = 3;
	worse[4].scale_steps = 2000;
	worse[5].scale_steps = -1;
	for (size_t i = 0; i < ARRAY_LEN(worse); i++)
		assert_int_equal(engine_state_set(f.engine, &worse[i], &err), ERR_INVALID_DATA);
	fixture_close(&f);
}

static void test_create(void **state)
{
	struct err err = { 0 };
	struct fixture f;
	struct engine *e = NULL;
	fixture_open(&f, fixture_spec(SPEC_MLP), 1);
	const struct backend *fp32 = engine_backend_cpu(PLAN_F32),
						 *bf16 = engine_backend_cpu(PLAN_BF16);
	assert_int_equal(engine_create(&f.spec, f.plan, fp32, 0, &e, &err), ERR_INVALID_VALUE);
	assert_int_equal(engine_create(&f.spec, f.plan, fp32, 1025, &e, &err), ERR_INVALID_VALUE);
	assert_int_equal(engine_create(&f.spec, f.plan, bf16, 1, &e, &err), ERR_INTERNAL);
	assert_null(e);
	/* A CPU does not compute something else than it was asked for. */
	struct plan *tf32 = NULL;
	struct job_spec spec = fixture_spec(SPEC_MLP);
	spec.precision = SPEC_TF32;
	assert_ok(plan_compile(&spec, NULL, &tf32, &err));
	assert_int_equal(engine_create(&spec, tf32, fp32, 1, &e, &err), ERR_INVALID_VALUE);
	assert_string_equal(err.param, "$.precision");
	assert_null(e);
	plan_destroy(tf32);
	fixture_close(&f);
}

/* Data of another shape is refused, and what was attached stays. */
static void test_attach(void **state)
{
	struct err err = { 0 };
	struct fixture f, g;
	struct engine_step s;
	struct job_spec other = fixture_spec(SPEC_MLP);
	fixture_open(&f, fixture_spec(SPEC_MLP), 1);
	other.model.in_height = 8;
	fixture_open(&g, other, 1);
	assert_int_equal(engine_attach(f.engine, g.data, NULL, &err), ERR_INVALID_DATA);
	assert_string_equal(err.param, "training_file");
	assert_int_equal(engine_attach(f.engine, f.data, g.data, &err), ERR_INVALID_DATA);
	assert_string_equal(err.param, "validation_file");
	assert_ok(engine_step(f.engine, &s, &err));
	struct engine *e = NULL;
	assert_ok(engine_create(&f.spec, f.plan, engine_backend_cpu(PLAN_F32), 1, &e, &err));
	assert_int_equal(engine_step(e, &s, &err), ERR_CONFLICT);
	engine_destroy(e);
	fixture_close(&f);
	fixture_close(&g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_memory),
		cmocka_unit_test(test_poison),
		cmocka_unit_test(test_tensors),
		cmocka_unit_test(test_tensor_names),
		cmocka_unit_test(test_draw),
		cmocka_unit_test(test_draw_differs),
		cmocka_unit_test(test_draw_moments),
		cmocka_unit_test(test_parameters_changed),
		cmocka_unit_test(test_state),
		cmocka_unit_test(test_create),
		cmocka_unit_test(test_attach),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}

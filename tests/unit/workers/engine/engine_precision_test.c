/* SPDX-License-Identifier: Apache-2.0
 * Low precision: fp16's loss scale through overflow, recovery and floor; sums that stay in fp32
 * over many micro-batches; what reads the weights reads the present ones. */
#include "tests/unit/workers/engine/engine_cases.h"
#include "workers/engine/engine_private.h"

static void set_scale(struct engine *e, double scale, int64_t steps)
{
	struct err err = { 0 };
	struct engine_state s;
	engine_state_get(e, &s);
	s.loss_scale = scale;
	s.scale_steps = steps;
	assert_ok(engine_state_set(e, &s, &err));
}

/* A scale that overflows is halved until it does not, within the step: everything is then as if the
 * step had begun at that scale. */
static void check_overflow(const char *name, struct job_spec spec)
{
	struct err err = { 0 };
	struct fixture f, g;
	struct engine_step s, t;
	struct snapshot after;
	spec.precision = SPEC_FP16;
	fixture_open(&f, spec, 1);
	fixture_open(&g, spec, 1);
	assert_ok(engine_step(f.engine, &s, &err));
	assert_ok(engine_step(g.engine, &t, &err));
	set_scale(f.engine, 16777216, 5);
	assert_ok(engine_step(f.engine, &s, &err));
	assert_false(s.non_finite);
	if (s.overflows == 0)
		fail_msg("%s: nothing overflowed", name);
	assert_true(s.loss_scale == ldexp(16777216, -(int)s.overflows));
	assert_int_equal(s.step, 2);
	assert_int_equal(s.samples, spec.hyper.batch_size);
	set_scale(g.engine, s.loss_scale, 0);
	assert_ok(engine_step(g.engine, &t, &err));
	assert_int_equal(t.overflows, 0);
	if (s.loss != t.loss || s.grad_norm != t.grad_norm || s.learning_rate != t.learning_rate)
		fail_msg("%s: loss %.17g norm %.17g, without overflows %.17g %.17g", name, s.loss,
			s.grad_norm, t.loss, t.grad_norm);
	snapshot_save(g.engine, &after);
	assert_same(f.engine, &after, name);
	struct engine_state state;
	engine_state_get(f.engine, &state);
	assert_memory_equal(&state, &after.state, sizeof(state));
	assert_int_equal(state.scale_steps, 1);
	snapshot_forget(&after);
	fixture_close(&f);
	fixture_close(&g);
}

static void test_overflow(void **state)
{
	struct engine_case cases[CASES_MAX];
	int count = case_families(cases);
	for (int i = 0; i < count; i++)
		check_overflow(cases[i].name, cases[i].spec);
}

/* The scale doubles after 2,000 steps without an overflow, not before, and not beyond its cap. */
static void test_recovery(void **state)
{
	struct err err = { 0 };
	struct fixture f;
	struct engine_step s;
	struct engine_state st;
	struct job_spec spec = fixture_spec(SPEC_MLP);
	spec.precision = SPEC_FP16;
	fixture_open(&f, spec, 1);
	set_scale(f.engine, 256, 1997);
	for (int i = 0; i < 3; i++) {
		assert_ok(engine_step(f.engine, &s, &err));
		engine_state_get(f.engine, &st);
		assert_true(s.loss_scale == st.loss_scale);
		assert_true(s.loss_scale == (i < 2 ? 256 : 512));
		assert_int_equal(st.scale_steps, i < 2 ? 1998 + i : 0);
	}
	fixture_close(&f);
	/* Targets that are met exactly have no gradient: no scale overflows. */
	spec = case_regression();
	spec.precision = SPEC_FP16;
	spec.model.hidden_count = 0;
	unsigned char zeros[12 + 4 * 37 * 9] = { 0, 0, 0x0d, 2 };
	struct fixture_file files[2];
	for (int i = 0; i < 2; i++) {
		fixture_put32(zeros + 4, 37);
		fixture_put32(zeros + 8, i ? 3 : 9);
		files[i] = fixture_write(zeros, 12 + 4 * 37 * (i ? 3 : 9));
	}
	fixture_open_files(&f, spec, 1, files, 2);
	set_scale(f.engine, 16777216, 1999);
	assert_ok(engine_step(f.engine, &s, &err));
	assert_true(s.loss_scale == 16777216 && s.loss == 0);
	engine_state_get(f.engine, &st);
	assert_int_equal(st.scale_steps, 0);
	fixture_close(&f);
	for (int i = 0; i < 2; i++)
		unlink(files[i].path);
}

/* Targets so far off that their gradient has no fp16 at any scale: the floor, then the end. */
static void test_floor(void **state)
{
	struct err err = { 0 };
	struct fixture f;
	struct engine_step s;
	struct engine_state st;
	struct snapshot before;
	struct job_spec spec = case_regression();
	spec.precision = SPEC_FP16;
	unsigned char far[12 + 4 * 37 * 9] = { 0, 0, 0x0d, 2 };
	struct fixture_file files[2];
	for (int i = 0; i < 2; i++) {
		fixture_put32(far + 4, 37);
		fixture_put32(far + 8, i ? 3 : 9);
		for (int k = 0; k < 37 * 9; k++)
			fixture_put32(far + 12 + 4 * k, i ? 0x4b800000 : 0x3f800000); /* 2^24, 1 */
		files[i] = fixture_write(far, 12 + 4 * 37 * (i ? 3 : 9));
	}
	fixture_open_files(&f, spec, 1, files, 2);
	snapshot_save(f.engine, &before);
	assert_ok(engine_step(f.engine, &s, &err));
	assert_true(s.non_finite && isfinite(s.loss));
	assert_int_equal(s.overflows, 16); /* 65536 halves to 1 */
	assert_true(s.loss_scale == 1);
	assert_same(f.engine, &before, "mlp in fp16");
	engine_state_get(f.engine, &st);
	assert_true(st.step == 0 && st.position == 0 && st.tokens == 0 && st.loss_scale == 1);
	snapshot_forget(&before);
	fixture_close(&f);
	for (int i = 0; i < 2; i++)
		unlink(files[i].path);
}

/* A loss that is not finite is so at any scale: no other try, the scale stays. */
static void test_non_finite_loss(void **state)
{
	struct err err = { 0 };
	struct fixture f;
	struct engine_step s;
	struct engine_state st;
	struct job_spec spec = fixture_spec(SPEC_GPT2);
	spec.precision = SPEC_FP16;
	fixture_open(&f, spec, 1);
	uint16_t *w = engine_buffer(f.engine, f.plan->params[0].weight);
	for (int64_t i = 0; i < f.plan->params[0].count; i++)
		w[i] = 0x7e00; /* NaN */
	assert_ok(engine_step(f.engine, &s, &err));
	assert_true(s.non_finite && !isfinite(s.loss));
	assert_int_equal(s.overflows, 0);
	assert_true(s.loss_scale == 65536);
	engine_state_get(f.engine, &st);
	assert_true(st.step == 0 && st.position == 0 && st.loss_scale == 65536);
	fixture_close(&f);
}

/* The scale in the state is what makes a continued run the same bits. */
static void test_scale_resumes(void **state)
{
	struct err err = { 0 };
	struct fixture f, g;
	struct engine_step s, t;
	struct snapshot at;
	struct job_spec spec = case_resnet(SPEC_BLOCK_BASIC, SPEC_STEM_3);
	spec.precision = SPEC_FP16;
	fixture_open(&f, spec, 1);
	set_scale(f.engine, 4096, 1990);
	for (int i = 0; i < 5; i++)
		assert_ok(engine_step(f.engine, &s, &err));
	snapshot_save(f.engine, &at);
	fixture_open(&g, spec, 1);
	snapshot_load(g.engine, &at);
	for (int i = 0; i < 10; i++) {
		assert_ok(engine_step(f.engine, &s, &err));
		assert_ok(engine_step(g.engine, &t, &err));
		assert_true(s.loss == t.loss && s.grad_norm == t.grad_norm && s.loss_scale == t.loss_scale);
		assert_true(s.loss_scale == (i < 4 ? 4096 : 8192));
	}
	snapshot_forget(&at);
	fixture_close(&f);
	fixture_close(&g);
}

/* Identical samples in 64 micro-batches: each has the same loss to the bit, and the mean gradient
 * is that of one, but for fp32's rounding. Sums kept in bf16 would be off by per cents, and
 * operations that read stale or wrongly rounded weights would change the later losses. */
static void check_repeat(const char *name, struct job_spec spec)
{
	enum { MICROS = 64 };
	struct fixture f;
	char text[37 * 12 + 6];
	for (size_t i = 0; i < sizeof(text); i++)
		text[i] = "trainyard 37"[i % 12];
	struct fixture_file file = fixture_write(text, sizeof(text));
	spec.hyper.batch_size = MICROS;
	spec.hyper.micro_batch_size = 1;
	fixture_open_files(&f, spec, 2, &file, 1);
	f.engine->backend->enter(f.engine->ctx);
	const int64_t count = f.plan->flat_count;
	float *g = engine_buffer(f.engine, f.plan->ops[f.plan->optimize_begin].operand[0]);
	double *one = calloc((size_t)count, sizeof(double));
	f.engine->backend->fill(count, 0, g);
	double first = 0;
	for (int i = 0; i < MICROS; i++) {
		double loss = fixture_micro(f.engine, i, 1.0f / 12);
		first = i == 0 ? loss : first;
		if (loss != first)
			fail_msg("%s: loss %.17g in micro-batch %d, %.17g in the first", name, loss, i, first);
		for (int64_t k = 0; k < count && i == 0; k++)
			one[k] = (double)g[k] * MICROS;
	}
	double d = fixture_distance(g, one, count);
	if (!(d < 1e-5))
		fail_msg("%s: the sum of %d equal gradients is off by %.3g", name, MICROS, d);
	free(one);
	fixture_close(&f);
	unlink(file.path);
}

static void test_repeat(void **state)
{
	for (int i = 0; i < 3; i++) {
		struct job_spec s = case_language(SPEC_GPT2);
		s.precision = (enum spec_precision)i;
		check_repeat("gpt2", s);
		s = case_language(SPEC_LLAMA);
		s.precision = (enum spec_precision)i;
		check_repeat("llama", s);
		s.checkpointing = SPEC_FULL;
		check_repeat("llama, checkpointing", s);
	}
}

/* A low-precision model is near the fp32 one. bf16 has 8 bits of mantissa, fp16 11; a few units
 * near a ReLU's corner show most in the norm. */
static void test_near_fp32(void **state)
{
	struct engine_case cases[CASES_MAX];
	int count = case_families(cases);
	for (int i = 0; i < count; i++) {
		struct engine_step s[3];
		for (int k = 0; k < 3; k++) {
			struct err err = { 0 };
			struct fixture f;
			cases[i].spec.precision = (enum spec_precision)k;
			fixture_open(&f, cases[i].spec, 1);
			assert_ok(engine_step(f.engine, &s[k], &err));
			fixture_close(&f);
			double loss = fabs(s[k].loss / s[0].loss - 1),
				   norm = fabs(s[k].grad_norm / s[0].grad_norm - 1);
			if (!(loss < (k == 1 ? 0.01 : 0.002)) || !(norm < (k == 1 ? 0.1 : 0.02)))
				fail_msg("%s in %s: loss off by %.3g, norm by %.3g", cases[i].name,
					case_precision[k], loss, norm);
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_overflow),
		cmocka_unit_test(test_recovery),
		cmocka_unit_test(test_floor),
		cmocka_unit_test(test_non_finite_loss),
		cmocka_unit_test(test_scale_resumes),
		cmocka_unit_test(test_repeat),
		cmocka_unit_test(test_near_fp32),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 * A step as CUDA graphs, and micro-batches that come beside it, on the emulated device: the same
 * bits as plain launches, whatever changes between steps, and whatever cannot be recorded. */
#include "tests/cuda/emulation/graph_counts.h"
#include "tests/unit/workers/engine/engine_cases.h"
#include "workers/engine/cuda/cuda.h"

enum { STEPS_MAX = 6 };

/* What a run has come to. */
struct outcome {
	struct engine_step step[STEPS_MAX];
	struct snapshot after;
	struct emulation_graph_counts counts; /* of this run alone */
};

/* Changes the engine before a step: a test's way in. */
typedef void (*prepare_fn)(struct engine *e, int step);

static struct job_spec spec_of(void)
{
	struct job_spec s = fixture_spec(SPEC_GPT2);
	s.data.sequence_length = 8;
	s.model.n_layer = 1;
	s.model.n_embd = 16;
	s.model.vocab_size = 256;
	s.model.norm_eps = 1e-5;
	s.model.n_inner = 64;
	s.model.tied = true;
	s.hyper.batch_size = 4;
	s.hyper.micro_batch_size = 2;
	s.hyper.warmup_steps = 2;
	return s;
}

/* Where the model does not matter: a few kernels, and always other masks. */
static struct job_spec small_spec(void)
{
	struct job_spec s = fixture_spec(SPEC_MLP);
	s.hyper.dropout = 0.2;
	s.hyper.batch_size = 4;
	s.hyper.micro_batch_size = 2;
	return s;
}

static struct emulation_graph_counts since(struct emulation_graph_counts then)
{
	struct emulation_graph_counts now = emulation_graph_counts();
	return (struct emulation_graph_counts){ .captured = now.captured - then.captured,
		.invalid = now.invalid - then.invalid,
		.instantiated = now.instantiated - then.instantiated,
		.updated = now.updated - then.updated,
		.refused = now.refused - then.refused,
		.launched = now.launched - then.launched };
}

/* before: of another run, whose tensors must be these in the end, or not: *ret_same. */
static void run(struct job_spec spec, bool graphs, int steps, prepare_fn prepare,
	const struct outcome *before, struct outcome *ret, bool *ret_same)
{
	struct err err = { 0 };
	struct fixture f;
	struct emulation_graph_counts then = emulation_graph_counts();
	assert_true(steps <= STEPS_MAX);
	assert_int_equal(setenv("TRAINYARD_CUDA_GRAPHS", graphs ? "on" : "off", 1), 0);
	fixture_open(&f, spec, 1);
	for (int i = 0; i < steps; i++) {
		if (prepare)
			prepare(f.engine, i);
		assert_ok(engine_step(f.engine, &ret->step[i], &err));
		ret->step[i].wait_us = 0;
	}
	assert_ok(engine_tensors_refresh(f.engine, &err));
	snapshot_save(f.engine, &ret->after);
	if (before)
		*ret_same = memcmp(before->step, ret->step, sizeof(ret->step)) == 0 &&
			snapshot_difference(f.engine, &before->after) == NULL;
	assert_true(engine_memory_bytes(f.engine) == f.plan->total_bytes);
	fixture_close(&f);
	ret->counts = since(then);
}

/* Runs without graphs and with; whether both are the same. */
static bool compare(
	struct job_spec spec, int steps, prepare_fn prepare, struct emulation_graph_counts *ret)
{
	struct outcome with = { 0 }, without = { 0 };
	bool same = false;
	run(spec, false, steps, prepare, NULL, &without, &same);
	run(spec, true, steps, prepare, &without, &with, &same);
	assert_int_equal(without.counts.captured + without.counts.launched, 0);
	snapshot_forget(&with.after);
	snapshot_forget(&without.after);
	*ret = with.counts;
	return same;
}

/* Two micro-batches, forward and backward: recorded in the second step, and launched again in all
 * that follow though the learning rate changes: it is not theirs. */
static void test_steady(void **state)
{
	struct emulation_graph_counts n;
	assert_true(compare(spec_of(), 3, NULL, &n));
	assert_int_equal(n.captured, 4);
	assert_int_equal(n.instantiated, 4);
	assert_int_equal(n.updated + n.refused + n.invalid, 0);
	assert_int_equal(n.launched, 2 * 4);
}

/* A mask is another one each time. Then the first micro-batch, the last, and two between them, of
 * which the second is recorded in the first step already. */
static void test_dropout(void **state)
{
	struct emulation_graph_counts n;
	struct job_spec s = spec_of();
	s.hyper.dropout = 0.1;
	assert_true(compare(s, 3, NULL, &n));
	assert_int_equal(n.instantiated, 4);
	assert_int_equal(n.launched, 2 * 4);
	assert_int_equal(n.updated, 4);
	s = small_spec();
	s.hyper.micro_batch_size = 1;
	assert_true(compare(s, 3, NULL, &n));
	assert_int_equal(n.instantiated, 6);
	assert_int_equal(n.refused + n.invalid, 0);
	assert_int_equal(n.launched, 2 + 8 + 8);
	assert_int_equal(n.updated, n.launched - n.instantiated);
}

/* Batches with unequal numbers of tokens, so that gradients are scaled otherwise in each step; in
 * bf16. */
static void test_ragged(void **state)
{
	struct emulation_graph_counts n;
	struct job_spec s = spec_of();
	s.task = SPEC_FINE_TUNE;
	s.data.format = SPEC_FORMAT_JSONL;
	s.model.vocab_size = 263;
	s.precision = SPEC_BF16;
	assert_true(compare(s, 3, NULL, &n));
	assert_int_equal(n.instantiated, 4);
	assert_true(n.updated > 0 && n.refused + n.invalid == 0);
}

static void raise_scale(struct engine *e, int step)
{
	struct err err = { 0 };
	struct engine_state s;
	engine_state_get(e, &s);
	s.loss_scale = ENGINE_SCALE_MAX;
	if (step == 2)
		assert_ok(engine_state_set(e, &s, &err));
}

/* The same batch again at half of the scale: what had set off meanwhile was the next one. */
static void test_overflow(void **state)
{
	struct emulation_graph_counts n;
	struct outcome x = { 0 };
	struct job_spec s = small_spec();
	s.hyper.dropout = 0;
	s.precision = SPEC_FP16;
	assert_true(compare(s, 4, raise_scale, &n));
	assert_true(n.launched > 0 && n.updated > 0);
	run(s, true, 3, raise_scale, NULL, &x, NULL);
	assert_true(x.step[2].overflows > 0);
	snapshot_forget(&x.after);
}

/* ------------------------------------------------------------------- what cannot be recorded */

static const struct backend *real;
static struct backend other; /* the same with something planted */
static bool planted_twice;

static struct backend *plant(struct engine *e)
{
	real = engine_backend_cuda(e->plan->type);
	other = *real;
	e->backend = &other;
	return &other;
}

static bool replay_any(struct backend_ctx *ctx, int part, uint64_t key)
{
	return real->replay(ctx, part, 1);
}

static bool recorded_any(struct backend_ctx *ctx, uint64_t key)
{
	return real->recorded(ctx, 1);
}

static void plant_stale(struct engine *e, int step)
{
	struct backend *b = plant(e);
	b->replay = replay_any;
	b->recorded = recorded_any;
}

/* A device that takes every part for the one before is seen: these tests could fail. */
static void test_stale_is_seen(void **state)
{
	struct emulation_graph_counts n;
	assert_false(compare(small_spec(), 4, plant_stale, &n));
	assert_true(n.launched > 0 && n.updated == 0);
}

static void linear_waits(const struct backend_linear *d)
{
	real->linear(d);
	(void)cudaStreamSynchronize(cuda_stream());
}

static void plant_wait(struct engine *e, int step)
{
	plant(e)->linear = linear_waits;
}

/* The forward pass goes on as before, the backward pass is a graph. */
static void test_wait(void **state)
{
	struct emulation_graph_counts n;
	assert_true(compare(small_spec(), 3, plant_wait, &n));
	assert_int_equal(n.invalid, 2); /* of each micro-batch, and then no more */
	assert_int_equal(n.instantiated, 2);
	assert_int_equal(n.launched, 4);
}

static void linear_sums(const struct backend_linear *d)
{
	static double sum;
	real->linear(d);
	real->sum(d->n, d->b, &sum);
}

static void plant_sum(struct engine *e, int step)
{
	plant(e)->linear = linear_sums;
}

/* A number that the host wants has another place each time: no capture forbids it, we do. */
static void test_result(void **state)
{
	struct emulation_graph_counts n;
	assert_true(compare(small_spec(), 3, plant_sum, &n));
	assert_int_equal(n.invalid, 0);
	assert_int_equal(n.instantiated, 2);
	assert_int_equal(n.launched, 4);
}

static void linear_twice(const struct backend_linear *d)
{
	real->linear(d);
	if (planted_twice)
		real->linear(d);
}

static void plant_twice(struct engine *e, int step)
{
	planted_twice = step == 2;
	plant(e)->linear = linear_twice;
}

/* A part of another form cannot be taken over: it is made anew. */
static void test_form(void **state)
{
	struct emulation_graph_counts n;
	assert_true(compare(small_spec(), 4, plant_twice, &n));
	assert_int_equal(n.refused, 4); /* forward, of two micro-batches: to that form and back */
	assert_int_equal(n.instantiated, 4 + 4);
	assert_int_equal(n.launched, 3 * 4);
}

static void trace(
	void *ctx, const struct plan_op *op, int64_t micro, int64_t begin_ns, int64_t end_ns)
{
	++*(int *)ctx;
}

static int traced;
static void plant_trace(struct engine *e, int step)
{
	engine_trace(e, step == 2 ? trace : NULL, &traced);
}

/* A trace is of single operations. */
static void test_trace(void **state)
{
	struct emulation_graph_counts n;
	traced = 0;
	assert_true(compare(small_spec(), 4, plant_trace, &n));
	assert_int_equal(n.launched, 2 * 4);
	assert_true(traced > 0);
}

/* --------------------------------------------------------------------------------- read ahead */

/* What had set off for a run is not taken by another that begins elsewhere, or with other data. */
static void test_restore(void **state)
{
	struct err err = { 0 };
	struct fixture f, g;
	struct snapshot fresh = { 0 };
	struct engine_step first, s;
	fixture_open(&f, spec_of(), 1);
	snapshot_save(f.engine, &fresh);
	assert_ok(engine_step(f.engine, &first, &err));
	assert_true(f.engine->ahead_position == 4);
	assert_ok(engine_step(f.engine, &s, &err));
	snapshot_load(f.engine, &fresh);
	assert_ok(engine_step(f.engine, &s, &err));
	assert_true(s.loss == first.loss && s.grad_norm == first.grad_norm);
	struct fixture_file text = fixture_text(23 * 8 + 3);
	fixture_open_files(&g, spec_of(), 1, &text, 1);
	assert_ok(engine_attach(f.engine, g.data, NULL, &err));
	snapshot_load(f.engine, &fresh);
	assert_ok(engine_step(f.engine, &s, &err));
	assert_ok(engine_step(g.engine, &first, &err));
	assert_true(s.loss == first.loss && s.grad_norm == first.grad_norm);
	fixture_close(&f);
	fixture_close(&g);
	unlink(text.path);
	snapshot_forget(&fresh);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_steady),
		cmocka_unit_test(test_dropout),
		cmocka_unit_test(test_ragged),
		cmocka_unit_test(test_overflow),
		cmocka_unit_test(test_stale_is_seen),
		cmocka_unit_test(test_wait),
		cmocka_unit_test(test_result),
		cmocka_unit_test(test_form),
		cmocka_unit_test(test_trace),
		cmocka_unit_test(test_restore),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 * Runs repeat bit for bit: twice, on one and two threads, with any checkpointing of activations,
 * and continued from any step; the order of the data and the learning rate with them. */
#include "tests/unit/workers/engine/engine_cases.h"
#include "workers/engine/data/data_private.h"
#include "workers/engine/engine_private.h"

enum { STEPS = 20 };

struct run {
	struct engine_step step[STEPS];
	struct snapshot at[STEPS + 1];
};

static void check_step(
	const char *what, int step, const struct engine_step *a, const struct engine_step *b)
{
	if (a->loss != b->loss || a->grad_norm != b->grad_norm ||
		a->learning_rate != b->learning_rate || a->epoch != b->epoch || a->tokens != b->tokens ||
		a->loss_scale != b->loss_scale || a->overflows != b->overflows)
		fail_msg("%s, step %d: loss %.17g norm %.17g, was %.17g %.17g", what, step, b->loss,
			b->grad_norm, a->loss, a->grad_norm);
}

/* The whole job with a snapshot before each step. */
static void run_all(struct engine *e, struct run *r)
{
	struct err err = { 0 };
	for (int i = 0; i < STEPS; i++) {
		snapshot_save(e, &r->at[i]);
		assert_ok(engine_step(e, &r->step[i], &err));
		assert_false(r->step[i].non_finite);
	}
	snapshot_save(e, &r->at[STEPS]);
}

static void forget_all(struct run *r)
{
	for (int i = 0; i <= STEPS; i++)
		snapshot_forget(&r->at[i]);
}

/* A fresh engine on the same plan and data continues from step k; evaluations in between leave no
 * trace. */
static void check_from(struct fixture *f, const char *name, const struct run *r, int k, int threads)
{
	struct err err = { 0 };
	struct fixture g = *f;
	fixture_engine(&g, threads);
	snapshot_load(g.engine, &r->at[k]);
	for (int i = k; i < STEPS; i++) {
		struct engine_step s;
		struct engine_evaluation x;
		if (i % 7 == 3)
			assert_ok(engine_evaluate(g.engine, NULL, NULL, &x, &err));
		assert_ok(engine_step(g.engine, &s, &err));
		check_step(name, i, &r->step[i], &s);
	}
	assert_same(g.engine, &r->at[STEPS], name);
	engine_destroy(g.engine);
}

static void check_resume(const char *name, const struct job_spec *spec)
{
	static struct run r;
	struct fixture f;
	fixture_open(&f, *spec, 1);
	run_all(f.engine, &r);
	assert_true(r.step[STEPS - 1].loss != r.step[0].loss);
	for (int k = 0; k < STEPS; k++)
		check_from(&f, name, &r, k, 1);
	check_from(&f, name, &r, 0, 2);
	check_from(&f, name, &r, 13, 2);
	forget_all(&r);
	fixture_close(&f);
}

static void check_precision(enum spec_precision precision)
{
	struct engine_case cases[CASES_MAX];
	int count = case_families(cases);
	for (int i = 0; i < count; i++) {
		char name[96];
		snprintf(name, sizeof(name), "%s in %s", cases[i].name, case_precision[precision]);
		cases[i].spec.precision = precision;
		cases[i].spec.hyper.max_steps = STEPS;
		check_resume(name, &cases[i].spec);
	}
}

static void test_fp32(void **state)
{
	check_precision(SPEC_FP32);
}

static void test_bf16(void **state)
{
	check_precision(SPEC_BF16);
}

/* What masters are rounded to is drawn for each step anew, and again by a run that goes on. */
static void test_stochastic_rounding(void **state)
{
	struct job_spec s = case_language(SPEC_GPT2);
	s.precision = SPEC_BF16;
	s.hyper.stochastic_rounding = true;
	s.hyper.max_steps = STEPS;
	check_resume("gpt2, rounded stochastically", &s);
	s = fixture_spec(SPEC_MLP);
	s.precision = SPEC_BF16;
	s.hyper.stochastic_rounding = true;
	s.hyper.optimizer = SPEC_SGD;
	s.hyper.max_steps = STEPS;
	check_resume("mlp, rounded stochastically", &s);
}

static int64_t silent(const struct data *d, int64_t index)
{
	return 0;
}

/* A batch without one label leaves the masters, but what they are rounded to is the next step's:
 * what a run that goes on from there reads. No format of ours makes such a batch. */
static void test_nothing_to_learn_is_rounded(void **state)
{
	struct err err = { 0 };
	struct fixture f, g;
	struct engine_step s;
	struct snapshot after;
	struct job_spec spec = case_fine_tune(SPEC_GPT2, false);
	spec.data.shuffle = false;
	spec.precision = SPEC_BF16;
	spec.hyper.stochastic_rounding = true;
	fixture_open(&f, spec, 1);
	struct data_reader reader = *f.data->reader;
	const struct data_reader *loud = f.data->reader;
	reader.valid_rows = silent;
	f.data->reader = &reader;
	g = f;
	fixture_engine(&g, 1);
	assert_ok(engine_step(f.engine, &s, &err));
	snapshot_save(f.engine, &after);
	int64_t differ = 0;
	for (int turn = 0; turn < 2; turn++) {
		for (int i = 0; i < f.plan->param_count; i++) {
			const struct plan_buffer *b = &f.plan->buffers[f.plan->params[i].weight];
			differ += memcmp(engine_buffer(f.engine, f.plan->params[i].weight),
						  engine_buffer(g.engine, f.plan->params[i].weight), (size_t)b->bytes) != 0;
		}
		assert_true(turn == 0 ? differ > 0 : differ == 0);
		snapshot_load(g.engine, &after);
		differ = 0;
	}
	f.data->reader = loud;
	snapshot_forget(&after);
	engine_destroy(g.engine);
	fixture_close(&f);
}

static void test_fp16(void **state)
{
	check_precision(SPEC_FP16);
}

/* Activations that are computed again are the same bits: so are losses and weights. */
static void test_checkpointing(void **state)
{
	struct engine_case cases[CASES_MAX];
	int count = case_families(cases);
	for (int i = 0; i < count * 3; i++) {
		static struct run r;
		struct fixture f;
		struct job_spec s = cases[i / 3].spec;
		char name[96];
		s.precision = (enum spec_precision)(i % 3);
		s.hyper.max_steps = STEPS;
		if (!spec_is_language(&s))
			continue; /* the plan refuses it */
		fixture_open(&f, s, 1);
		run_all(f.engine, &r);
		for (int k = SPEC_SELECTIVE; k <= SPEC_FULL; k++) {
			struct fixture g;
			s.checkpointing = (enum spec_checkpointing)k;
			snprintf(name, sizeof(name), "%s in %s, checkpointing %d", cases[i / 3].name,
				case_precision[i % 3], k);
			fixture_open_files(&g, s, 1, f.file, f.files);
			if (k == SPEC_FULL)
				assert_true(g.plan->total_bytes < f.plan->total_bytes);
			for (int j = 0; j < STEPS; j++) {
				struct err err = { 0 };
				struct engine_step step;
				assert_ok(engine_step(g.engine, &step, &err));
				check_step(name, j, &r.step[j], &step);
			}
			assert_same(g.engine, &r.at[STEPS], name);
			fixture_close(&g);
		}
		forget_all(&r);
		fixture_close(&f);
	}
}

/* Regression targets that are the samples' own numbers tell which sample came. */
enum { SAMPLES = 37, BATCH = 6, MICRO = 3, EPOCHS = 3 };
struct seen {
	struct engine *e;
	int64_t micro, step;
	int count;
	int id[SAMPLES * EPOCHS + BATCH];
};

static void look(
	void *ctx, const struct plan_op *op, int64_t micro, int64_t begin_ns, int64_t end_ns)
{
	struct seen *s = ctx;
	if (op != s->e->plan->ops)
		return;
	const float *targets = engine_buffer(s->e, s->e->plan->inputs.labels);
	for (int i = 0; i < MICRO; i++)
		s->id[s->count++] = (int)targets[i];
}

static struct fixture_file numbers(int columns)
{
	unsigned char x[12 + 4 * SAMPLES * 2] = { 0, 0, 0x0d, 2 };
	fixture_put32(x + 4, SAMPLES);
	fixture_put32(x + 8, (uint32_t)columns);
	for (int i = 0; i < SAMPLES * columns; i++) {
		union {
			float f;
			uint32_t u;
		} v = { .f = (float)(i / columns) };
		fixture_put32(x + 12 + 4 * i, v.u);
	}
	return fixture_write(x, 12 + 4 * (size_t)(SAMPLES * columns));
}

static void open_numbers(struct fixture *f, const struct fixture_file *files)
{
	struct job_spec s = case_regression();
	s.model.in_width = 2;
	s.model.n_classes = 1;
	s.hyper.batch_size = BATCH;
	s.hyper.micro_batch_size = MICRO;
	s.hyper.epochs = EPOCHS;
	s.hyper.learning_rate = 1e-9; /* targets of this size would throw it far off */
	fixture_open_files(f, s, 1, files, 2);
}

/* Every sample once in each epoch; the order differs between epochs; a run continued anywhere, in
 * the middle of an epoch or at its end, sees what the uninterrupted one saw. */
static void test_samples(void **state)
{
	struct err err = { 0 };
	struct fixture f;
	struct engine_step step;
	struct fixture_file files[2] = { numbers(2), numbers(1) };
	open_numbers(&f, files);
	struct seen all = { .e = f.engine };
	engine_trace(f.engine, look, &all);
	int steps = (int)f.plan->total_steps;
	assert_int_equal(steps, (SAMPLES * EPOCHS + BATCH - 1) / BATCH);
	for (int i = 0; i < steps; i++)
		assert_ok(engine_step(f.engine, &step, &err));
	assert_int_equal(all.count, steps * BATCH);
	for (int epoch = 0; epoch < EPOCHS; epoch++) {
		int seen[SAMPLES] = { 0 };
		for (int i = 0; i < SAMPLES; i++)
			seen[all.id[epoch * SAMPLES + i]]++;
		for (int i = 0; i < SAMPLES; i++)
			assert_int_equal(seen[i], 1);
	}
	assert_memory_not_equal(all.id, all.id + SAMPLES, SAMPLES * sizeof(int));
	for (int k = 1; k < steps; k++) {
		struct fixture g = f;
		fixture_engine(&g, 1);
		struct seen rest = { .e = g.engine };
		struct engine_state from = {
			.step = k, .position = (int64_t)k * BATCH, .loss_scale = 1, .seed = f.spec.seed
		};
		assert_ok(engine_step(g.engine, &step, &err)); /* what was read ahead is thrown away */
		assert_ok(engine_state_set(g.engine, &from, &err));
		engine_trace(g.engine, look, &rest);
		for (int i = k; i < steps; i++)
			assert_ok(engine_step(g.engine, &step, &err));
		assert_int_equal(rest.count, (steps - k) * BATCH);
		assert_memory_equal(rest.id, all.id + k * BATCH, (size_t)rest.count * sizeof(int));
		engine_destroy(g.engine);
	}
	fixture_close(&f);
	unlink(files[0].path);
	unlink(files[1].path);
}

/* The rate is a function of the step alone, for every schedule. */
static void test_learning_rate(void **state)
{
	for (int k = 0; k <= SPEC_COSINE; k++) {
		struct err err = { 0 };
		struct fixture f;
		struct engine_step step;
		struct job_spec s = fixture_spec(SPEC_MLP);
		s.hyper.schedule = (enum spec_schedule)k;
		s.hyper.max_steps = STEPS;
		fixture_open(&f, s, 1);
		for (int from = 0; from < STEPS; from++) {
			struct engine_state at = {
				.step = from, .position = from * s.hyper.batch_size, .loss_scale = 1, .seed = s.seed
			};
			assert_ok(engine_state_set(f.engine, &at, &err));
			for (int i = from; i < STEPS; i++) {
				assert_ok(engine_step(f.engine, &step, &err));
				assert_true(step.learning_rate == plan_learning_rate(&s, STEPS, i));
				assert_true(step.step == i + 1);
			}
		}
		fixture_close(&f);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_fp32),
		cmocka_unit_test(test_bf16),
		cmocka_unit_test(test_stochastic_rounding),
		cmocka_unit_test(test_nothing_to_learn_is_rounded),
		cmocka_unit_test(test_fp16),
		cmocka_unit_test(test_checkpointing),
		cmocka_unit_test(test_samples),
		cmocka_unit_test(test_learning_rate),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 * One optimizer step: the mean over a batch however it is cut, its report, clipping, updates,
 * averages, adapters, and what happens when nothing can be learnt. */
#include "tests/unit/workers/engine/engine_cases.h"
#include "workers/engine/data/data_private.h"
#include "workers/engine/engine_private.h"

/* All dense gradients in one array, in the order of the parameters. */
static float *gradients(const struct fixture *f, int64_t *ret_count)
{
	float *x = malloc((size_t)f->plan->flat_count * sizeof(float));
	int64_t n = 0;
	for (int i = 0; i < f->plan->param_count; i++) {
		const struct plan_param *p = &f->plan->params[i];
		if (p->gradient < 0)
			continue;
		memcpy(x + n, engine_buffer(f->engine, p->gradient), (size_t)p->count * sizeof(float));
		n += p->count;
	}
	*ret_count = n;
	return x;
}

static double distance(const float *a, const float *b, int64_t count)
{
	double diff = 0, size = 1e-300;
	for (int64_t i = 0; i < count; i++) {
		diff += pow((double)a[i] - (double)b[i], 2);
		size += pow((double)a[i], 2);
	}
	return sqrt(diff / size);
}

/* Cutting the batch in 1, 2, 4 or 8 changes nothing but the order of additions, whatever number of
 * valid rows each piece has. Sparse gradients are compared by what the step makes of the tables.
 * Batch norm's statistics are of the micro-batch, so its models are not the same model. */
static void check_accumulation(const char *name, struct job_spec s)
{
	struct err err = { 0 };
	float *g[4];
	int64_t count = 0, total_bytes[4];
	struct engine_step step[4];
	struct snapshot after = { .count = 0 };
	s.hyper.dropout = s.lora.dropout = 0; /* a mask depends on the place in the micro-batch */
	s.hyper.optimizer = SPEC_SGD;         /* AdamW's first step has the gradient's sign alone */
	s.hyper.warmup_steps = 0;
	for (int k = 0; k < 4; k++) {
		struct fixture f;
		s.hyper.micro_batch_size = 8 >> k;
		fixture_open(&f, s, 1);
		assert_int_equal(f.plan->micro_steps, 1 << k);
		assert_ok(engine_step(f.engine, &step[k], &err));
		g[k] = gradients(&f, &count);
		total_bytes[k] = f.plan->total_bytes;
		if (k == 0)
			snapshot_save(f.engine, &after);
		for (int i = 0; i < f.plan->param_count && k > 0; i++) {
			struct engine_tensor t;
			engine_tensor_at(f.engine, i, &t);
			double d = t.type == PLAN_F32 ? distance(after.tensor[i], t.data, t.bytes / 4) : 0;
			if (!(d < 1e-6))
				fail_msg("%s: %s differs by %.3g in %d pieces", name, t.name, d, 1 << k);
		}
		fixture_close(&f);
	}
	for (int k = 1; k < 4; k++) {
		double d = distance(g[0], g[k], count);
		if (!(d < 1e-6) || fabs(step[k].loss / step[0].loss - 1) > 1e-6 ||
			fabs(step[k].grad_norm / step[0].grad_norm - 1) > 1e-6)
			fail_msg("%s: gradients differ by %.3g in %d pieces, loss %.9g and %.9g", name, d,
				1 << k, step[0].loss, step[k].loss);
		assert_int_equal(step[k].tokens, step[0].tokens);
		assert_true(total_bytes[k] <= total_bytes[k - 1]);
	}
	for (int k = 0; k < 4; k++)
		free(g[k]);
	snapshot_forget(&after);
}

static void test_accumulation(void **state)
{
	struct engine_case cases[CASES_MAX];
	int count = case_families(cases);
	for (int i = 0; i < count; i++)
		if (cases[i].spec.model.family != SPEC_CNN || cases[i].spec.model.block == SPEC_BLOCK_PLAIN)
			check_accumulation(cases[i].name, cases[i].spec);
}

/* The masks of that test are unequal: else it would show nothing. */
static void test_ragged(void **state)
{
	struct fixture f;
	fixture_open(&f, case_fine_tune(SPEC_LLAMA, true), 1);
	int64_t least = INT64_MAX, most = 0;
	for (int64_t i = 0; i < data_info(f.data)->samples; i++) {
		int64_t valid = data_valid_rows(f.data, i);
		least = valid < least ? valid : least;
		most = valid > most ? valid : most;
	}
	assert_true(least > 0 && most > least + 3);
	fixture_close(&f);
}

static void test_report(void **state)
{
	struct err err = { 0 };
	struct fixture f;
	struct engine_step s;
	struct engine_state st;
	fixture_open(&f, fixture_spec(SPEC_GPT2), 1);
	assert_int_equal(f.plan->total_steps, 10); /* ceil(2 * 37 / 8) */
	for (int i = 0; i < 10; i++) {
		assert_ok(engine_step(f.engine, &s, &err));
		assert_int_equal(s.step, i + 1);
		assert_int_equal(s.samples, 8);
		assert_int_equal(s.tokens, 96);
		assert_true(s.learning_rate == plan_learning_rate(&f.spec, 10, i));
		assert_true(s.loss_scale == 1 && s.overflows == 0 && s.wait_us >= 0);
	}
	assert_true(fabs(s.epoch - 80.0 / 37) < 1e-12);
	engine_state_get(f.engine, &st);
	assert_int_equal(st.position, 80);
	assert_int_equal(st.tokens, 960);
	fixture_close(&f);
}

/* Tokens are those with a loss, as the data counts them. */
static void test_report_masked(void **state)
{
	struct err err = { 0 };
	struct fixture f;
	struct engine_step s;
	struct engine_state st;
	fixture_open(&f, case_fine_tune(SPEC_GPT2, false), 1);
	int64_t samples = data_info(f.data)->samples, tokens = 0;
	for (int64_t i = 0; i < samples; i++)
		tokens += data_valid_rows(f.data, i);
	assert_int_equal(tokens, data_info(f.data)->tokens);
	int64_t expected = 0;
	for (int i = 0; i < 3; i++) {
		assert_ok(engine_step(f.engine, &s, &err));
		int64_t valid = 0;
		for (int64_t k = 0; k < 8; k++)
			valid += data_valid_rows(
				f.data, data_sample_at(samples, (uint64_t)f.spec.seed, true, 8 * i + k));
		assert_int_equal(s.tokens, valid);
		expected += valid;
	}
	engine_state_get(f.engine, &st);
	assert_int_equal(st.tokens, expected);
	fixture_close(&f);
}

/* Learning happens at all: each family halves its loss (texts are noise: it learns the letters),
 * but for adapters of a base that is random. */
static void test_learns(void **state)
{
	struct engine_case cases[CASES_MAX];
	int count = case_families(cases);
	for (int i = 0; i < count * 3; i++) {
		struct err err = { 0 };
		struct fixture f;
		struct engine_step s;
		struct job_spec spec = cases[i / 3].spec;
		double first = 0, goal = spec.lora.rank > 0 ? 0.95 : 0.5;
		spec.precision = (enum spec_precision)(i % 3);
		spec.hyper.dropout = spec.hyper.label_smoothing = 0;
		spec.hyper.max_steps = 200;
		spec.hyper.weight_decay = 0;
		spec.hyper.learning_rate = spec.hyper.optimizer == SPEC_SGD ? 0.1 : 0.02;
		fixture_open(&f, spec, 1);
		for (int k = 0; k < 200; k++) {
			assert_ok(engine_step(f.engine, &s, &err));
			assert_false(s.non_finite);
			first = k == 0 ? s.loss : first;
			if (s.loss < goal * first)
				break;
		}
		if (!(s.loss < goal * first))
			fail_msg("%s in %s: loss %.3f after %.3f", cases[i / 3].name, case_precision[i % 3],
				s.loss, first);
		fixture_close(&f);
	}
}

/* The update is AdamW's, with the bias corrections of the right step, from the gradients that the
 * engine left behind, with decay for weights and without for biases. */
static void test_adamw_steps(void **state)
{
	struct err err = { 0 };
	struct fixture f;
	struct job_spec spec = fixture_spec(SPEC_MLP);
	spec.hyper.grad_clip = 0;
	fixture_open(&f, spec, 1);
	for (int i = 0; i < f.plan->param_count; i++) {
		const struct plan_param *p = &f.plan->params[i];
		const float *w = engine_buffer(f.engine, p->weight),
					*g = engine_buffer(f.engine, p->gradient);
		double *x = calloc(3 * (size_t)p->count, sizeof(double)), *m = x + p->count,
			   *v = m + p->count, moved = 0;
		assert_ok(engine_init_params(f.engine, &err));
		for (int64_t k = 0; k < p->count; k++)
			x[k] = (double)w[k];
		for (int step = 1; step <= 3; step++) {
			struct engine_step s;
			assert_ok(engine_step(f.engine, &s, &err));
			for (int64_t k = 0; k < p->count; k++) {
				double d = (double)g[k], before = x[k];
				m[k] = 0.9 * m[k] + 0.1 * d;
				v[k] = 0.95 * v[k] + 0.05 * d * d;
				double hat =
					m[k] / (1 - pow(0.9, step)) / (sqrt(v[k] / (1 - pow(0.95, step))) + 1e-8);
				x[k] -= s.learning_rate * (hat + (p->rank > 1 ? 0.1 : 0) * x[k]);
				moved = fmax(moved, fabs(x[k] - before));
			}
			assert_close(w, x, p->count, 1e-5);
		}
		assert_true(moved > 1e-3);
		free(x);
	}
	fixture_close(&f);
}

/* Gradients longer than grad_clip are shortened to it: without decay and momentum, SGD moves by
 * exactly learning rate times grad_clip, tables and dense parameters together. */
static void check_clip(struct job_spec spec)
{
	struct err err = { 0 };
	struct fixture f;
	struct engine_step s;
	struct snapshot before;
	spec.hyper.optimizer = SPEC_SGD;
	spec.hyper.momentum = spec.hyper.weight_decay = 0;
	spec.hyper.grad_clip = 0.01;
	fixture_open(&f, spec, 1);
	snapshot_save(f.engine, &before);
	assert_ok(engine_step(f.engine, &s, &err));
	assert_true(s.grad_norm > 0.1);
	double moved = 0, tables = 0;
	for (int i = 0; i < before.count; i++) {
		struct engine_tensor t;
		engine_tensor_at(f.engine, i, &t);
		double square = 0;
		for (int64_t k = 0; k < t.bytes / 4; k++)
			square += pow((double)((float *)t.data)[k] - (double)((float *)before.tensor[i])[k], 2);
		moved += square;
		tables += f.plan->params[i].sparse ? square : 0;
	}
	assert_true(fabs(sqrt(moved) / (s.learning_rate * 0.01) - 1) < 1e-3);
	assert_true(f.plan->sparse_count == 0 || tables > 1e-4 * moved);
	snapshot_forget(&before);
	fixture_close(&f);
}

static void test_clip(void **state)
{
	check_clip(fixture_spec(SPEC_MLP));
	struct job_spec s = case_dlrm();
	s.precision = SPEC_BF16;
	check_clip(s);
	s = case_language(SPEC_LLAMA);
	s.precision = SPEC_FP16; /* the scale is taken out again */
	check_clip(s);
}

/* y += (1 - decay)(x - y) after each step, from the weights before the first, tables too. */
static void check_average(struct job_spec spec)
{
	enum { COUNT = 5 };
	struct err err = { 0 };
	struct fixture f;
	struct engine_step s;
	spec.hyper.ema_decay = 0.75;
	fixture_open(&f, spec, 1);
	int n = f.plan->param_count;
	double *expected[SNAPSHOT_MAX] = { 0 };
	for (int step = 0; step <= COUNT; step++) {
		for (int i = 0; i < n; i++) {
			struct engine_tensor t;
			engine_tensor_at(f.engine, i, &t);
			if (t.role != PLAN_TRAINED)
				continue;
			int64_t count = t.bytes / 4;
			const float *w = t.data;
			if (step == 0)
				expected[i] = calloc((size_t)count, sizeof(double));
			for (int64_t k = 0; k < count; k++)
				expected[i][k] += (step ? 0.25 : 1) * ((double)w[k] - expected[i][k]);
			assert_close((float *)engine_buffer(f.engine, f.plan->params[i].average), expected[i],
				count, 1e-5);
		}
		assert_ok(engine_step(f.engine, &s, &err));
	}
	for (int i = 0; i < n; i++)
		free(expected[i]);
	fixture_close(&f);
}

static void test_average(void **state)
{
	check_average(fixture_spec(SPEC_MLP));
	check_average(case_dlrm());
	struct job_spec s = case_lora(case_language(SPEC_LLAMA), 0);
	s.precision = SPEC_BF16;
	check_average(s);
}

static const struct data_reader *loud;

static int64_t silent_first(const struct data *d, int64_t index)
{
	return index < 8 ? 0 : loud->valid_rows(d, index);
}

/* Weights that come from a file are where the average begins. */
static void test_average_of_given(void **state)
{
	struct err err = { 0 };
	struct fixture f;
	struct engine_step s;
	struct engine_tensor t;
	struct job_spec spec = fixture_spec(SPEC_MLP);
	spec.hyper.ema_decay = 0.999;
	fixture_open(&f, spec, 1);
	engine_tensor_at(f.engine, 0, &t);
	for (int64_t k = 0; k < t.bytes / 4; k++)
		((float *)t.data)[k] = 7;
	assert_ok(engine_parameters_changed(f.engine, &err));
	assert_ok(engine_step(f.engine, &s, &err));
	const float *average = engine_buffer(f.engine, f.plan->params[0].average);
	for (int64_t k = 0; k < t.bytes / 4; k++)
		assert_true(fabsf(average[k] - 7) < 1e-3f);
	fixture_close(&f);
}

/* And there it begins also when the first batch has nothing to learn. */
static void test_average_of_silent(void **state)
{
	struct err err = { 0 };
	struct fixture f;
	struct engine_step s;
	struct engine_tensor t;
	struct job_spec spec = case_fine_tune(SPEC_GPT2, false);
	spec.data.shuffle = false;
	spec.hyper.ema_decay = 0.999;
	fixture_open(&f, spec, 1);
	struct data_reader reader = *f.data->reader;
	loud = f.data->reader;
	reader.valid_rows = silent_first;
	f.data->reader = &reader;
	engine_tensor_at(f.engine, 0, &t);
	for (int64_t k = 0; k < t.bytes / 4; k++)
		((float *)t.data)[k] = 7;
	assert_ok(engine_parameters_changed(f.engine, &err));
	assert_ok(engine_step(f.engine, &s, &err));
	assert_true(s.loss == 0);
	const float *average = engine_buffer(f.engine, f.plan->params[0].average);
	for (int64_t k = 0; k < t.bytes / 4; k++)
		assert_true(average[k] == 7);
	f.data->reader = loud;
	fixture_close(&f);
}

/* After one step every lora_B has moved; the base never does, whatever is computed again. */
static void check_adapter(const char *name, struct job_spec spec)
{
	struct err err = { 0 };
	struct fixture f;
	struct engine_step s;
	struct snapshot before;
	fixture_open(&f, spec, 1);
	snapshot_save(f.engine, &before);
	int adapters = 0, frozen = 0;
	for (int step = 0; step < 3; step++)
		assert_ok(engine_step(f.engine, &s, &err));
	snapshot_load(f.engine, &before);
	assert_ok(engine_step(f.engine, &s, &err));
	for (int i = 0; i < f.plan->param_count; i++) {
		struct engine_tensor t;
		engine_tensor_at(f.engine, i, &t);
		bool same = memcmp(t.data, before.tensor[i], (size_t)t.bytes) == 0;
		if (t.role == PLAN_FROZEN) {
			assert_true(same);
			frozen++;
			continue;
		}
		if (!strstr(t.name, ".lora_B."))
			continue;
		adapters++;
		for (int64_t k = 0; k < t.bytes / 4; k++) {
			assert_true(((float *)before.tensor[i])[k] == 0);
			if (((float *)t.data)[k] == 0)
				fail_msg("%s: element %lld of %s was not trained", name, (long long)k, t.name);
		}
	}
	assert_int_equal(adapters, spec.model.n_layer * (spec.model.family == SPEC_GPT2 ? 4 : 5));
	assert_true(frozen > adapters);
	snapshot_forget(&before);
	fixture_close(&f);
}

static void test_adapter(void **state)
{
	for (int i = 0; i < 18; i++) {
		char name[96];
		enum spec_family family = i % 2 ? SPEC_LLAMA : SPEC_GPT2;
		struct job_spec s = case_lora(case_language(family), 0);
		s.precision = (enum spec_precision)(i / 2 % 3);
		s.checkpointing = (enum spec_checkpointing)(i / 6);
		snprintf(name, sizeof(name), "%s in %s, checkpointing %d", i % 2 ? "llama" : "gpt2",
			case_precision[i / 2 % 3], i / 6);
		check_adapter(name, s);
	}
}

/* Every weight is infinite: the step does not count and touches nothing, running statistics
 * included. */
static void check_non_finite(const char *name, struct job_spec spec)
{
	struct err err = { 0 };
	struct fixture f;
	struct engine_step s;
	struct snapshot before;
	struct engine_tensor t;
	fixture_open(&f, spec, 1);
	assert_ok(engine_step(f.engine, &s, &err));
	engine_tensor_at(f.engine, 0, &t);
	for (int64_t i = 0; i < t.bytes / 4; i++)
		((float *)t.data)[i] = INFINITY;
	assert_ok(engine_parameters_changed(f.engine, &err));
	snapshot_save(f.engine, &before);
	assert_ok(engine_step(f.engine, &s, &err));
	assert_true(s.non_finite);
	assert_int_equal(s.samples, 0);
	assert_int_equal(s.step, 1);
	struct engine_state after;
	engine_state_get(f.engine, &after);
	assert_memory_equal(&after, &before.state, sizeof(after));
	assert_same(f.engine, &before, name);
	snapshot_forget(&before);
	fixture_close(&f);
}

static void test_non_finite(void **state)
{
	check_non_finite("gpt2", fixture_spec(SPEC_GPT2));
	struct job_spec s = case_resnet(SPEC_BLOCK_BASIC, SPEC_STEM_3);
	check_non_finite("resnet", s);
	s.precision = SPEC_BF16;
	check_non_finite("resnet in bf16", s);
}

/* A batch without one label: the step counts, nothing moves, nothing is NaN, and the next batch is
 * the next one. No format of ours makes such a batch: the reader is told to. */
static void test_nothing_to_learn(void **state)
{
	struct err err = { 0 };
	struct fixture f;
	struct engine_step s;
	struct snapshot before, after;
	struct job_spec spec = case_fine_tune(SPEC_GPT2, false);
	spec.data.shuffle = false;
	spec.hyper.ema_decay = 0.9;
	fixture_open(&f, spec, 1);
	struct data_reader reader = *f.data->reader;
	loud = f.data->reader;
	reader.valid_rows = silent_first;
	f.data->reader = &reader;
	snapshot_save(f.engine, &before);
	assert_ok(engine_step(f.engine, &s, &err));
	assert_true(s.loss == 0 && s.grad_norm == 0 && s.tokens == 0 && !s.non_finite);
	assert_int_equal(s.samples, 8);
	assert_int_equal(s.step, 1);
	assert_same(f.engine, &before, "gpt2");
	snapshot_save(f.engine, &after);
	assert_true(after.state.step == 1 && after.state.position == 8 && after.state.tokens == 0);
	assert_ok(engine_step(f.engine, &s, &err));
	assert_true(s.loss > 0 && s.grad_norm > 0);
	int64_t tokens = 0;
	for (int i = 8; i < 16; i++)
		tokens += data_valid_rows(f.data, i);
	assert_int_equal(s.tokens, tokens);
	assert_non_null(snapshot_difference(f.engine, &before));
	f.data->reader = loud;
	snapshot_forget(&before);
	snapshot_forget(&after);
	fixture_close(&f);
}

/* A mask is a function of the place in the stream, the site and the seed: the same again there,
 * another elsewhere. */
static void test_dropout(void **state)
{
	struct fixture f;
	char text[37 * 12 + 6];
	for (size_t i = 0; i < sizeof(text); i++)
		text[i] = "trainyard 37"[i % 12];
	struct fixture_file file = fixture_write(text, sizeof(text));
	struct job_spec spec = case_language(SPEC_GPT2);
	spec.hyper.dropout = 0.3;
	double loss[5];
	for (int k = 0; k < 5; k++) {
		spec.seed = k == 4 ? 43 : 42;
		fixture_open_files(&f, spec, 1, &file, 1);
		for (int i = 0; i < f.plan->param_count; i++) { /* one model for all seeds */
			struct engine_tensor t;
			engine_tensor_at(f.engine, i, &t);
			uint64_t random = (uint64_t)i;
			for (int64_t n = 0; n < t.bytes / 4; n++)
				((float *)t.data)[n] = (float)fixture_random(&random);
		}
		f.engine->state.position = k == 3 ? 8 : 0;
		f.engine->backend->enter(f.engine->ctx);
		loss[k] = fixture_micro(f.engine, k == 2, 0.1f);
		fixture_close(&f);
	}
	assert_true(loss[1] == loss[0]);
	assert_true(loss[2] != loss[0] && loss[3] != loss[0] && loss[4] != loss[0]);
	assert_true(loss[3] != loss[2]);
	unlink(file.path);
}

/* Each operation is told once per micro-batch, the optimizer's once per step; evaluations are not.
 */
struct told {
	const struct plan *p;
	int64_t count, at_ns;
};

static void tell(
	void *ctx, const struct plan_op *op, int64_t micro, int64_t begin_ns, int64_t end_ns)
{
	struct told *t = ctx;
	int64_t each = t->p->optimize_begin;
	int64_t passes = t->count / each < t->p->micro_steps ? t->count / each : t->p->micro_steps - 1;
	assert_ptr_equal(op, &t->p->ops[t->count - passes * each]);
	assert_int_equal(micro, passes);
	assert_true(begin_ns >= t->at_ns && end_ns >= begin_ns);
	t->at_ns = end_ns;
	t->count++;
}

static void test_trace(void **state)
{
	struct err err = { 0 };
	struct fixture f;
	struct engine_step s;
	struct engine_evaluation x;
	fixture_open(&f, fixture_spec(SPEC_CNN), 1);
	struct told t = { .p = f.plan };
	engine_trace(f.engine, tell, &t);
	assert_ok(engine_evaluate(f.engine, NULL, NULL, &x, &err));
	assert_int_equal(t.count, 0);
	assert_ok(engine_step(f.engine, &s, &err));
	assert_int_equal(t.count,
		f.plan->micro_steps * f.plan->optimize_begin + f.plan->op_count - f.plan->optimize_begin);
	engine_trace(f.engine, NULL, NULL);
	assert_ok(engine_step(f.engine, &s, &err));
	fixture_close(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_accumulation),
		cmocka_unit_test(test_ragged),
		cmocka_unit_test(test_report),
		cmocka_unit_test(test_report_masked),
		cmocka_unit_test(test_learns),
		cmocka_unit_test(test_adamw_steps),
		cmocka_unit_test(test_clip),
		cmocka_unit_test(test_average),
		cmocka_unit_test(test_average_of_given),
		cmocka_unit_test(test_average_of_silent),
		cmocka_unit_test(test_adapter),
		cmocka_unit_test(test_non_finite),
		cmocka_unit_test(test_nothing_to_learn),
		cmocka_unit_test(test_dropout),
		cmocka_unit_test(test_trace),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}

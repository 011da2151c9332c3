/* SPDX-License-Identifier: Apache-2.0
 * Evaluation sees every sample once and leaves no trace; its figures; logits; the area under the
 * ROC curve. */
#include "tests/unit/workers/engine/engine_cases.h"
#include "workers/engine/engine_private.h"

/* All samples count once, whatever the batch: 37 is no multiple of anything. */
static void test_evaluation(void **state)
{
	struct engine_case cases[CASES_MAX];
	int count = case_families(cases);
	for (int i = 0; i < count; i++) {
		const char *name = cases[i].name;
		struct job_spec s = cases[i].spec;
		struct engine_evaluation x[2];
		struct data_info info = { 0 };
		for (int k = 0; k < 2; k++) {
			struct err err = { 0 };
			struct fixture f;
			s.hyper.micro_batch_size = k ? 8 : 1;
			fixture_open(&f, s, 1);
			info = *data_info(f.data);
			assert_ok(engine_evaluate(f.engine, NULL, NULL, &x[k], &err));
			fixture_close(&f);
		}
		if (!(fabs(x[0].loss - x[1].loss) < 1e-5 * x[0].loss))
			fail_msg("%s: loss %.9g and %.9g", name, x[0].loss, x[1].loss);
		assert_true(x[0].accuracy == x[1].accuracy && x[0].auc == x[1].auc);
		assert_true(s.task == SPEC_REGRESSION ? x[0].accuracy == 0 : x[0].accuracy <= 1);
		assert_true((x[0].auc > 0) == (s.task == SPEC_CLICK_THROUGH));
		bool text = s.data.format == SPEC_FORMAT_TEXT;
		/* The text's last window is partial. */
		assert_int_equal(x[0].samples, text ? 38 : info.samples);
		assert_int_equal(x[0].tokens, text ? 37 * 12 + 5 : info.tokens);
		assert_true(text ? fabs(x[0].bits_per_byte - x[0].loss / log(2)) < 1e-12
						 : s.data.format == SPEC_FORMAT_JSONL || x[0].bits_per_byte == 0);
		assert_true(!text || (x[0].order0_bits_per_byte > 4.5 && x[0].order0_bits_per_byte < 4.71));
	}
}

/* A model of zeros gives every class the same chance: the loss over all rows is exactly known, with
 * a vocabulary that is a prime too. */
static void test_evaluation_of_nothing(void **state)
{
	struct engine_case cases[CASES_MAX];
	int count = case_families(cases);
	for (int i = 0; i < count * 3; i++) {
		struct err err = { 0 };
		struct fixture f;
		struct engine_evaluation x;
		struct job_spec s = cases[i / 3].spec;
		if (s.task == SPEC_REGRESSION)
			continue;
		s.precision = (enum spec_precision)(i % 3);
		fixture_open(&f, s, 1);
		for (int k = 0; k < f.plan->param_count; k++) {
			struct engine_tensor t;
			engine_tensor_at(f.engine, k, &t);
			memset(t.data, 0, (size_t)t.bytes);
		}
		assert_ok(engine_parameters_changed(f.engine, &err));
		assert_ok(engine_evaluate(f.engine, NULL, NULL, &x, &err));
		bool clicks = s.task == SPEC_CLICK_THROUGH;
		double expected = log(clicks ? 2 : (double)f.plan->n_classes);
		if (!(fabs(x.loss - expected) < 1e-6))
			fail_msg("%s in %s: loss %.9g, not %.9g", cases[i / 3].name, case_precision[i % 3],
				x.loss, expected);
		assert_true(!clicks || x.auc == 0.5);
		fixture_close(&f);
	}
}

/* Dropout and smoothed labels are for training alone. */
static void test_plain(void **state)
{
	struct job_spec specs[] = { case_language(SPEC_GPT2), case_lora(case_language(SPEC_LLAMA), 0),
		fixture_spec(SPEC_CNN) };
	for (size_t i = 0; i < ARRAY_LEN(specs); i++) {
		struct engine_evaluation x[2];
		for (int k = 0; k < 2; k++) {
			struct err err = { 0 };
			struct fixture f;
			specs[i].hyper.label_smoothing = k ? 0.3 : 0;
			specs[i].hyper.dropout = specs[i].lora.dropout = k ? 0.3 : 0;
			fixture_open(&f, specs[i], 1);
			assert_ok(engine_evaluate(f.engine, NULL, NULL, &x[k], &err));
			fixture_close(&f);
		}
		assert_true(fabs(x[0].loss / x[1].loss - 1) < 1e-6);
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

/* Batch norm by its running statistics: what a sample gets does not depend on its neighbours, and
 * the statistics do not move. */
static void test_running_statistics(void **state)
{
	struct err err = { 0 };
	struct fixture f;
	struct engine_step s;
	struct engine_evaluation x, y;
	struct snapshot before;
	struct job_spec spec = case_resnet(SPEC_BLOCK_BASIC, SPEC_STEM_3);
	fixture_open(&f, spec, 1);
	for (int i = 0; i < 3; i++)
		assert_ok(engine_step(f.engine, &s, &err));
	snapshot_save(f.engine, &before);
	assert_ok(engine_evaluate(f.engine, NULL, NULL, &x, &err));
	assert_same(f.engine, &before, "resnet");
	fixture_close(&f);
	spec.hyper.micro_batch_size = 1;
	fixture_open(&f, spec, 1);
	snapshot_load(f.engine, &before);
	assert_ok(engine_evaluate(f.engine, NULL, NULL, &y, &err));
	assert_true(fabs(x.loss / y.loss - 1) < 1e-5);
	for (int i = 0; i < f.plan->param_count; i++) {
		struct engine_tensor t;
		engine_tensor_at(f.engine, i, &t);
		if (t.role != PLAN_STATE)
			continue;
		for (int64_t k = 0; k < t.bytes / 4; k++)
			((float *)t.data)[k] *= 2;
	}
	assert_ok(engine_parameters_changed(f.engine, &err));
	assert_ok(engine_evaluate(f.engine, NULL, NULL, &y, &err));
	assert_true(fabs(x.loss / y.loss - 1) > 1e-3);
	snapshot_forget(&before);
	fixture_close(&f);
}

/* A sequence's own logits, of prefix after prefix, make the loss that evaluation has. */
static void check_logits(struct job_spec spec)
{
	enum { T = 12, VOCAB = 263 };
	struct err err = { 0 };
	struct fixture f;
	struct engine_evaluation x;
	struct engine_step s;
	float logits[VOCAB];
	int32_t tokens[T + 1];
	struct fixture_file file = fixture_text(T + 1);
	spec.hyper.batch_size = spec.hyper.micro_batch_size = 2;
	fixture_open_files(&f, spec, 1, &file, 1);
	for (int i = 0; i < 3; i++)
		assert_ok(engine_step(f.engine, &s, &err));
	assert_ok(engine_evaluate(f.engine, NULL, NULL, &x, &err));
	assert_int_equal(x.tokens, T);
	FILE *in = fopen(file.path, "r");
	for (int i = 0; i <= T; i++)
		tokens[i] = fgetc(in);
	fclose(in);
	double loss = 0;
	for (int t = 0; t < T; t++) {
		double sum = 0;
		assert_ok(engine_logits(f.engine, tokens, t + 1, logits, &err));
		for (int v = 0; v < VOCAB; v++)
			sum += exp((double)logits[v]);
		loss += (log(sum) - (double)logits[tokens[t + 1]]) / T;
	}
	if (!(fabs(loss / x.loss - 1) < (spec.precision == SPEC_FP32 ? 1e-6 : 2e-3)))
		fail_msg(
			"%s: %.9g by logits, %.9g by evaluation", case_precision[spec.precision], loss, x.loss);
	assert_int_equal(engine_logits(f.engine, tokens, 0, logits, &err), ERR_INVALID_VALUE);
	assert_int_equal(engine_logits(f.engine, tokens, T + 1, logits, &err), ERR_INVALID_VALUE);
	tokens[1] = VOCAB;
	assert_int_equal(engine_logits(f.engine, tokens, 2, logits, &err), ERR_INVALID_VALUE);
	fixture_close(&f);
	unlink(file.path);
}

static void test_logits(void **state)
{
	for (int i = 0; i < 3; i++) {
		struct job_spec s = case_language(SPEC_GPT2);
		s.precision = (enum spec_precision)i;
		s.hyper.dropout = 0.2;
		check_logits(s);
		s = case_lora(case_language(SPEC_LLAMA), 0.2);
		s.precision = (enum spec_precision)i;
		check_logits(s);
	}
}

/* Against counting all pairs; with ties, zeros of both signs and one class alone. */
static void test_auc(void **state)
{
	enum { N = 700 };
	uint64_t random = 3;
	for (int round = 0; round < 30; round++) {
		float score[N];
		bool label[N];
		uint64_t keys[N];
		double right = 0, pairs = 0;
		for (int i = 0; i < N; i++) {
			double x = fixture_random(&random) * (round % 3 ? 1e3 : 5);
			score[i] = (float)(round % 3 ? x : trunc(x)); /* -0 and 0 among them */
			label[i] = fixture_random(&random) + (double)score[i] / 1e3 > (round % 5) / 4.0;
			keys[i] = engine_auc_key(score[i], label[i]);
		}
		for (int i = 0; i < N; i++)
			for (int j = 0; j < N; j++)
				if (label[i] && !label[j]) {
					pairs++;
					right += score[i] > score[j] ? 1 : score[i] == score[j] ? 0.5 : 0;
				}
		double auc = engine_auc(keys, N);
		assert_true(fabs(auc - (pairs > 0 ? right / pairs : 0.5)) < 1e-12);
	}
	uint64_t one[2] = { engine_auc_key(1, true), engine_auc_key(2, true) };
	assert_true(engine_auc(one, 2) == 0.5);
	assert_true(engine_auc(one, 0) == 0.5);
}

/* A click follows from one table: its rank is learnt completely. */
static void test_auc_learns(void **state)
{
	struct err err = { 0 };
	struct fixture f;
	struct engine_step s;
	struct engine_evaluation x;
	struct job_spec spec = case_dlrm();
	spec.hyper.max_steps = 150;
	spec.hyper.learning_rate = 0.03;
	fixture_open(&f, spec, 1);
	assert_ok(engine_evaluate(f.engine, NULL, NULL, &x, &err));
	assert_true(x.auc > 0.05 && x.auc < 0.95);
	for (int i = 0; i < 150; i++)
		assert_ok(engine_step(f.engine, &s, &err));
	assert_ok(engine_evaluate(f.engine, NULL, NULL, &x, &err));
	assert_true(x.auc > 0.999 && x.accuracy > 0.95);
	fixture_close(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_evaluation),
		cmocka_unit_test(test_evaluation_of_nothing),
		cmocka_unit_test(test_plain),
		cmocka_unit_test(test_evaluation_stops),
		cmocka_unit_test(test_running_statistics),
		cmocka_unit_test(test_logits),
		cmocka_unit_test(test_auc),
		cmocka_unit_test(test_auc_learns),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}

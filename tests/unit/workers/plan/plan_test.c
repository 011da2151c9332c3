/* SPDX-License-Identifier: Apache-2.0
 * Plans: memory that adds up and never overlaps, FLOPs by the formulas, steps, refusals, schedules.
 */
#include "tests/unit/workers/plan/plan_fixture.h"

/* Weights, gradients and moments are flat ranges in the same order: what the optimizer relies on.
 */
static void test_flat(void **state)
{
	struct job_spec s = fixture_gpt2(2, 2, 20, 12, 256);
	struct plan *p = fixture_compile(&s);
	const struct plan_buffer *b = p->buffers;
	const struct plan_param *first = &p->params[0];
	for (int i = 0; i < p->param_count; i++) {
		const struct plan_param *q = &p->params[i];
		int64_t at = b[q->weight].offset - b[first->weight].offset;
		assert_int_equal(b[q->gradient].offset - b[first->gradient].offset, at);
		assert_int_equal(b[q->moment1].offset - b[first->moment1].offset, at);
		assert_int_equal(b[q->moment2].offset - b[first->moment2].offset, at);
		assert_true(at + q->count * 4 <= p->flat_count * 4);
		assert_true(q->decay == (q->rank > 1));
	}
	assert_int_equal(b[first->gradient].offset - b[first->weight].offset, p->flat_count * 4);
	plan_destroy(p);
	struct job_spec sgd = fixture_mlp();
	p = fixture_compile(&sgd);
	assert_int_equal(p->params[0].moment1, -1);
	assert_int_equal(p->kind_bytes[PLAN_OPTIMIZER], 0);
	plan_destroy(p);
}

static void test_cnn_flops(void **state)
{
	struct job_spec s = fixture_cnn();
	struct plan *p = fixture_compile(&s);
	double conv[4] = { 784.0 * 9 * 1 * 16, 784.0 * 9 * 16 * 16, 196.0 * 9 * 16 * 32,
		196.0 * 9 * 32 * 32 };
	double dense = 1568.0 * 64 + 64 * 10, sum = 6 * dense;
	for (int i = 0; i < 4; i++)
		sum += (i == 0 ? 4 : 6) * conv[i]; /* the image needs no gradient */
	assert_true(fabs(p->flops_per_sample / sum - 1) < 1e-9);
	assert_string_equal(p->params[0].name, "features.0.0.weight");
	assert_string_equal(p->params[p->param_count - 1].name, "classifier.1.bias");
	plan_destroy(p);
}

/* Compiling is a function: the same spec, the same plan. */
static void test_pure(void **state)
{
	struct job_spec s = fixture_gpt2(2, 2, 20, 12, 256);
	struct plan *a = fixture_compile(&s), *b = fixture_compile(&s);
	assert_int_equal(a->op_count, b->op_count);
	assert_int_equal(a->buffer_count, b->buffer_count);
	for (int i = 0; i < a->op_count; i++) {
		assert_string_equal(a->ops[i].name, b->ops[i].name);
		b->ops[i].name = a->ops[i].name;
	}
	for (int i = 0; i < a->buffer_count; i++) {
		assert_string_equal(a->buffers[i].name, b->buffers[i].name);
		b->buffers[i].name = a->buffers[i].name;
	}
	assert_memory_equal(a->ops, b->ops, (size_t)a->op_count * sizeof(*a->ops));
	assert_memory_equal(a->buffers, b->buffers, (size_t)a->buffer_count * sizeof(*a->buffers));
	assert_memory_equal(a->params, b->params, (size_t)a->param_count * sizeof(*a->params));
	plan_destroy(a);
	plan_destroy(b);
}

/* Memory depends on the micro-batch, not on the batch or the data. */
static void test_memory_scales(void **state)
{
	struct job_spec s = fixture_gpt2(2, 2, 20, 12, 256);
	struct plan *a = fixture_compile(&s);
	struct plan_dataset dims = { .training_samples = 1000000, .training_tokens = 12000000 };
	s.hyper.batch_size = 800;
	struct plan *b = NULL;
	assert_int_equal(plan_compile(&s, &dims, &b, &err), 0);
	assert_int_equal(a->total_bytes, b->total_bytes);
	s.hyper.micro_batch_size = 8;
	struct plan *c = fixture_compile(&s);
	assert_true(c->total_bytes > b->total_bytes);
	plan_destroy(a);
	plan_destroy(b);
	plan_destroy(c);
}

static void test_steps(void **state)
{
	struct job_spec s = fixture_mlp();
	struct plan *p = fixture_compile(&s);
	assert_int_equal(p->total_steps, 0);
	struct plan_dataset dims = {
		.training_samples = 37, .in_channels = 1, .in_height = 28, .in_width = 28, .n_classes = 10
	};
	const struct {
		double epochs;
		int64_t max_steps, expected;
	} cases[] = { { 1, 0, 5 }, { 2, 0, 10 }, { 8, 0, 37 }, { 0.1, 0, 1 }, { 1e-9, 0, 1 },
		{ 3, 7, 7 } };
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		s.hyper.epochs = cases[i].epochs;
		s.hyper.max_steps = cases[i].max_steps;
		assert_int_equal(plan_set_dataset(p, &s, &dims, &err), 0);
		assert_int_equal(p->total_steps, cases[i].expected);
	}
	assert_true(fabs(p->steps_per_epoch - 37.0 / 8) < 1e-12);
	dims.in_width = 27;
	assert_int_equal(plan_set_dataset(p, &s, &dims, &err), ERR_INVALID_DATA);
	assert_non_null(strstr(err.message, "27"));
	dims.in_width = 28;
	dims.n_classes = 11;
	assert_int_equal(plan_set_dataset(p, &s, &dims, &err), ERR_INVALID_DATA);
	plan_destroy(p);
}

/* A shape that the spec leaves open comes from the data. */
static void test_shape_from_data(void **state)
{
	struct job_spec s = fixture_cnn();
	s.model.in_height = s.model.in_width = s.model.in_channels = s.model.n_classes = 0;
	struct plan *p = NULL;
	assert_int_equal(plan_compile(&s, NULL, &p, &err), ERR_MISSING_FIELD);
	assert_string_equal(err.param, "$.model.config.in_channels");
	struct plan_dataset dims = {
		.in_channels = 3, .in_height = 32, .in_width = 16, .n_classes = 4
	};
	assert_int_equal(plan_compile(&s, &dims, &p, &err), 0);
	assert_true(p->in_channels == 3 && p->in_height == 32 && p->in_width == 16);
	assert_int_equal(p->n_classes, 4);
	plan_destroy(p);
}

#define refuse(make, change, code, path)                          \
	do {                                                          \
		struct job_spec s = make;                                 \
		struct plan *p = NULL;                                    \
		change;                                                   \
		assert_int_equal(plan_compile(&s, NULL, &p, &err), code); \
		assert_string_equal(err.param, path);                     \
		assert_null(p);                                           \
	} while (0)

static void test_refused(void **state)
{
	refuse(fixture_gpt2(2, 3, 20, 12, 256), (void)0, ERR_INVALID_VALUE, "$.model.config.n_head");
	refuse(fixture_gpt2(0, 2, 20, 12, 256), (void)0, ERR_INVALID_VALUE, "$.model.config.n_layer");
	refuse(fixture_gpt2(2, 1, 512, 12, 256), (void)0, ERR_INVALID_VALUE, "$.model.config.n_head");
	refuse(
		fixture_gpt2(2, 2, 20, 12, 255), (void)0, ERR_INVALID_VALUE, "$.model.config.vocab_size");
	refuse(fixture_gpt2(2, 2, 20, 12, 256), s.data.sequence_length = 13, ERR_INVALID_VALUE,
		"$.data.sequence_length");
	refuse(fixture_gpt2(2, 2, 20, 12, 256), s.hyper.micro_batch_size = 3, ERR_INVALID_VALUE,
		"$.hyperparameters.micro_batch_size");
	refuse(fixture_gpt2(2, 2, 20, 12, 256), s.hyper.dropout = 1, ERR_INVALID_VALUE,
		"$.hyperparameters.dropout");
	refuse(fixture_gpt2(2, 2, 20, 12, 256), s.hyper.epochs = 0, ERR_INVALID_VALUE,
		"$.hyperparameters.epochs");
	refuse(fixture_gpt2(2, 2, 20, 12, 256), s.hyper.epochs = NAN, ERR_INVALID_VALUE,
		"$.hyperparameters.epochs");
	refuse(fixture_gpt2(2, 2, 20, 12, 256), s.hyper.batch_size = 0, ERR_INVALID_VALUE,
		"$.hyperparameters.batch_size");
	refuse(fixture_gpt2(2, 2, 20, 12, 256), s.task = SPEC_REGRESSION, ERR_INVALID_VALUE,
		"$.model.config.family");
	refuse(fixture_gpt2(2, 2, 20, 12, 256), s.device_count = 2, ERR_INVALID_VALUE,
		"$.resources.count");
	refuse(fixture_cnn(), s.task = SPEC_REGRESSION, ERR_INVALID_VALUE, "$.task");
	refuse(fixture_dlrm(), s.hyper.dropout = 0.1, ERR_INVALID_VALUE, "$.hyperparameters.dropout");
	refuse(fixture_dlrm(), s.hyper.label_smoothing = 0.1, ERR_INVALID_VALUE,
		"$.hyperparameters.label_smoothing");
	refuse(fixture_mlp(), s.task = SPEC_REGRESSION;
		   s.hyper.label_smoothing = 0.1, ERR_INVALID_VALUE, "$.hyperparameters.label_smoothing");
	refuse(fixture_cnn(), s.model.channel_count = 6, ERR_INVALID_VALUE, "$.model.config.channels");
	refuse(fixture_cnn(), s.data.format = SPEC_FORMAT_TEXT, ERR_INVALID_VALUE, "$.data.format");
	refuse(fixture_gpt2(2, 1, 256, 1 << 21, 256),
		s.hyper.micro_batch_size = s.hyper.batch_size = 1 << 20, ERR_PLAN_TOO_LARGE,
		"$.hyperparameters.micro_batch_size");
	refuse(fixture_gpt2(2, 1 << 17, 1 << 24, 12, 1 << 24), s.model.n_inner = 1, ERR_PLAN_TOO_LARGE,
		"$.model");
	refuse(fixture_gpt2(2, 1 << 17, 1 << 25, 12, 256), (void)0, ERR_INVALID_VALUE,
		"$.model.config.n_embd");
	refuse(fixture_cnn(), s.checkpointing = SPEC_FULL, ERR_INVALID_VALUE,
		"$.activation_checkpointing");
	refuse(fixture_mlp(), s.lora.rank = 4, ERR_INVALID_VALUE, "$.lora");
	refuse(fixture_dlrm(), s.task = SPEC_CLASSIFICATION, ERR_INVALID_VALUE, "$.task");
	refuse(fixture_dlrm(), s.data.format = SPEC_FORMAT_TEXT, ERR_INVALID_VALUE, "$.data.format");
	refuse(fixture_dlrm(), s.data.format = SPEC_FORMAT_NPY, ERR_INVALID_VALUE, "$.data.format");
	refuse(fixture_dlrm(), s.hyper.batch_size = 1 << 20; s.hyper.micro_batch_size = 1;
		   s.model.lookups = 1 << 11, ERR_PLAN_TOO_LARGE, "$.hyperparameters.batch_size");
	static const char *const modules[] = { "c_attn" };
	refuse(fixture_gpt2(1, 1, 8, 1 << 20, 256), fixture_lora(&s, 1 << 24, 1, modules);
		   s.hyper.batch_size = s.hyper.micro_batch_size = 1 << 4, ERR_PLAN_TOO_LARGE, "$.model");
	refuse(
		fixture_mlp(), s.model.hidden[0] = INT64_MAX, ERR_INVALID_VALUE, "$.model.config.hidden");
	refuse(fixture_mlp(), s.model.hidden[0] = 0, ERR_INVALID_VALUE, "$.model.config.hidden");
	refuse(fixture_cnn(), s.model.channels[1] = INT64_MAX, ERR_INVALID_VALUE,
		"$.model.config.channels");
	refuse(fixture_cnn(), s.model.channels[1] = s.model.channels[0] = 1 << 24, ERR_PLAN_TOO_LARGE,
		"$.model");
}

static void test_schedules(void **state)
{
	struct job_spec s = fixture_gpt2(2, 2, 20, 12, 256);
	s.hyper.learning_rate = 0.5;
	s.hyper.min_lr_ratio = 0.1;
	s.hyper.warmup_steps = 4;
	for (int k = 0; k < 3; k++) {
		s.hyper.schedule = (enum spec_schedule[]){ SPEC_CONSTANT, SPEC_LINEAR, SPEC_COSINE }[k];
		for (int i = 0; i < 4; i++)
			assert_true(fabs(plan_learning_rate(&s, 105, i) - 0.5 * (i + 1) / 5) < 1e-15);
		assert_true(plan_learning_rate(&s, 105, 4) == 0.5);
		double last = k == 0 ? 0.5 : 0.05;
		assert_true(fabs(plan_learning_rate(&s, 105, 104) - last) < 1e-15);
		assert_true(fabs(plan_learning_rate(&s, 105, 9999) - last) < 1e-15);
		double half = k == 0 ? 0.5 : 0.275;
		assert_true(fabs(plan_learning_rate(&s, 105, 54) - half) < 1e-15);
	}
	assert_true(fabs(plan_learning_rate(&s, 105, 29) - (0.05 + 0.225 * (1 + sqrt(0.5)))) < 1e-12);
	s.hyper.warmup_steps = 0;
	assert_true(plan_learning_rate(&s, 1, 0) > 0);
}

static void test_words(void **state)
{
	for (int i = 0; i < PLAN_OP_COUNT; i++)
		assert_string_not_equal(plan_op_word((enum plan_op_kind)i), "unknown");
	assert_string_equal(plan_op_word(PLAN_OP_SGD), "sgd");
	assert_string_equal(plan_kind_word(PLAN_DATA), "data");
	assert_string_equal(plan_phase_word(PLAN_OPTIMIZE), "optimize");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_flat),
		cmocka_unit_test(test_cnn_flops),
		cmocka_unit_test(test_pure),
		cmocka_unit_test(test_memory_scales),
		cmocka_unit_test(test_steps),
		cmocka_unit_test(test_shape_from_data),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_schedules),
		cmocka_unit_test(test_words),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 * Plans: memory that adds up and never overlaps, FLOPs by the formulas, steps, refusals, schedules.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "workers/plan/plan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static struct err err;

static struct job_spec gpt2(int64_t layers, int64_t heads, int64_t c, int64_t t, int64_t v)
{
	struct job_spec s = { .task = SPEC_LANGUAGE_MODEL, .device_count = 1, .seed = 1 };
	s.model.family = SPEC_GPT2;
	s.model.n_layer = layers;
	s.model.n_head = heads;
	s.model.n_embd = c;
	s.model.n_positions = t;
	s.model.vocab_size = v;
	s.data.sequence_length = t;
	s.hyper = (struct spec_hyper){ .epochs = 1,
		.batch_size = 8,
		.micro_batch_size = 4,
		.optimizer = SPEC_ADAMW,
		.learning_rate = 1e-3,
		.beta1 = 0.9,
		.beta2 = 0.95 };
	return s;
}

static struct job_spec cnn(void)
{
	struct job_spec s = gpt2(1, 1, 1, 1, 1);
	s.task = SPEC_IMAGE_CLASSIFICATION;
	s.data.format = SPEC_FORMAT_IDX;
	s.model = (struct spec_model){ .family = SPEC_CNN,
		.channels = { 16, 32 },
		.channel_count = 2,
		.blocks_per_stage = 2,
		.hidden = { 64 },
		.hidden_count = 1,
		.in_channels = 1,
		.in_height = 28,
		.in_width = 28,
		.n_classes = 10 };
	return s;
}

static struct job_spec mlp(void)
{
	struct job_spec s = cnn();
	s.task = SPEC_CLASSIFICATION;
	s.model.family = SPEC_MLP;
	s.hyper.optimizer = SPEC_SGD;
	s.hyper.momentum = 0;
	return s;
}

static struct plan *compile(const struct job_spec *s)
{
	struct plan *p = NULL;
	if (plan_compile(s, NULL, &p, &err))
		fail_msg("%s (%s)", err.message, err.param);
	return p;
}

static bool live_together(const struct plan_buffer *a, const struct plan_buffer *b)
{
	return a->first_op <= b->last_op && b->first_op <= a->last_op;
}

static void check_layout(const struct plan *p)
{
	int64_t end = 0;
	for (int i = 0; i < p->buffer_count; i++) {
		const struct plan_buffer *a = &p->buffers[i];
		assert_true(a->bytes > 0 && a->offset >= 0 && a->offset % PLAN_ALIGN_BYTES == 0);
		assert_true(a->first_op >= 0 && a->first_op <= a->last_op && a->last_op < p->op_count);
		end = a->offset + a->bytes > end ? a->offset + a->bytes : end;
		for (int k = 0; k < i; k++) {
			const struct plan_buffer *b = &p->buffers[k];
			bool apart = a->offset + a->bytes <= b->offset || b->offset + b->bytes <= a->offset;
			if (!apart && live_together(a, b))
				fail_msg("%s and %s overlap", a->name, b->name);
		}
	}
	assert_true(p->total_bytes >= end && p->total_bytes < end + 8192);
	for (int o = 0; o < p->op_count; o++)
		for (int k = 0; k < PLAN_OPERANDS_MAX; k++) {
			int i = p->ops[o].operand[k];
			assert_true(i < p->buffer_count);
			if (i >= 0)
				assert_true(p->buffers[i].first_op <= o && p->buffers[i].last_op >= o);
		}
}

static void test_layout(void **state)
{
	struct job_spec s[5] = { gpt2(3, 2, 20, 12, 256), cnn(), mlp(), gpt2(2, 1, 8, 5, 300), cnn() };
	s[3].hyper.dropout = s[4].hyper.dropout = 0.1;
	s[4].model.blocks_per_stage = 1;
	for (int i = 0; i < 5; i++) {
		struct plan *p = compile(&s[i]);
		check_layout(p);
		plan_destroy(p);
	}
}

/* Weights, gradients and moments are flat ranges in the same order: what the optimizer relies on.
 */
static void test_flat(void **state)
{
	struct job_spec s = gpt2(2, 2, 20, 12, 256);
	struct plan *p = compile(&s);
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
	struct job_spec sgd = mlp();
	p = compile(&sgd);
	assert_int_equal(p->params[0].moment1, -1);
	assert_int_equal(p->kind_bytes[PLAN_OPTIMIZER], 0);
	plan_destroy(p);
}

/* The 124M model's known size, and the transformer FLOP formula. */
static void test_gpt2_124m(void **state)
{
	struct job_spec s = gpt2(12, 12, 768, 1024, 50257);
	struct timespec a, b;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
	struct plan *p = compile(&s);
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
	double ms = (double)(b.tv_sec - a.tv_sec) * 1e3 + (double)(b.tv_nsec - a.tv_nsec) * 1e-6;
	assert_true(ms < 50); /* 5 ms are asked for; sanitizers and slow machines get room */
	assert_int_equal(p->parameter_count, 124439808);
	assert_string_equal(p->params[0].name, "transformer.wte.weight");
	assert_int_equal(p->kind_bytes[PLAN_WEIGHTS], 124439808 * 4);
	assert_int_equal(p->kind_bytes[PLAN_OPTIMIZER], 2 * 124439808 * 4);
	/* 6 per matrix parameter and token (wte serves as the head), 6 L C T for causal attention. */
	double matrix = 12 * 12.0 * 768 * 768 + 50257.0 * 768;
	double expected = 6 * matrix + 6.0 * 12 * 768 * 1024;
	assert_true(fabs(p->flops_per_token / expected - 1) < 1e-9);
	assert_true(fabs(p->flops_per_sample / (1024 * expected) - 1) < 1e-9);
	assert_true(fabs(p->flops_per_step / (8 * 1024 * expected) - 1) < 1e-9);
	assert_true(p->bytes_per_step > 7 * 4 * 124439808.0);
	assert_int_equal(p->micro_steps, 2);
	plan_destroy(p);
}

static void test_cnn_flops(void **state)
{
	struct job_spec s = cnn();
	struct plan *p = compile(&s);
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
	struct job_spec s = gpt2(2, 2, 20, 12, 256);
	struct plan *a = compile(&s), *b = compile(&s);
	assert_int_equal(a->op_count, b->op_count);
	assert_memory_equal(a->ops, b->ops, (size_t)a->op_count * sizeof(*a->ops));
	assert_memory_equal(a->buffers, b->buffers, (size_t)a->buffer_count * sizeof(*a->buffers));
	assert_memory_equal(a->params, b->params, (size_t)a->param_count * sizeof(*a->params));
	plan_destroy(a);
	plan_destroy(b);
}

/* Memory depends on the micro-batch, not on the batch or the data. */
static void test_memory_scales(void **state)
{
	struct job_spec s = gpt2(2, 2, 20, 12, 256);
	struct plan *a = compile(&s);
	struct plan_dataset dims = { .training_samples = 1000000, .training_tokens = 12000000 };
	s.hyper.batch_size = 800;
	struct plan *b = NULL;
	assert_int_equal(plan_compile(&s, &dims, &b, &err), 0);
	assert_int_equal(a->total_bytes, b->total_bytes);
	s.hyper.micro_batch_size = 8;
	struct plan *c = compile(&s);
	assert_true(c->total_bytes > b->total_bytes);
	plan_destroy(a);
	plan_destroy(b);
	plan_destroy(c);
}

static void test_steps(void **state)
{
	struct job_spec s = mlp();
	struct plan *p = compile(&s);
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
	struct job_spec s = cnn();
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
	refuse(gpt2(2, 3, 20, 12, 256), (void)0, ERR_INVALID_VALUE, "$.model.config.n_head");
	refuse(gpt2(0, 2, 20, 12, 256), (void)0, ERR_INVALID_VALUE, "$.model.config.n_layer");
	refuse(gpt2(2, 1, 512, 12, 256), (void)0, ERR_INVALID_VALUE, "$.model.config.n_head");
	refuse(gpt2(2, 2, 20, 12, 255), (void)0, ERR_INVALID_VALUE, "$.model.config.vocab_size");
	refuse(gpt2(2, 2, 20, 12, 256), s.data.sequence_length = 13, ERR_INVALID_VALUE,
		"$.data.sequence_length");
	refuse(gpt2(2, 2, 20, 12, 256), s.hyper.micro_batch_size = 3, ERR_INVALID_VALUE,
		"$.hyperparameters.micro_batch_size");
	refuse(gpt2(2, 2, 20, 12, 256), s.hyper.dropout = 1, ERR_INVALID_VALUE,
		"$.hyperparameters.dropout");
	refuse(
		gpt2(2, 2, 20, 12, 256), s.hyper.epochs = 0, ERR_INVALID_VALUE, "$.hyperparameters.epochs");
	refuse(gpt2(2, 2, 20, 12, 256), s.hyper.epochs = NAN, ERR_INVALID_VALUE,
		"$.hyperparameters.epochs");
	refuse(gpt2(2, 2, 20, 12, 256), s.hyper.batch_size = 0, ERR_INVALID_VALUE,
		"$.hyperparameters.batch_size");
	refuse(gpt2(2, 2, 20, 12, 256), s.task = SPEC_REGRESSION, ERR_INVALID_VALUE,
		"$.model.config.family");
	refuse(gpt2(2, 2, 20, 12, 256), s.device_count = 2, ERR_INVALID_VALUE, "$.resources.count");
	refuse(cnn(), s.task = SPEC_REGRESSION, ERR_INVALID_VALUE, "$.task");
	refuse(cnn(), s.model.channel_count = 6, ERR_INVALID_VALUE, "$.model.config.channels");
	refuse(cnn(), s.data.format = SPEC_FORMAT_TEXT, ERR_INVALID_VALUE, "$.data.format");
	refuse(gpt2(2, 1, 256, 1 << 21, 256), s.hyper.micro_batch_size = s.hyper.batch_size = 1 << 20,
		ERR_PLAN_TOO_LARGE, "$.hyperparameters.micro_batch_size");
	refuse(gpt2(2, 1 << 17, 1 << 24, 12, 1 << 24), (void)0, ERR_PLAN_TOO_LARGE, "$.model");
	refuse(gpt2(2, 1 << 17, 1 << 25, 12, 256), (void)0, ERR_INVALID_VALUE, "$.model.config.n_embd");
	refuse(mlp(), s.model.hidden[0] = INT64_MAX, ERR_INVALID_VALUE, "$.model.config.hidden");
	refuse(mlp(), s.model.hidden[0] = 0, ERR_INVALID_VALUE, "$.model.config.hidden");
	refuse(cnn(), s.model.channels[1] = INT64_MAX, ERR_INVALID_VALUE, "$.model.config.channels");
	refuse(
		cnn(), s.model.channels[1] = s.model.channels[0] = 1 << 24, ERR_PLAN_TOO_LARGE, "$.model");
}

static void test_schedules(void **state)
{
	struct job_spec s = gpt2(2, 2, 20, 12, 256);
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
		cmocka_unit_test(test_layout),
		cmocka_unit_test(test_flat),
		cmocka_unit_test(test_gpt2_124m),
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

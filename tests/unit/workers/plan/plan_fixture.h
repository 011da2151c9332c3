/* SPDX-License-Identifier: Apache-2.0
 * Specs of every family and what each test of a plan needs; included by the tests of this folder.
 */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "workers/plan/plan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct err err;

static inline struct job_spec fixture_gpt2(
	int64_t layers, int64_t heads, int64_t c, int64_t t, int64_t v)
{
	struct job_spec s = { .task = SPEC_LANGUAGE_MODEL, .device_count = 1, .seed = 1 };
	s.model = (struct spec_model){ .family = SPEC_GPT2,
		.n_layer = layers,
		.n_head = heads,
		.n_kv_head = heads,
		.n_embd = c,
		.n_inner = 4 * c,
		.n_positions = t,
		.vocab_size = v,
		.norm_eps = 1e-5,
		.tied = true };
	s.data.tokenizer = SPEC_TOKENIZER_BYTES;
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

/* kv_heads and inner beside what gpt2 has. */
static inline struct job_spec fixture_llama(
	int64_t layers, int64_t heads, int64_t kv_heads, int64_t c, int64_t inner, int64_t t, int64_t v)
{
	struct job_spec s = fixture_gpt2(layers, heads, c, t, v);
	s.model.family = SPEC_LLAMA;
	s.model.n_kv_head = kv_heads;
	s.model.n_inner = inner;
	s.model.rope_theta = 10000;
	s.model.tied = false;
	return s;
}

static inline struct job_spec fixture_cnn(void)
{
	struct job_spec s = fixture_gpt2(1, 1, 1, 1, 1);
	s.task = SPEC_IMAGE_CLASSIFICATION;
	s.data = (struct spec_data){ .format = SPEC_FORMAT_IDX };
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

static inline struct job_spec fixture_mlp(void)
{
	struct job_spec s = fixture_cnn();
	s.task = SPEC_CLASSIFICATION;
	s.model.family = SPEC_MLP;
	s.hyper.optimizer = SPEC_SGD;
	s.hyper.momentum = 0;
	return s;
}

static inline struct job_spec fixture_dlrm(void)
{
	struct job_spec s = fixture_cnn();
	s.task = SPEC_CLICK_THROUGH;
	s.data.format = SPEC_FORMAT_CSV;
	s.model = (struct spec_model){ .family = SPEC_DLRM,
		.dense_features = 5,
		.embedding_dim = 8,
		.lookups = 3,
		.table_rows = { 100, 1000, 7 },
		.table_count = 3,
		.hidden = { 16, 8 },
		.hidden_count = 2,
		.top = { 12 },
		.top_count = 1 };
	return s;
}

/* LoRA of the modules named. */
static inline void fixture_lora(
	struct job_spec *s, int64_t rank, int count, const char *const *names)
{
	s->lora = (struct spec_lora){ .rank = rank, .alpha = 2 * (double)rank };
	for (int i = 0; i < count; i++)
		strncpy(s->lora.target[s->lora.target_count++], names[i], SPEC_TARGET_MAX - 1);
}

static inline struct plan *fixture_compile(const struct job_spec *s)
{
	struct plan *p = NULL;
	if (plan_compile(s, NULL, &p, &err))
		fail_msg("%s (%s)", err.message, err.param);
	return p;
}

static inline const struct plan_param *fixture_param(const struct plan *p, const char *name)
{
	for (int i = 0; i < p->param_count; i++)
		if (strcmp(p->params[i].name, name) == 0)
			return &p->params[i];
	fail_msg("no parameter is named %s", name);
	return NULL;
}

static inline bool fixture_near(double a, double b, double relative)
{
	return fabs(a - b) <= relative * fabs(b);
}

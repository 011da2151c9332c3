/* SPDX-License-Identifier: Apache-2.0
 * A small job of each family, for tests of what holds for all of them; snapshots of an engine. */
#pragma once

#include "tests/unit/workers/engine/engine_fixture.h"

enum { CASES_MAX = 16, SNAPSHOT_MAX = 512 };

struct engine_case {
	const char *name;
	struct job_spec spec;
};

FIXTURE_FN void case_add(struct engine_case *cases, int *count, const char *name, struct job_spec s)
{
	assert_true(*count < CASES_MAX);
	cases[(*count)++] = (struct engine_case){ name, s };
}

/* Two layers, two heads, a vocabulary that is a prime. */
FIXTURE_FN struct job_spec case_language(enum spec_family family)
{
	struct job_spec s = fixture_spec(SPEC_GPT2);
	s.model.family = family;
	s.model.vocab_size = 263;
	s.model.norm_eps = 1e-5;
	s.model.n_inner = 4 * s.model.n_embd;
	s.model.tied = true;
	if (family == SPEC_LLAMA) {
		s.model.n_embd = 24;
		s.model.n_head = 4;
		s.model.n_kv_head = 2;
		s.model.n_inner = 28;
		s.model.rope_theta = 10000;
		s.model.tied = false;
	}
	return s;
}

FIXTURE_FN struct job_spec case_fine_tune(enum spec_family family, bool packing)
{
	struct job_spec s = case_language(family);
	s.task = SPEC_FINE_TUNE;
	s.data.format = SPEC_FORMAT_JSONL;
	s.data.packing = packing;
	s.data.sequence_length = 16;
	return s;
}

FIXTURE_FN struct job_spec case_lora(struct job_spec s, double dropout)
{
	static const char *const gpt2[] = { "c_attn", "c_proj", "c_fc" };
	static const char *const llama[] = { "q_proj", "v_proj", "o_proj", "gate_proj", "down_proj" };
	bool is_llama = s.model.family == SPEC_LLAMA;
	s.lora.rank = 3;
	s.lora.alpha = 6;
	s.lora.dropout = dropout;
	s.lora.target_count = (int)(is_llama ? ARRAY_LEN(llama) : ARRAY_LEN(gpt2));
	for (int i = 0; i < s.lora.target_count; i++)
		snprintf(s.lora.target[i], SPEC_TARGET_MAX, "%s", is_llama ? llama[i] : gpt2[i]);
	snprintf(s.base, sizeof(s.base), "base");
	return s;
}

FIXTURE_FN struct job_spec case_resnet(enum spec_block block, enum spec_stem stem)
{
	struct job_spec s = fixture_spec(SPEC_CNN);
	s.model.block = block;
	s.model.stem = stem;
	s.model.in_height = 9;
	s.model.in_width = 8;
	s.model.hidden_count = 0;
	s.model.blocks_per_stage = 0;
	s.model.channels[0] = 4;
	s.model.channels[1] = 8;
	s.model.blocks[0] = 2;
	s.model.blocks[1] = 1;
	return s;
}

FIXTURE_FN struct job_spec case_regression(void)
{
	struct job_spec s = fixture_spec(SPEC_MLP);
	s.task = SPEC_REGRESSION;
	s.model.in_height = 1;
	s.model.n_classes = 3;
	return s;
}

FIXTURE_FN struct job_spec case_dlrm(void)
{
	struct job_spec s = fixture_spec(SPEC_MLP);
	s.model = (struct spec_model){ .family = SPEC_DLRM,
		.dense_features = 3,
		.embedding_dim = 4,
		.lookups = 1,
		.hidden = { 6, 4 },
		.hidden_count = 2,
		.table_rows = { 31, 17 },
		.table_count = 2,
		.top = { 7 },
		.top_count = 1 };
	s.task = SPEC_CLICK_THROUGH;
	s.data.format = SPEC_FORMAT_CSV;
	snprintf(s.data.label_column, sizeof(s.data.label_column), "label");
	s.data.categorical_count = 2;
	snprintf(s.data.categorical[0], SPEC_COLUMN_MAX, "c0");
	snprintf(s.data.categorical[1], SPEC_COLUMN_MAX, "c1");
	return s;
}

/* Every family with every part of the state somewhere: momentum, moments, averages, running
 * statistics, dropout, masks, packing, accumulation, crossing epochs. */
FIXTURE_FN int case_families(struct engine_case cases[static CASES_MAX])
{
	int n = 0;
	struct job_spec s = case_language(SPEC_GPT2);
	s.hyper.dropout = 0.1;
	s.hyper.label_smoothing = 0.1;
	case_add(cases, &n, "gpt2", s);
	case_add(cases, &n, "gpt2-lora", case_lora(case_language(SPEC_GPT2), 0.1));
	s = case_language(SPEC_LLAMA);
	s.hyper.ema_decay = 0.9;
	case_add(cases, &n, "llama", s);
	s = case_fine_tune(SPEC_LLAMA, true);
	s.model.tied = true;
	case_add(cases, &n, "llama-lora-packed", case_lora(s, 0));
	case_add(cases, &n, "gpt2-fine-tune", case_fine_tune(SPEC_GPT2, false));
	s = fixture_spec(SPEC_CNN);
	s.hyper.dropout = 0.2;
	case_add(cases, &n, "cnn", s);
	case_add(cases, &n, "resnet-basic", case_resnet(SPEC_BLOCK_BASIC, SPEC_STEM_3));
	s = case_resnet(SPEC_BLOCK_BOTTLENECK, SPEC_STEM_7);
	s.hyper.optimizer = SPEC_SGD;
	s.hyper.ema_decay = 0.99;
	case_add(cases, &n, "resnet-bottleneck", s);
	s = fixture_spec(SPEC_MLP);
	s.hyper.optimizer = SPEC_SGD;
	s.hyper.schedule = SPEC_LINEAR;
	case_add(cases, &n, "mlp", s);
	s = case_regression();
	s.hyper.optimizer = SPEC_SGD;
	s.hyper.schedule = SPEC_CONSTANT;
	s.hyper.momentum = 0;
	case_add(cases, &n, "mlp-regression", s);
	s = case_dlrm();
	s.hyper.ema_decay = 0.9;
	case_add(cases, &n, "dlrm", s);
	s.hyper.ema_decay = 0;
	s.hyper.optimizer = SPEC_SGD;
	case_add(cases, &n, "dlrm-sgd", s);
	return n;
}

static const char *const case_precision[] = { "fp32", "bf16", "fp16" };

/* State and tensors of an engine at one moment. */
struct snapshot {
	struct engine_state state;
	int count;
	void *tensor[SNAPSHOT_MAX];
};

FIXTURE_FN void snapshot_save(struct engine *e, struct snapshot *s)
{
	engine_state_get(e, &s->state);
	s->count = engine_tensor_count(e);
	assert_true(s->count <= SNAPSHOT_MAX);
	for (int i = 0; i < s->count; i++) {
		struct engine_tensor t;
		engine_tensor_at(e, i, &t);
		s->tensor[i] = malloc((size_t)t.bytes);
		memcpy(s->tensor[i], t.data, (size_t)t.bytes);
	}
}

FIXTURE_FN void snapshot_load(struct engine *e, const struct snapshot *s)
{
	struct err err = { 0 };
	assert_ok(engine_state_set(e, &s->state, &err));
	assert_int_equal(engine_tensor_count(e), s->count);
	for (int i = 0; i < s->count; i++) {
		struct engine_tensor t;
		engine_tensor_at(e, i, &t);
		memcpy(t.data, s->tensor[i], (size_t)t.bytes);
	}
	assert_ok(engine_parameters_changed(e, &err));
}

/* The first tensor that differs, NULL when all are the same bits. */
FIXTURE_FN const char *snapshot_difference(struct engine *e, const struct snapshot *s)
{
	static struct engine_tensor t;
	assert_int_equal(engine_tensor_count(e), s->count);
	for (int i = 0; i < s->count; i++) {
		engine_tensor_at(e, i, &t);
		if (memcmp(t.data, s->tensor[i], (size_t)t.bytes) != 0)
			return t.name;
	}
	return NULL;
}

#define assert_same(e, s, what)                            \
	do {                                                   \
		const char *same_name = snapshot_difference(e, s); \
		if (same_name)                                     \
			fail_msg("%s: %s differs", what, same_name);   \
	} while (0)

FIXTURE_FN void snapshot_forget(struct snapshot *s)
{
	for (int i = 0; i < s->count; i++)
		free(s->tensor[i]);
	s->count = 0;
}

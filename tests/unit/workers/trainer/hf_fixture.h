/* SPDX-License-Identifier: Apache-2.0
 * A model made by hand, without an engine: what the tests of Hugging Face files write and read. */
#pragma once

#include "tests/unit/workers/trainer/trainer_fixture.h"

#include "workers/trainer/hf_weights.h"
#include "workers/trainer/safetensors.h"

enum { HF_FIXTURE_TENSORS = 32 };

struct hf_fixture {
	struct engine_tensor list[HF_FIXTURE_TENSORS];
	struct hf_weights weights;
	struct spec_model model;
};

FIXTURE_FN void hf_fixture_add_typed(struct hf_fixture *f, const char *name,
	enum engine_tensor_kind kind, const char *dtype, int64_t rows, int64_t columns)
{
	struct engine_tensor *t = &f->list[f->weights.count++];
	assert_true(f->weights.count <= HF_FIXTURE_TENSORS);
	*t = (struct engine_tensor){
		.kind = kind, .dtype = dtype, .rank = columns > 0 ? 2 : 1, .shape = { rows, columns }
	};
	snprintf(t->name, sizeof(t->name), "%s", name);
	int64_t count = rows * (columns > 0 ? columns : 1);
	bool whole = strcmp(dtype, "F32") == 0;
	t->type = whole ? PLAN_F32 : strcmp(dtype, "BF16") == 0 ? PLAN_BF16 : PLAN_F16;
	t->count = count;
	t->cut = plan_cut_none(count);
	t->copies = 1;
	t->number = f->weights.count;
	t->bytes = count * (whole ? 4 : 2);
	t->data = calloc(1, (size_t)t->bytes);
	assert_non_null(t->data);
	f->weights.list = f->list;
}

FIXTURE_FN void hf_fixture_add(
	struct hf_fixture *f, const char *name, int64_t rows, int64_t columns)
{
	hf_fixture_add_typed(f, name, ENGINE_PARAMETER, "F32", rows, columns);
}

/* Values that differ by tensor and place, exact in every type. */
FIXTURE_FN void hf_fixture_fill(struct hf_fixture *f)
{
	for (int i = 0; i < f->weights.count; i++)
		for (int64_t k = 0; k < f->list[i].bytes / 4; k++)
			((float *)f->list[i].data)[k] = (float)((i * 31 + k * 7) % 64) / 8 - 4;
}

FIXTURE_FN void hf_fixture_clear(struct hf_fixture *f)
{
	for (int i = 0; i < f->weights.count; i++)
		memset(f->list[i].data, 0, (size_t)f->list[i].bytes);
}

FIXTURE_FN void hf_fixture_free(struct hf_fixture *f)
{
	for (int i = 0; i < f->weights.count; i++)
		free(f->list[i].data);
	f->weights.count = 0;
}

/* A gpt2 of one layer with the names of the published one. */
FIXTURE_FN struct hf_fixture *hf_fixture_gpt2(void)
{
	struct hf_fixture *f = calloc(1, sizeof(*f));
	assert_non_null(f);
	f->model = (struct spec_model){ .family = SPEC_GPT2,
		.n_layer = 1,
		.n_head = 2,
		.n_embd = 4,
		.n_kv_head = 2,
		.n_positions = 5,
		.vocab_size = 7,
		.n_inner = 16,
		.norm_eps = 1e-5,
		.tied = true };
	hf_fixture_add(f, "transformer.wte.weight", 7, 4);
	hf_fixture_add(f, "transformer.wpe.weight", 5, 4);
	hf_fixture_add(f, "transformer.h.0.attn.c_attn.weight", 4, 12);
	hf_fixture_add(f, "transformer.h.0.attn.c_attn.bias", 12, 0);
	hf_fixture_add(f, "transformer.ln_f.weight", 4, 0);
	hf_fixture_fill(f);
	return f;
}

/* Publishes what `write` puts into a folder of that name. */
FIXTURE_FN const char *hf_fixture_publish(const struct fixture *x, const struct hf_fixture *f,
	const char *name, const char *stem, const struct hf_weights_options *o)
{
	struct err err = { 0 };
	struct folder folder;
	if (folder_begin(&folder, x->dir, ".writing", name, 0, &err) < 0 ||
		hf_weights_write(&f->weights, stem, o, &folder, &err) < 0 ||
		folder_publish(&folder, &err) < 0)
		fail_msg("%s", err.message);
	return fixture_path(x, name);
}

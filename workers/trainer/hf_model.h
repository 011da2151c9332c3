/* SPDX-License-Identifier: Apache-2.0
 * A whole model as a Hugging Face folder, out and in: weights, config, tokenizer, PEFT adapters,
 * averages. A finished model loads in transformers unchanged, and comes back bit for bit: what is
 * trained is written in fp32, whatever the precision of the job. Called by the session, the loop
 * and the checkpoint code. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "core/spec/spec.h"
#include "workers/engine/engine.h"
#include "workers/trainer/folder.h"
#include "workers/trainer/hf_tokenizer.h"
#include "workers/trainer/hf_weights.h"

#include <stdbool.h>
#include <stdint.h>

/* What is written from. All borrowed. */
struct hf_model {
	struct engine *engine;
	const struct job_spec *spec;
	const struct plan *plan;
	const struct hf_tokenizer *tokenizer;
	struct mesh *mesh;   /* the other ranks; NULL: alone */
	bool apart;          /* they see no folder in common (shards_meet) */
	bool base_elsewhere; /* LoRA: the base lies in files already and is not written again */
};

/* config.json, generation_config.json, adapter_config.json and the tokenizer's files. */
int hf_model_describe(const struct hf_model *m, struct folder *f, struct err *err) must_check;
/* What training changes: "model", or with LoRA "adapter_model". w is the engine's list, or one with
 * copies in it. batches: hf_model_batches. gather and f NULL: as hf_weights_write has them. */
int hf_model_weights(const struct hf_model *m, const struct hf_weights *w, int64_t batches,
	struct gather *gather, struct folder *f, struct err *err) must_check;
/* Batches that batch norms have seen by this step. */
int64_t hf_model_batches(const struct hf_model *m, int64_t step);
/* Where ranks keep a part of the model each, all of them call it: what they have goes to rank 0, a
 * block at a time, which writes. Otherwise there is nothing to do but on rank 0.
 * Writes and publishes dir, replacing one that is there: everything above, the base of adapters
 * unless it lies elsewhere, averages as "ema" (none before the first step), and trainyard.json with
 * the text of `summary`. */
int hf_model_write(const struct hf_model *m, const char *dir, int64_t step,
	const struct buf *summary, struct err *err) must_check;

/* The stem of what training changes. */
const char *hf_model_stem(const struct job_spec *spec);

/* All ranks call these; each reads what it keeps. mesh NULL: alone.
 * Loads weights, and adapters when both the files and the spec have some. INVALID_DATA says what
 * does not fit; the engine is then not to be used. */
int hf_model_read(struct engine *e, struct mesh *mesh, const struct job_spec *spec, const char *dir,
	struct err *err) must_check;
/* Adapters alone, over what is loaded. */
int hf_model_read_adapters(struct engine *e, struct mesh *mesh, const struct job_spec *spec,
	const char *dir, struct err *err) must_check;

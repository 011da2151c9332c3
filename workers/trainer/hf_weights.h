/* SPDX-License-Identifier: Apache-2.0
 * A model's tensors as Hugging Face files, in one file or in shards with an index, and PEFT's
 * adapter files. Names are the plan's, which are Hugging Face's already. Reading maps one file at a
 * time and copies into the engine's memory; every file is hostile. Called by the hf_model files. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "core/spec/spec.h"
#include "workers/engine/engine.h"
#include "workers/trainer/folder.h"

#include <stdbool.h>
#include <stdint.h>

struct comm;
struct gather;
struct mesh;

enum {
	HF_SHARDS_MAX = 48, /* shards grow beyond the wanted size when there would be more */
	HF_INDEX_BYTES_MAX = 16 * 1024 * 1024,
};
static const int64_t HF_SHARD_BYTES = 5 * 1000 * 1000 * 1000LL; /* the field's "5GB" */

/* What an engine holds, listed once. */
struct hf_weights {
	struct engine_tensor *list;
	int count;
	uint64_t *elsewhere; /* hashes of names that ranks have, ascending; NULL: this one has all */
	int elsewhere_count;
};
int hf_weights_of(struct engine *e, struct hf_weights *ret, struct err *err) must_check;
/* The same, to read files into it. All ranks call it; mesh NULL: alone. */
int hf_weights_of_rank(
	struct engine *e, struct mesh *mesh, struct hf_weights *ret, struct err *err) must_check;
/* Ranks that do not all have all tensors tell each other what they have. All of them call it. */
int hf_weights_meet(struct comm *others, struct hf_weights *w, struct err *err) must_check;
/* Whether another rank has, or may have, a tensor of that name; false where this one has all. */
bool hf_weights_elsewhere(const struct hf_weights *w, const char *name);
void hf_weights_finish(struct hf_weights *w);
/* Of the whole tensor, whatever of it this rank keeps. */
int64_t hf_weights_elements(const struct engine_tensor *t);

/* LoRA's matrices: "base_model.model.<module>.lora_A.weight" and lora_B. */
bool hf_weights_is_adapter(const char *name);

struct hf_weights_options {
	bool adapters;         /* the adapters alone; otherwise everything else */
	bool averages;         /* the moving average where a tensor has one */
	int64_t batches;       /* seen by batch norms: num_batches_tracked */
	int64_t shard_bytes;   /* wanted; 0 = HF_SHARD_BYTES. A tensor is never split */
	struct gather *gather; /* where ranks keep parts: in place of w, on every rank; else NULL */
};
/* Adds "<stem>.safetensors", or shards and "<stem>.safetensors.index.json", to the folder. The type
 * is the one that training keeps: fp32 for all that is trained, so nothing is lost. f NULL: another
 * rank writes, and gets the pieces that this one keeps. */
int hf_weights_write(const struct hf_weights *w, const char *stem,
	const struct hf_weights_options *o, struct folder *f, struct err *err) must_check;

/* Loads "<stem>.safetensors" or its shards, or a checkpoint's shards (shards.h), into every tensor
 * that is (adapters) or is not an adapter: the elements that w keeps, and reads no others; it may
 * be a part of the model (hf_weights_meet). F32,
 * BF16 and F16 are converted. Names may lack the family's prefix ("transformer.", "model.");
 * buffers that carry no weights are passed over; a head that is tied may be there if it equals the
 * embedding. INVALID_DATA names the tensor that is missing, unexpected or of another shape, and the
 * file. The engine's tensors are undefined after an error. */
int hf_weights_read(const struct hf_weights *w, const char *dir, const char *stem,
	const struct spec_model *model, bool adapters, struct err *err) must_check;
/* "<stem>.safetensors" or its index is there. */
bool hf_weights_exist(const char *dir, const char *stem);

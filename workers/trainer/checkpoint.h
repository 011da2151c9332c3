/* SPDX-License-Identifier: Apache-2.0
 * Checkpoints: a folder of the model's Hugging Face files (with LoRA: PEFT's),
 * optimizer.safetensors, state.json and a manifest, published by rename, so that it is there whole
 * or not at all. Nothing in it depends on the time or the machine: same training, same bytes.
 * saver.h writes them beside the training, in the three steps below; checkpoint_write does all at
 * once. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "core/spec/spec.h"
#include "workers/engine/engine.h"
#include "workers/trainer/hf_model.h"
#include "workers/trainer/summary.h"

#include <stdint.h>

/* Where ranks keep a part of the state each, each of them writes a shard of its own (shards.h) in
 * place of the weights' and the optimizer's files: nobody gathers. (Ranks that see no folder in
 * common send what they keep to rank 0, a block at a time, which writes those files.) All ranks
 * then make the calls below, equally often, and the folder is there once all have synced what they
 * wrote.
 *
 * One at a time of one engine; its memory is a list of tensors, and copies of the running
 * statistics (a few vectors). Weights and optimizer state are never copied. */
struct checkpoint;
/* The model is copied, what it points to is borrowed. */
int checkpoint_create(
	const struct hf_model *m, struct checkpoint **ret, struct err *err) must_check;
void checkpoint_destroy(struct checkpoint *c);
void checkpoint_destroyp(struct checkpoint **c);
/* Any thread: the steps below end soon, with CANCELLED, instead of waiting for other ranks. */
void checkpoint_abort(struct checkpoint *c, const char *reason);

/* Between two steps: takes down the engine's state, the metrics and what the forward pass of the
 * next step changes (running statistics). Cheap. <parent>/step-<N> is what will be; parent exists.
 */
int checkpoint_begin(struct checkpoint *c, const struct summary_metrics *metrics,
	const char *parent, struct err *err) must_check;
/* Any thread: writes the tensors, without waiting for the disk. Until it returns, nothing may
 * update weights, moments or averages. */
int checkpoint_copy(struct checkpoint *c, struct err *err) must_check;
/* Any thread: the small files; syncs, hashes, publishes. Reads nothing of the engine. With shards,
 * what has gone wrong in the first two steps on any rank is an error of this one on all. */
int checkpoint_publish(struct checkpoint *c, struct err *err) must_check;

/* Writes and publishes <parent>/step-<N>, in place of one that another run left. parent exists. */
int checkpoint_write(const struct hf_model *m, const struct summary_metrics *metrics,
	const char *parent, int64_t *ret_step, struct err *err) must_check;
/* Verifies the manifest, then loads weights, optimizer and state, of which each rank reads what it
 * keeps: the ranks that saved may have been any others. With LoRA the base must be there already.
 * INVALID_DATA, on all ranks, unless everything is there and fits the plan (INVALID_VALUE names the
 * field of the spec's config that it was not saved with); the engine is then not to be used. mesh
 * NULL: alone. */
int checkpoint_restore(struct engine *e, struct mesh *mesh, const struct job_spec *spec,
	const char *dir, struct summary_metrics *ret_metrics, struct err *err) must_check;

/* The name of a step's folder ("step-400"). */
enum { CHECKPOINT_NAME_MAX = 32 };
void checkpoint_name(int64_t step, char ret_name[static CHECKPOINT_NAME_MAX]);

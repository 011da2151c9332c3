/* SPDX-License-Identifier: Apache-2.0
 * A checkpoint's tensors where no rank has the whole model: a safetensors file of every rank, with
 * what it keeps. A piece is a vector under the tensor's name, and the file's metadata say under
 * that name where it belongs (below). Read back by any number of ranks, cut in any way. Used by the
 * checkpoint and hf files. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "workers/engine/engine.h"
#include "workers/engine/mesh.h"
#include "workers/trainer/hf_weights.h"
#include "workers/trainer/manifest.h"
#include "workers/trainer/safetensors.h"

#include <stdbool.h>

/* "<first element> of <shape>", as "4096 of 768x768": a stretch of the tensor. Where ranks keep
 * columns, heads or rows of it, also how: "4096 of 768x2304 cut 768/2304+0" has elements 4096 and
 * on of those that are left when 768 of every 2304 are taken, from element 0 of each. All pieces of
 * a tensor agree on the period, lie beside one another in it, and make up the whole once. */

/* The ranks of this place keep a part of the model each. */
bool shards_are_used(const struct plan_mesh *place);
/* Of so many ranks: "shard-00002-of-00004.safetensors" for rank 1. */
void shards_name(int rank, int size, char ret_name[static MANIFEST_NAME_MAX]);
/* Part of what a checkpoint has: not the base that adapters (lora) leave as it is. */
bool shards_include(const struct engine_tensor *t, bool lora);
/* What a rank that has w writes: what it alone keeps, and its share of what several keep alike, so
 * that the ranks together write everything once. The data point where w's do. free() it. */
int shards_list(const struct hf_weights *w, bool lora, struct safetensors_tensor **ret,
	int *ret_count, struct err *err) must_check;

/* Whether all ranks of the group see one and the same folder under that path, which each of them
 * has made: several machines may have one each. All ranks call it. */
int shards_meet(struct comm *others, const char *dir, bool *ret_apart, struct err *err) must_check;

/* How many shards the folder of this manifest has; 0: it is no checkpoint in shards. */
int shards_count(const struct manifest *m);

struct shards; /* all of a folder, mapped */
/* INVALID_DATA, with file and tensor, when one is missing or not as written here. */
int shards_open(
	const char *dir, const struct manifest *m, struct shards **ret, struct err *err) must_check;
void shards_close(struct shards *s);
void shards_closep(struct shards **s);
/* Fills what t keeps; the bits as they were, or, of weights, converted to t's type. Reads no other
 * bytes. INVALID_DATA unless the pieces make up exactly a tensor of t's shape. */
int shards_load(struct shards *s, const struct engine_tensor *t, struct err *err) must_check;
/* INVALID_DATA when there is a tensor that this rank has not asked for, unless another has it. */
int shards_check_used(
	const struct shards *s, const struct hf_weights *w, struct err *err) must_check;

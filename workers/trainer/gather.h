/* SPDX-License-Identifier: Apache-2.0
 * Brings tensors that ranks keep in parts to rank 0, a block at a time, so that it can write them
 * whole without ever having one whole. All ranks go through the model's tensors in the same order:
 * rank 0 takes, each of the others sends what it has. Used by the checkpoint and hf files while
 * nothing else uses the mesh's group for saving. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "workers/engine/mesh.h"
#include "workers/trainer/hf_weights.h"

#include <stdint.h>

/* Rank 0 has two of them, the others none. A block is a stretch of the whole tensor, so that
 * everybody knows without asking what of it is its own. */
enum { GATHER_BLOCK_BYTES = 2 << 20 };

struct gather;
/* Rank 0 hears who keeps what: memory for a tensor's description for each part of one. All ranks
 * call it. The data that w points to are borrowed. */
int gather_create(
	struct mesh *mesh, const struct hf_weights *w, struct gather **ret, struct err *err) must_check;
void gather_destroy(struct gather *g);
void gather_destroyp(struct gather **g);
/* In the order of the whole model: on rank 0 all tensors that any rank has, as wholes and without
 * data, on the others their own. What i counts below. */
const struct hf_weights *gather_tensors(const struct gather *g);
/* Rank 0: the bytes of tensor i from byte `at` on, a block or less. Valid until the next call. From
 * front to back. */
int gather_next(struct gather *g, int i, int64_t at, const void **ret, int64_t *ret_bytes,
	struct err *err) must_check;
/* The others: what this rank has of it, unless it is another that sends that. */
int gather_send(struct gather *g, int i, struct err *err) must_check;

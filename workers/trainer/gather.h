/* SPDX-License-Identifier: Apache-2.0
 * Brings tensors that ranks keep in pieces to rank 0, a block at a time, so that it can write them
 * whole without ever having one whole. All ranks go through the same tensors in the same order:
 * rank 0 takes, the others send. Used by the hf files while nothing else uses the mesh's group for
 * saving. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "workers/engine/mesh.h"
#include "workers/trainer/hf_weights.h"

#include <stdint.h>

enum { GATHER_BLOCK_BYTES = 4 << 20 };

struct gather;
/* Tells each other who keeps what. w is borrowed. */
int gather_create(
	struct mesh *mesh, const struct hf_weights *w, struct gather **ret, struct err *err) must_check;
void gather_destroy(struct gather *g);
void gather_destroyp(struct gather **g);
/* Rank 0: the bytes of tensor i of w from byte `at` on, as far as they come in one piece. Valid
 * until the next call. From front to back. */
int gather_next(struct gather *g, int i, int64_t at, const void **ret, int64_t *ret_bytes,
	struct err *err) must_check;
/* The others: what this rank has of it and no rank before it. */
int gather_send(struct gather *g, int i, struct err *err) must_check;

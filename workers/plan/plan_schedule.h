/* SPDX-License-Identifier: Apache-2.0
 * In what order a rank of a pipeline runs the forward and backward passes of its stages: 1F1B
 * (Narayanan et al. 2019), and interleaved where a rank has several stages (Narayanan et al. 2021).
 * A closed form: no list is kept. Used by the plan for its memory and by the engine to run. Pure.
 */
#pragma once

#include "workers/plan/plan_op.h"

enum { PLAN_CHUNKS_MAX = 64 };

/* Stage c * ranks + rank of the model is chunk c of a rank. Several chunks need micros to be a
 * multiple of ranks for a whole step; a forward pass alone does not. */
struct plan_schedule {
	int ranks, rank, chunks;
	int64_t micros;
};

/* The forward or backward pass of one chunk over one micro-batch. */
struct plan_item {
	enum plan_phase phase;
	int chunk;
	int64_t micro;
};

/* Items of one step; the i-th. */
static inline int64_t plan_schedule_count(const struct plan_schedule *s)
{
	return 2 * s->micros * s->chunks;
}
struct plan_item plan_schedule_at(const struct plan_schedule *s, int64_t i);

/* The k-th of the micros * chunks forward (backward) items, the same on every rank: as many
 * micro-batches as there are ranks pass the first chunk, then the next one, and so on. */
struct plan_item plan_schedule_forward(const struct plan_schedule *s, int64_t k);
struct plan_item plan_schedule_backward(const struct plan_schedule *s, int64_t k);

/* Micro-batches of a chunk that may be between the begin of their forward and the end of their
 * backward pass. They follow each other, so micro % slots is a place for each. */
int64_t plan_schedule_slots(const struct plan_schedule *s, int chunk);

/* Share of a step in which a rank has nothing to do, all passes of all chunks being as long. */
double plan_schedule_bubble(const struct plan_schedule *s);

/* SPDX-License-Identifier: Apache-2.0
 * Reads micro-batches ahead of the training step, on threads of its own, so that the device does
 * not wait for the disk or for a decoder. Which samples come when is a function of the position
 * alone: the loader changes the time, never the data. Used by engine_step.c; one owner thread. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "workers/engine/data.h"

#include <stdint.h>

enum { LOADER_DEPTH = 2 }; /* micro-batches that may be ready before they are asked for */

struct loader;

/* How one micro-batch is made. */
struct loader_options {
	int64_t micro_batch;
	int64_t stride; /* from one micro-batch to the next of this reader, in the stream; 0: their size
					 */
	uint64_t seed;
	bool shuffle;
	int threads;                          /* 0: nothing is read ahead, loader_take reads itself */
	struct data_batch slot[LOADER_DEPTH]; /* staging memory of the plan (PLAN_DATA) */
	void (*prepare_thread)(void);         /* called by each thread first; may be NULL */
};

/* data is borrowed until loader_close. */
int loader_open(const struct data *data, const struct loader_options *o, struct loader **ret,
	struct err *err) must_check;
void loader_close(struct loader *l);
/* The micro-batch that begins at the stream position; valid until the next call. What follows it is
 * read meanwhile. A position that was not foreseen (a restore) discards what was read ahead.
 * *ret_wait_us: how long the caller had to wait. */
const struct data_batch *loader_take(struct loader *l, int64_t position, int64_t *ret_wait_us);

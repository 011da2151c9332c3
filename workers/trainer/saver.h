/* SPDX-License-Identifier: Apache-2.0
 * Writes checkpoints beside the training. A thread reads the weights straight from the engine's
 * memory while the next step's forward and backward passes run, which only read them; the step
 * waits before its update until they are written (saver_hold), and hashing, syncing and publishing
 * go on for as long as they take. One checkpoint at a time; no copy of the model is ever made.
 * Where ranks write shards, each has a saver and they begin in the same step. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "workers/trainer/checkpoint.h"

#include <stdbool.h>
#include <stdint.h>

struct saver;

/* Called now and then, on the caller's thread, while it waits. */
typedef void (*saver_waiting_fn)(void *ctx);

int saver_create(const struct hf_model *m, struct saver **ret, struct err *err) must_check;
/* Waits for a checkpoint that is being written, but not for other ranks' part in it: then it is
 * given up. NULL is fine. */
void saver_destroy(struct saver *s);

/* Between two steps, when none is being written (saver_busy). */
int saver_begin(struct saver *s, const struct summary_metrics *metrics, const char *parent,
	struct err *err) must_check;
/* A checkpoint was begun and its end has not been told yet. */
bool saver_busy(const struct saver *s);
/* The tensors are still being read: whoever changes weights calls saver_hold first. */
bool saver_reading(struct saver *s);
void saver_hold(struct saver *s, saver_waiting_fn waiting, void *ctx);
/* True when the checkpoint that was begun is over; then *ret_code and err say how it went. */
bool saver_over(struct saver *s, int *ret_code, struct err *err);
/* Waits until it is over. CONFLICT when none was begun. */
int saver_finish(struct saver *s, saver_waiting_fn waiting, void *ctx, struct err *err) must_check;

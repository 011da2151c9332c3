/* SPDX-License-Identifier: Apache-2.0
 * Checkpoints: a folder with model.safetensors (Hugging Face names), optimizer.safetensors,
 * state.json, config.json and a manifest, published by rename, so that it is there whole or not at
 * all. Nothing in it depends on the time or the machine: same training, same bytes. Called by the
 * training loop, on its thread. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "core/spec/spec.h"
#include "workers/engine/engine.h"

#include <stdbool.h>
#include <stdint.h>

/* The last figures, carried through a resume so that the final model tells the same ones. */
struct checkpoint_metrics {
	bool has_loss;
	double loss;
	int64_t evaluated_step; /* 0: not evaluated yet */
	double validation_loss, bits_per_byte, order0_bits_per_byte, accuracy;
};

/* Writes and publishes <parent>/step-<N>; one of that name that is whole is kept. parent exists. */
int checkpoint_write(struct engine *e, const struct job_spec *spec, const struct plan *plan,
	const struct checkpoint_metrics *metrics, const char *parent, int64_t *ret_step,
	struct err *err) must_check;
/* Verifies the manifest, then loads weights, optimizer and state. INVALID_DATA unless everything is
 * there and fits the plan; the engine is then not to be used. */
int checkpoint_restore(struct engine *e, const char *dir, struct checkpoint_metrics *ret_metrics,
	struct err *err) must_check;
/* The name of a step's folder ("step-400"). */
enum { CHECKPOINT_NAME_MAX = 32 };
void checkpoint_name(int64_t step, char ret_name[static CHECKPOINT_NAME_MAX]);

/* Writes and publishes the folder dir (".../model"): model.safetensors, config.json,
 * trainyard.json (figures) and a manifest. One that exists is replaced. */
int checkpoint_write_model(struct engine *e, const struct job_spec *spec, const struct plan *plan,
	const struct checkpoint_metrics *metrics, const char *dir, struct err *err) must_check;

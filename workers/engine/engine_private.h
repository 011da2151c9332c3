/* SPDX-License-Identifier: Apache-2.0
 * The engine's inside, shared by the engine_*.c files and their unit tests. */
#pragma once

#include "workers/engine/backend.h"
#include "workers/engine/engine.h"

struct engine {
	const struct job_spec *spec;
	const struct plan *plan;
	const struct backend *backend;
	struct backend_ctx *ctx;
	char *arena;
	struct backend_linear **linear; /* by operation; NULL where it is something else */
	struct backend_conv **conv;
	struct backend_segment *segments; /* flat parameters by weight decay */
	int segment_count;
	const struct data *training, *validation;
	struct engine_state state;

	/* Of the pass that is running. */
	bool train;
	float loss_scale;       /* of each row's gradient; 0 in evaluation */
	int64_t micro_position; /* stream position of the micro-batch: key of dropout */
	double grad_square;     /* result of the gradient norm */
	float grad_scale;       /* clipping */
	float learning_rate;
};

/* Address of a buffer, NULL for -1. */
void *engine_buffer(const struct engine *e, int buffer);
/* Runs ops [begin, end). */
int engine_exec(struct engine *e, int begin, int end, struct err *err) must_check;
int engine_exec_prepare(struct engine *e, struct err *err) must_check;
void engine_exec_finish(struct engine *e);
/* One micro-batch of training at the stream position: fills, forward, backward; gradients add up.
 * Returns the sum of the row losses. */
int engine_step_micro(
	struct engine *e, int64_t position, float scale, double *ret_loss, struct err *err) must_check;

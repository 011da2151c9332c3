/* SPDX-License-Identifier: Apache-2.0
 * The training loop: steps, evaluations, checkpoints, orders, the time limit, losses that came
 * apart, the final model. Knows whom it reports to only through struct reporter. All ranks of a job
 * run it and leave it in the same step; rank 0 alone reports and writes. Runs on the thread that
 * opened the session. */
#pragma once

#include "core/base/attr.h"
#include "core/base/clock.h"
#include "core/base/err.h"
#include "workers/trainer/session.h"

#include <stdbool.h>
#include <stdint.h>

enum {
	LOOP_STEP_REPORT_MS = 500, /* a reporter that does not want every step hears of two a second */
	LOOP_UNSAVED_MAX = 4,   /* checkpoints waiting for the yard; then periodic ones are skipped */
	LOOP_FOLDERS_MAX = 128, /* checkpoint folders that the loop keeps track of */
};

enum loop_order {
	LOOP_GO_ON,
	LOOP_CANCEL, /* checkpoint, then leave with that outcome */
	LOOP_PAUSE,
	LOOP_TERMINATE, /* SIGTERM: checkpoint, then leave; the yard tries again elsewhere */
};

/* All mandatory. None may block for long. */
struct reporter {
	/* Takes one message (docs/protocol.md, without seq). *ret_seq: its number, 0 if dropped. */
	int (*message)(void *ctx, const char *json, bool droppable, int64_t *ret_seq, struct err *err);
	int64_t (*acked_seq)(void *ctx); /* messages up to this need not be kept */
	enum loop_order (*order)(void *ctx);
	bool (*take_checkpoint)(void *ctx);     /* true once for each order to take one now */
	void (*alive)(void *ctx, int64_t step); /* the loop moved */
};

struct loop {
	struct session *session;
	const struct reporter *reporter;
	void *reporter_ctx;
	const struct clock *clock;
	const char *dir;         /* the attempt's folder: checkpoints/ and the model go there */
	const char *model_dir;   /* its name in dir: "model" */
	bool every_step;         /* report each step, with this step's own rates */
	bool sample_ids;         /* tell which samples each step read */
	const char *profile_dir; /* NULL: no traces */
	int64_t profile_steps;
	int64_t keep;          /* acknowledged checkpoint folders that stay (the newest) */
	int64_t started_us;    /* boot clock: the time limit counts from here */
	int64_t max_runtime_s; /* 0 = none */
};

struct loop_result {
	const char *outcome; /* succeeded failed cancelled paused */
	const char *reason;  /* NULL unless failed */
	char message[ERR_MESSAGE_MAX];
	int code; /* the error behind a failure of ours, ranks_is_lost among them; 0: none */
	int64_t step;
	bool has_model;
};

/* Always ends with a result; failures of ours are results too. */
void loop_run(const struct loop *l, struct loop_result *ret);

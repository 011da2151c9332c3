/* SPDX-License-Identifier: Apache-2.0
 * The report messages of docs/protocol.md as JSON objects without `seq`. Pure; each appends to an
 * empty buf and the caller checks buf.failed. */
#pragma once

#include "core/base/buf.h"
#include "workers/engine/engine.h"
#include "workers/plan/plan_job.h"
#include "workers/trainer/session.h"

/* What a step is told with, besides the engine's own figures. */
struct message_rates {
	double samples_per_second, tokens_per_second;
	double mfu; /* the job's FLOPs per step over time and its devices' peak; 0: not known */
	double data_wait_share; /* of the step's time, waiting for data */
	double eta_s;
	bool sample_ids; /* list the samples that the step read */
};

void message_training(const struct session *s, struct buf *out);
void message_step(const struct session *s, const struct engine_step *step,
	const struct message_rates *rates, struct buf *out);
void message_evaluation(const struct session *s, struct buf *out);
/* dir is relative to the attempt's folder. */
void message_checkpoint(const struct session *s, int64_t step, const char *dir,
	const struct summary_metrics *metrics, struct buf *out);
void message_log(const char *line, struct buf *out);

/* How the attempt ends. Words are those of the protocol; reason NULL unless failed. */
struct message_end {
	const char *outcome;
	const char *reason;
	const char *message; /* "" when there is nothing to say */
	int64_t step;
	const char *dir; /* of the model; NULL unless succeeded */
	bool lost_rank;  /* it is another rank's doing: the agent may know more */
};
/* s may be NULL when the training was never opened. */
void message_end(const struct session *s, const struct message_end *end, struct buf *out);
/* The plan's figures as one JSON object. */
void message_plan(const struct plan *p, const struct plan_job *job, struct buf *out);

/* SPDX-License-Identifier: Apache-2.0
 * One try of a job on one machine or several: its transition table, its fence, and the rules that
 * say what an end means for the job, for the money and for the devices. Called by the agents'
 * handlers (through attempt_message.c) and by the scheduler, inside the caller's transaction. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "core/base/ident.h"
#include "core/db/db.h"
#include "core/model/job.h"
#include "core/model/segment.h"

#include <stdbool.h>
#include <stdint.h>

enum {
	ATTEMPT_LEASE_MS = 30000,     /* the yard gives a silent attempt up after this */
	ATTEMPT_SELF_KILL_MS = 20000, /* the machine kills it this long after the last accepted beat */
	ATTEMPT_BEAT_MS = 5000,
	ATTEMPT_STALL_MS = 120000, /* without a step, when the plan says nothing else */
	ATTEMPT_BARREN_MAX = 3,    /* platform failures in a row without a new checkpoint */
	ATTEMPT_REASON_MAX = 32,
	ATTEMPT_LAST_LINES_MAX = 40,
};

enum attempt_status {
	ATTEMPT_ASSIGNED,
	ATTEMPT_STARTING,
	ATTEMPT_TRAINING,
	ATTEMPT_STOPPING, /* after the last checkpoint: uploads, goodbyes; never billed */
	ATTEMPT_ENDED,
};
enum { ATTEMPT_STATUS_COUNT = ATTEMPT_ENDED + 1 };

enum attempt_outcome {
	ATTEMPT_SUCCEEDED,
	ATTEMPT_FAILED,
	ATTEMPT_CANCELLED,
	ATTEMPT_PAUSED,
	ATTEMPT_PREEMPTED,
	ATTEMPT_LOST,
};

enum attempt_desired { ATTEMPT_RUN, ATTEMPT_CANCEL, ATTEMPT_PAUSE };

const char *attempt_status_word(enum attempt_status s);
const char *attempt_outcome_word(enum attempt_outcome o);
/* The transition table. */
bool attempt_move_allowed(enum attempt_status from, enum attempt_status to);

/* Who a write comes from. */
struct attempt_fence {
	const char *attempt_id;
	int64_t epoch;
	const char *agent_id;
};

/* A live attempt whose row, and whose job's row, this transaction has locked
 * (attempt_store_lock). */
struct attempt {
	char id[IDENT_MAX];
	int64_t epoch;
	char agent_id[IDENT_MAX];
	char job_id[IDENT_MAX];
	char tenant_id[IDENT_MAX];
	int64_t number;
	enum attempt_status status;
	enum attempt_desired desired;
	int64_t part;       /* of the machine that writes: 0 has rank 0 and tells the training */
	int64_t report_seq; /* its last message applied; written by attempt_store_flush, attempt_end */
	int64_t last_step;
	bool moved; /* last_step grew in this transaction */
	enum job_status job_status;
	bool cancel_requested;
	int64_t barren_failures;
	int64_t keep;  /* checkpoints to keep */
	int64_t steps; /* of the whole job; 0 while unknown */
};

/* Moves a live attempt on (not to ENDED); CONFLICT when the table does not allow it. */
int attempt_move(
	struct db_conn *conn, struct attempt *a, enum attempt_status to, struct err *err) must_check;
enum { ATTEMPT_NO_NUMBER = -1 }; /* rank, exit_code, signal: not known */

/* How an attempt ended, as reported or as the yard found. */
struct attempt_end {
	enum attempt_outcome outcome;
	const char *reason;  /* a word of the table of reasons; NULL unless failed or lost */
	const char *message; /* for people; may be NULL */
	int64_t rank, exit_code, signal;
	const char *last_lines_json; /* an array of texts; NULL = [] */
};

/* What becomes of the job. */
enum attempt_fate { FATE_SUCCEED, FATE_FAIL, FATE_CANCEL, FATE_PAUSE, FATE_REQUEUE };

/* The rules, pure: what an end means. */
struct attempt_verdict {
	enum attempt_outcome outcome; /* as stored */
	enum attempt_fate fate;
	enum segment_state training_as; /* the training time since the last checkpoint */
	bool barren;                    /* counts towards ATTEMPT_BARREN_MAX */
};
/* INVALID_VALUE when the reason is not known or the outcome is not possible in this state. */
int attempt_judge(const struct attempt *a, const struct attempt_end *end,
	struct attempt_verdict *ret, struct err *err) must_check;

/* Ends a live attempt: judges, closes and releases its devices, ends its row, moves its job (or
 * requeues it from its last checkpoint), raises its agent's version. */
int attempt_end(struct db_conn *conn, struct attempt *a, const struct attempt_end *end,
	struct err *err) must_check;

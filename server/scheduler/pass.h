/* SPDX-License-Identifier: Apache-2.0
 * One pass of the scheduler over the database, in steps that each commit. Safe to run anywhere and
 * by several at once (constraints and row locks decide, not the leadership). Called by
 * scheduler.c's thread. */
#pragma once

#include "core/base/attr.h"
#include "core/base/clock.h"
#include "core/base/err.h"
#include "core/db/db.h"

/* A kind of step, each of which a pass takes for many things. */
enum pass_step { PASS_EXPIRE, PASS_PLACE, PASS_BLOCK, PASS_DROP };
enum { PASS_STEPS = PASS_DROP + 1, PASS_LOG_EVERY_MS = 10000 };

/* Steps that failed. Passes follow each other closely, and what fails once fails in each: the log
 * hears of a kind at most every PASS_LOG_EVERY_MS. Zeroed at first. */
struct pass_failures {
	int64_t next_us[PASS_STEPS]; /* nothing is logged before */
	int64_t logged, unlogged;    /* since the beginning */
};

/* What a pass reaches outside the database. All are mandatory. */
struct pass_hooks {
	const struct clock *clock;
	struct pass_failures *failures;
	int64_t elastic_wait_ms; /* that an elastic job waits for its whole wish */
	void *ctx;
	/* topic "job:<id>" or "agent:<id>" has changed, after the commit */
	void (*touch)(void *ctx, const char *topic);
	/* removes content; NOT_FOUND when it is gone already */
	int (*remove)(void *ctx, const char *tenant_id, const char *sha256, struct err *err);
};

/* Ends attempts whose lease is over and requeues their jobs; marks silent machines as lost. */
int pass_expire(struct db_conn *conn, const struct pass_hooks *hooks, int *ret_expired,
	struct err *err) must_check;
/* Places what can be placed, notes what is in the way of the rest. */
int pass_place(struct db_conn *conn, const struct pass_hooks *hooks, int *ret_placed,
	struct err *err) must_check;
/* Drops content of trimmed checkpoints. */
int pass_drop(struct db_conn *conn, const struct pass_hooks *hooks, int *ret_dropped,
	struct err *err) must_check;

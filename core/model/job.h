/* SPDX-License-Identifier: Apache-2.0
 * The life of a job: one transition table, one function that moves a job along it, one that writes
 * its events. Called by handlers, the scheduler and attempt.c, inside the caller's transaction.
 * Thread-safe: state lives in the database. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "core/base/ident.h"
#include "core/db/db.h"

enum job_status {
	JOB_VALIDATING_FILES,
	JOB_QUEUED,
	JOB_RUNNING,
	JOB_PAUSED,
	JOB_SUCCEEDED,
	JOB_FAILED,
	JOB_CANCELLED,
};
enum { JOB_STATUS_COUNT = JOB_CANCELLED + 1 };

/* "validating_files", … as in the API and in jobs.status. */
const char *job_status_word(enum job_status s);
int job_status_parse(const char *word, enum job_status *ret) must_check;
/* succeeded, failed, cancelled: nothing moves it again. */
bool job_status_is_terminal(enum job_status s);
/* The transition table. */
bool job_move_allowed(enum job_status from, enum job_status to);

/* Moves the job: locks its row, refuses what the table does not allow (CONFLICT), sets status,
 * reason, timestamps and progress of the queue, and writes the event (job.queued, job.requeued,
 * job.training, job.paused, job.succeeded, job.failed, job.cancelled) with the next sequence
 * number. reason_code and reason_message may be NULL. For a terminal event, jobs.error (when set)
 * is part of the event's data. NOT_FOUND when there is no such job. */
int job_move(struct db_conn *conn, const char *job_id, enum job_status to, const char *reason_code,
	const char *reason_message, struct err *err) must_check;

/* Writes any other event. data_json is a JSON object's text. */
int job_event(struct db_conn *conn, const char *job_id, const char *type, const char *data_json,
	int64_t *ret_seq, struct err *err) must_check;
/* The same, and merges progress_json (an object) into jobs.progress with one row written. */
int job_event_progress(struct db_conn *conn, const char *job_id, const char *type,
	const char *data_json, const char *progress_json, int64_t *ret_seq, struct err *err) must_check;

struct job_cancelled {
	enum job_status status;   /* after the call */
	char agent_id[IDENT_MAX]; /* "" or the machine whose list changed: touch its topic */
};
/* A durable intent. validating_files, paused and queued without an attempt become cancelled at
 * once; with a live attempt the attempt is told to leave and the job follows it. Asking again
 * changes nothing; a job that succeeded or failed answers CONFLICT. tenant_id bounds whose job it
 * may be: NOT_FOUND otherwise. */
int job_cancel(struct db_conn *conn, const char *tenant_id, const char *job_id,
	struct job_cancelled *ret, struct err *err) must_check;

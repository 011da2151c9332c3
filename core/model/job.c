/* SPDX-License-Identifier: Apache-2.0
 * The transition table of jobs and the statements that follow it. jobs.status is written here and
 * nowhere else. */
#include "core/model/job.h"

#include "core/model/attempt_part.h"

#include <stdio.h>
#include <string.h>

static const char *const words[JOB_STATUS_COUNT] = {
	[JOB_VALIDATING_FILES] = "validating_files",
	[JOB_QUEUED] = "queued",
	[JOB_RUNNING] = "running",
	[JOB_PAUSED] = "paused",
	[JOB_SUCCEEDED] = "succeeded",
	[JOB_FAILED] = "failed",
	[JOB_CANCELLED] = "cancelled",
};

/* Every legal move and the event that it writes. */
static const struct move {
	enum job_status from, to;
	const char *event;
} moves[] = {
	{ JOB_VALIDATING_FILES, JOB_QUEUED, "job.queued" },
	{ JOB_VALIDATING_FILES, JOB_FAILED, "job.failed" },
	{ JOB_VALIDATING_FILES, JOB_CANCELLED, "job.cancelled" },
	{ JOB_QUEUED, JOB_RUNNING, "job.training" },
	{ JOB_QUEUED, JOB_FAILED, "job.failed" },
	{ JOB_QUEUED, JOB_CANCELLED, "job.cancelled" },
	{ JOB_RUNNING, JOB_QUEUED, "job.requeued" },
	{ JOB_RUNNING, JOB_PAUSED, "job.paused" },
	{ JOB_RUNNING, JOB_SUCCEEDED, "job.succeeded" },
	{ JOB_RUNNING, JOB_FAILED, "job.failed" },
	{ JOB_RUNNING, JOB_CANCELLED, "job.cancelled" },
	{ JOB_PAUSED, JOB_QUEUED, "job.queued" },
	{ JOB_PAUSED, JOB_CANCELLED, "job.cancelled" },
};

const char *job_status_word(enum job_status s)
{
	return words[s];
}

int job_status_parse(const char *word, enum job_status *ret)
{
	for (int i = 0; i < JOB_STATUS_COUNT; i++)
		if (strcmp(words[i], word) == 0) {
			*ret = (enum job_status)i;
			return 0;
		}
	return ERR_INVALID_VALUE;
}

bool job_status_is_terminal(enum job_status s)
{
	return s == JOB_SUCCEEDED || s == JOB_FAILED || s == JOB_CANCELLED;
}

static const struct move *find_move(enum job_status from, enum job_status to)
{
	for (size_t i = 0; i < ARRAY_LEN(moves); i++)
		if (moves[i].from == from && moves[i].to == to)
			return &moves[i];
	return NULL;
}

bool job_move_allowed(enum job_status from, enum job_status to)
{
	return find_move(from, to) != NULL;
}

/* Locks the row. */
static int lock_status(
	struct db_conn *conn, const char *job_id, enum job_status *ret, struct err *err)
{
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc =
		db_exec(conn, &r, err, "select status from jobs where id = $1 for update", DB_TEXT(job_id));
	if (rc < 0)
		return rc;
	if (db_rows(r) == 0)
		return err_set(err, ERR_NOT_FOUND, NULL, "There is no job %s.", job_id);
	if (job_status_parse(db_str(r, 0, 0), ret) < 0)
		return err_set(err, ERR_INTERNAL, NULL, "Job %s has the unknown status '%s'.", job_id,
			db_str(r, 0, 0));
	return 0;
}

/* A requeued job keeps its place in the queue (queued_at): what befell it was not its doing. */
static const char move_sql[] =
	"with j as (update jobs set status = $2, reason_code = $3, reason_message = $4, seq = seq + 1,"
	" blocked_code = null, blocked_message = null,"
	" queued_at = case when $2 <> 'queued' then queued_at"
	"   when status = 'running' then coalesce(queued_at, yard_now()) else yard_now() end,"
	" started_at = case when $2 = 'running' then coalesce(started_at, yard_now())"
	"   else started_at end,"
	" finished_at = case when $6 then yard_now() else finished_at end"
	" where id = $1 returning seq, error)"
	" insert into job_events (job_id, seq, type, data)"
	" select $1, seq, $5, jsonb_strip_nulls(jsonb_build_object('status', $2::text,"
	"   'reason', case when $3::text is not null"
	"     then jsonb_build_object('code', $3::text, 'message', $4::text) end,"
	"   'error', case when $6 then error end)) from j";

int job_move(struct db_conn *conn, const char *job_id, enum job_status to, const char *reason_code,
	const char *reason_message, struct err *err)
{
	enum job_status from;
	int rc = lock_status(conn, job_id, &from, err);
	if (rc < 0)
		return rc;
	const struct move *move = find_move(from, to);
	if (move == NULL)
		return err_set(err, ERR_CONFLICT, NULL, "Job %s is %s and cannot become %s.", job_id,
			words[from], words[to]);
	return db_exec(conn, NULL, err, move_sql, DB_TEXT(job_id), DB_TEXT(words[to]),
		DB_TEXT(reason_code), DB_TEXT(reason_message), DB_TEXT(move->event),
		DB_BOOL(job_status_is_terminal(to)));
}

int job_event_progress(struct db_conn *conn, const char *job_id, const char *type,
	const char *data_json, const char *progress_json, int64_t *ret_seq, struct err *err)
{
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc = db_exec(conn, &r, err,
		"with j as (update jobs set seq = seq + 1,"
		" progress = case when $4::jsonb is null then progress else progress || $4::jsonb end"
		" where id = $1 returning seq)"
		" insert into job_events (job_id, seq, type, data)"
		" select $1, seq, $2, $3::jsonb from j returning seq",
		DB_TEXT(job_id), DB_TEXT(type), DB_TEXT(data_json), DB_TEXT(progress_json));
	if (rc < 0)
		return rc;
	if (db_rows(r) == 0)
		return err_set(err, ERR_NOT_FOUND, NULL, "There is no job %s.", job_id);
	*ret_seq = db_i64(r, 0, 0);
	return 0;
}

int job_event(struct db_conn *conn, const char *job_id, const char *type, const char *data_json,
	int64_t *ret_seq, struct err *err)
{
	return job_event_progress(conn, job_id, type, data_json, NULL, ret_seq, err);
}

/* Tells the live attempt, if there is one, to leave. Raises the agent's version only when that is
 * news. */
static int ask_attempt_to_leave(struct db_conn *conn, const char *job_id, bool *ret_live,
	struct job_cancelled *ret, struct err *err)
{
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc = db_exec(conn, &r, err,
		"select id, agent_id, desired from attempts where job_id = $1 and status <> 'ended'"
		" for update",
		DB_TEXT(job_id));
	if (rc < 0)
		return rc;
	*ret_live = db_rows(r) > 0;
	if (!*ret_live)
		return 0;
	snprintf(ret->agent_id, sizeof(ret->agent_id), "%s", db_str(r, 0, 1));
	if (strcmp(db_str(r, 0, 2), "cancel") == 0)
		return 0;
	rc = db_exec(conn, NULL, err, "update attempts set desired = 'cancel' where id = $1",
		DB_TEXT(db_str(r, 0, 0)));
	if (rc < 0)
		return rc;
	return attempt_part_notify(conn, db_str(r, 0, 0), err);
}

int job_cancel(struct db_conn *conn, const char *tenant_id, const char *job_id,
	struct job_cancelled *ret, struct err *err)
{
	cleanup(db_result_freep) struct db_result *mine = NULL;
	int rc = db_exec(conn, &mine, err, "select from jobs where id = $1 and tenant_id = $2",
		DB_TEXT(job_id), DB_TEXT(tenant_id));
	if (rc < 0)
		return rc;
	if (db_rows(mine) == 0)
		return err_set(err, ERR_NOT_FOUND, NULL, "There is no job %s.", job_id);
	struct job_cancelled out = { 0 };
	rc = lock_status(conn, job_id, &out.status, err);
	if (rc < 0)
		return rc;
	if (out.status == JOB_SUCCEEDED || out.status == JOB_FAILED)
		return err_set(err, ERR_CONFLICT, NULL, "Job %s has %s already and cannot be cancelled.",
			job_id, words[out.status]);
	if (out.status != JOB_CANCELLED) {
		bool live = false;
		rc = db_exec(conn, NULL, err,
			"update jobs set cancel_requested_at = coalesce(cancel_requested_at, yard_now())"
			" where id = $1",
			DB_TEXT(job_id));
		if (rc == 0)
			rc = ask_attempt_to_leave(conn, job_id, &live, &out, err);
		if (rc == 0 && !live) {
			rc =
				job_move(conn, job_id, JOB_CANCELLED, "user_request", "Cancelled on request.", err);
			out.status = JOB_CANCELLED;
		}
		if (rc < 0)
			return rc;
	}
	*ret = out;
	return 0;
}

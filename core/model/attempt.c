/* SPDX-License-Identifier: Apache-2.0
 * The transition table of attempts, the table of reasons, and what follows from them. */
#include "core/model/attempt.h"

#include "core/json/writer.h"
#include "core/model/attempt_leave.h"
#include "core/model/attempt_part.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

enum { ERROR_JSON_MAX = 512 * 1024 };

static const char *const status_words[ATTEMPT_STATUS_COUNT] = {
	[ATTEMPT_ASSIGNED] = "assigned",
	[ATTEMPT_STARTING] = "starting",
	[ATTEMPT_TRAINING] = "training",
	[ATTEMPT_STOPPING] = "stopping",
	[ATTEMPT_ENDED] = "ended",
};
static const char *const outcome_words[] = {
	[ATTEMPT_SUCCEEDED] = "succeeded",
	[ATTEMPT_FAILED] = "failed",
	[ATTEMPT_CANCELLED] = "cancelled",
	[ATTEMPT_PAUSED] = "paused",
	[ATTEMPT_PREEMPTED] = "preempted",
	[ATTEMPT_LOST] = "lost",
};

static const bool allowed[ATTEMPT_STATUS_COUNT][ATTEMPT_STATUS_COUNT] = {
	[ATTEMPT_ASSIGNED] = { [ATTEMPT_STARTING] = true, [ATTEMPT_ENDED] = true },
	[ATTEMPT_STARTING] = { [ATTEMPT_TRAINING] = true, [ATTEMPT_ENDED] = true },
	[ATTEMPT_TRAINING] = { [ATTEMPT_STOPPING] = true, [ATTEMPT_ENDED] = true },
	[ATTEMPT_STOPPING] = { [ATTEMPT_ENDED] = true },
};

/* Whose doing a failure is. The customer's own is billed and ends the job; the platform's is lost
 * and the job goes on elsewhere; a refusal costs nothing and ends the job. */
enum blame { BLAME_CUSTOMER, BLAME_PLATFORM, BLAME_REFUSED };
static const struct {
	const char *word;
	enum blame blame;
} reasons[] = {
	{ "user_error", BLAME_CUSTOMER },
	{ "out_of_memory", BLAME_CUSTOMER },
	{ "nan_loss", BLAME_CUSTOMER },
	{ "loss_spike", BLAME_CUSTOMER },
	{ "max_runtime", BLAME_CUSTOMER },
	{ "stalled", BLAME_PLATFORM },
	{ "trainer_died", BLAME_PLATFORM },
	{ "platform_error", BLAME_PLATFORM },
	{ "agent_lost", BLAME_PLATFORM },
	{ "residency", BLAME_REFUSED },
};

const char *attempt_status_word(enum attempt_status s)
{
	return status_words[s];
}

const char *attempt_outcome_word(enum attempt_outcome o)
{
	return outcome_words[o];
}

bool attempt_move_allowed(enum attempt_status from, enum attempt_status to)
{
	return allowed[from][to];
}

static int find_blame(const char *reason, enum blame *ret, struct err *err)
{
	for (size_t i = 0; i < ARRAY_LEN(reasons); i++)
		if (reason != NULL && strcmp(reasons[i].word, reason) == 0) {
			*ret = reasons[i].blame;
			return 0;
		}
	return err_set(err, ERR_INVALID_VALUE, "reason", "'%.40s' is not a reason for a failure.",
		reason == NULL ? "" : reason);
}

/* A platform failure costs the customer no retry, but one that comes back every time without any
 * progress between is most likely the job's: it ends after ATTEMPT_BARREN_MAX. A machine that went
 * away before it started says nothing about the job; one that said why it did not start does. */
static void judge_platform(const struct attempt *a, struct attempt_verdict *v)
{
	v->training_as = SEGMENT_LOST;
	v->barren = v->outcome != ATTEMPT_LOST || a->status != ATTEMPT_ASSIGNED;
	v->fate = v->barren && a->barren_failures + 1 >= ATTEMPT_BARREN_MAX ? FATE_FAIL : FATE_REQUEUE;
}

/* Left although nobody asked: the machine is going away. */
static void judge_preempted(struct attempt_verdict *v)
{
	v->outcome = ATTEMPT_PREEMPTED;
	v->fate = FATE_REQUEUE;
	v->training_as = SEGMENT_LOST;
}

int attempt_judge(const struct attempt *a, const struct attempt_end *end,
	struct attempt_verdict *ret, struct err *err)
{
	struct attempt_verdict v = { .outcome = end->outcome, .training_as = SEGMENT_BILLED };
	bool cancel = a->cancel_requested || a->desired == ATTEMPT_CANCEL;
	enum blame blame = BLAME_PLATFORM;
	switch (end->outcome) {
	case ATTEMPT_SUCCEEDED:
		if (a->status != ATTEMPT_TRAINING && a->status != ATTEMPT_STOPPING)
			return err_set(err, ERR_INVALID_VALUE, "outcome",
				"An attempt that is %s cannot have succeeded.", status_words[a->status]);
		v.fate = FATE_SUCCEED;
		break;
	case ATTEMPT_CANCELLED:
		v.fate = FATE_CANCEL;
		if (!cancel)
			judge_preempted(&v);
		break;
	case ATTEMPT_PAUSED:
		v.fate = FATE_PAUSE;
		if (a->desired == ATTEMPT_RUN || a->job_status != JOB_RUNNING)
			judge_preempted(&v);
		break;
	case ATTEMPT_PREEMPTED: judge_preempted(&v); break;
	case ATTEMPT_FAILED:
	case ATTEMPT_LOST: {
		int rc = find_blame(end->reason, &blame, err);
		if (rc < 0)
			return rc;
		v.fate = FATE_FAIL;
		if (blame == BLAME_PLATFORM)
			judge_platform(a, &v);
		else if (blame == BLAME_REFUSED)
			v.training_as = SEGMENT_UNBILLED;
		if (blame == BLAME_PLATFORM && cancel)
			v.fate = FATE_CANCEL;
		break;
	}
	}
	if (cancel && (v.fate == FATE_REQUEUE || v.fate == FATE_PAUSE))
		v.fate = FATE_CANCEL;
	*ret = v;
	return 0;
}

/* What the devices were doing decides what their open interval becomes. Of several machines only
 * the one that told the end is known to be through with it. */
static int release_devices(struct db_conn *conn, const struct attempt *a,
	const struct attempt_verdict *v, bool told, const char *reason, struct err *err)
{
	enum segment_state closed_as = SEGMENT_UNBILLED;
	const char *why = a->status == ATTEMPT_STOPPING ? "stopping" : "starting";
	bool alone = true;
	if (a->status == ATTEMPT_TRAINING) {
		closed_as = v->training_as;
		why = closed_as == SEGMENT_BILLED ? "training" : reason;
	}
	int rc = attempt_leave_begin(conn, a, told, closed_as, why, &alone, err);
	return rc < 0 || !alone ? rc : segment_release(conn, a->id, closed_as, why, err);
}

static struct db_param number_or_null(int64_t v)
{
	return v == ATTEMPT_NO_NUMBER ? DB_NULL : DB_I64(v);
}

static int write_end(struct db_conn *conn, const struct attempt *a, const struct attempt_end *end,
	const struct attempt_verdict *v, struct err *err)
{
	int rc = db_exec(conn, NULL, err,
		"update attempts set status = 'ended', outcome = $2, reason = $3, reason_message = $4,"
		" rank = $5, exit_code = $6, signal = $7, last_lines = coalesce($8::jsonb, '[]'),"
		" report_seq = case when $11 = 0 then $9 else report_seq end, last_step = $10,"
		" ended_at = yard_now() where id = $1",
		DB_TEXT(a->id), DB_TEXT(outcome_words[v->outcome]), DB_TEXT(end->reason),
		DB_TEXT(end->message), number_or_null(end->rank), number_or_null(end->exit_code),
		number_or_null(end->signal), DB_TEXT(end->last_lines_json), DB_I64(a->report_seq),
		DB_I64(a->last_step), DB_I64(a->part));
	if (rc == 0 && a->part > 0)
		rc = attempt_part_flush(conn, a->id, a->part, a->report_seq, err);
	if (rc == 0)
		rc = attempt_part_notify(conn, a->id, err);
	return rc < 0 ? rc : attempt_part_release(conn, a->id, err);
}

static void put_number(struct json_writer *w, const char *key, int64_t v)
{
	if (v == ATTEMPT_NO_NUMBER)
		json_field_null(w, key);
	else
		json_field_i64(w, key, v);
}

/* jobs.error, before the job's last event repeats it. */
static int write_job_error(struct db_conn *conn, const struct attempt *a,
	const struct attempt_end *end, const char *code, const char *message, struct err *err)
{
	cleanup(buf_finish) struct buf text;
	buf_init(&text, ERROR_JSON_MAX);
	struct json_writer w;
	json_writer_init(&w, &text);
	json_begin_object(&w);
	json_field_str(&w, "code", code);
	json_field_str(&w, "message", message);
	json_field_null(&w, "param");
	put_number(&w, "rank", end->rank);
	put_number(&w, "exit_code", end->exit_code);
	put_number(&w, "signal", end->signal);
	json_field_raw(&w, "last_lines", end->last_lines_json == NULL ? "[]" : end->last_lines_json);
	json_end_object(&w);
	if (text.failed < 0)
		return err_set(err, text.failed, NULL, "The job's error is too large.");
	return db_exec(conn, NULL, err, "update jobs set error = $2::jsonb where id = $1",
		DB_TEXT(a->job_id), DB_TEXT(buf_cstr(&text)));
}

/* The job waits again, where it stood in the queue. It may never have left it. */
static int requeue_job(struct db_conn *conn, const struct attempt *a, const char *code,
	const char *message, struct err *err)
{
	if (a->job_status != JOB_QUEUED)
		return job_move(conn, a->job_id, JOB_QUEUED, code, message, err);
	cleanup(buf_finish) struct buf text;
	buf_init(&text, ERROR_JSON_MAX);
	struct json_writer w;
	json_writer_init(&w, &text);
	json_begin_object(&w);
	json_field_str(&w, "status", "queued");
	json_key(&w, "reason");
	json_begin_object(&w);
	json_field_str(&w, "code", code);
	json_field_str(&w, "message", message);
	json_end_object(&w);
	json_end_object(&w);
	if (text.failed < 0)
		return err_set(err, text.failed, NULL, "The reason is too large.");
	int64_t seq;
	return job_event(conn, a->job_id, "job.requeued", buf_cstr(&text), &seq, err);
}

static int move_job(struct db_conn *conn, const struct attempt *a, const struct attempt_end *end,
	const struct attempt_verdict *v, struct err *err)
{
	const char *code = end->reason != NULL ? end->reason : outcome_words[v->outcome];
	const char *message = end->message != NULL ? end->message : "";
	int rc;
	if (v->barren) {
		rc = db_exec(conn, NULL, err,
			"update jobs set barren_failures = barren_failures + 1 where id = $1",
			DB_TEXT(a->job_id));
		if (rc < 0)
			return rc;
	}
	switch (v->fate) {
	case FATE_SUCCEED: return job_move(conn, a->job_id, JOB_SUCCEEDED, NULL, NULL, err);
	case FATE_CANCEL:
		return job_move(
			conn, a->job_id, JOB_CANCELLED, "user_request", "Cancelled on request.", err);
	case FATE_PAUSE: return job_move(conn, a->job_id, JOB_PAUSED, code, message, err);
	case FATE_REQUEUE: return requeue_job(conn, a, code, message, err);
	case FATE_FAIL:
		rc = write_job_error(conn, a, end, code, message, err);
		return rc < 0 ? rc : job_move(conn, a->job_id, JOB_FAILED, code, message, err);
	}
	return ERR_INTERNAL;
}

int attempt_end(
	struct db_conn *conn, struct attempt *a, const struct attempt_end *end, struct err *err)
{
	struct attempt_verdict v;
	int rc = attempt_judge(a, end, &v, err);
	if (rc < 0)
		return rc;
	const char *reason = end->reason != NULL ? end->reason : outcome_words[v.outcome];
	rc = release_devices(conn, a, &v, end->outcome != ATTEMPT_LOST, reason, err);
	if (rc == 0)
		rc = write_end(conn, a, end, &v, err);
	if (rc == 0)
		rc = move_job(conn, a, end, &v, err);
	if (rc == 0)
		a->status = ATTEMPT_ENDED;
	return rc;
}

int attempt_move(struct db_conn *conn, struct attempt *a, enum attempt_status to, struct err *err)
{
	assert(to != ATTEMPT_ENDED);
	if (!attempt_move_allowed(a->status, to))
		return err_set(err, ERR_CONFLICT, NULL, "Attempt %s is %s and cannot become %s.", a->id,
			status_words[a->status], status_words[to]);
	int rc = db_exec(conn, NULL, err,
		"update attempts set status = $2, training_at = case when $2 = 'training'"
		" then yard_now() else training_at end, progress_at = yard_now() where id = $1",
		DB_TEXT(a->id), DB_TEXT(status_words[to]));
	if (rc == 0)
		a->status = to;
	return rc;
}

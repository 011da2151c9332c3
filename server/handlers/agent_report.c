/* SPDX-License-Identifier: Apache-2.0
 * POST /agent/v1/report: beats of all attempts in one statement, then each attempt's messages in
 * one transaction, in order, each at most once. Runs on a worker thread. */
#include "server/handlers/handlers.h"

#include "core/base/log.h"
#include "core/model/agent_store.h"
#include "core/model/attempt_leave.h"
#include "core/model/attempt_message.h"
#include "core/model/attempt_store.h"
#include "core/model/device_store.h"
#include "core/model/rendezvous_store.h"
#include "server/http/hub.h"
#include "server/scheduler/scheduler.h"

#include <stdio.h>
#include <string.h>

enum {
	MESSAGES_MAX = 2000,
	FAULT_MAX = 500,
	STILL_MAX = 2 * ATTEMPT_STORE_BEATS_MAX * (IDENT_MAX + 1) + 3,
};

/* One attempt of the report. */
struct reported {
	struct attempt_beat beat; /* id, epoch, and whether it lives */
	bool has_messages;
	bool touched; /* something of its job has changed */
	bool ended;
	char job_id[IDENT_MAX];
};

/* A device that must not be used. */
struct fault {
	int64_t index;
	const char *uuid, *message;
	bool is_new;
};

struct report {
	struct app *app;
	const char *agent_id;
	const struct json_val *messages;
	struct fault faults[DEVICE_STORE_MAX];
	int fault_count;
	char doomed[DEVICE_STORE_MAX][IDENT_MAX]; /* jobs of attempts that end for them */
	int doomed_count;
	struct reported attempts[ATTEMPT_STORE_BEATS_MAX];
	int count;
	struct buf *still; /* text[] of the attempts that the machine has anything of */
	int freed;         /* attempts that it has nothing of any more */
};

/* An attempt that is being brought up to date. */
struct batch {
	struct report *report;
	struct reported *r;
	struct err bad; /* a message that cannot be applied */
};

/* ---------------------------------------------------------------- reading */

static struct reported *find(struct report *rep, const char *id, int64_t epoch)
{
	for (int i = 0; i < rep->count; i++)
		if (rep->attempts[i].beat.epoch == epoch &&
			strcmp(rep->attempts[i].beat.attempt_id, id) == 0)
			return &rep->attempts[i];
	if (rep->count == ATTEMPT_STORE_BEATS_MAX)
		return NULL;
	struct reported *r = &rep->attempts[rep->count++];
	*r = (struct reported){ .beat = { .epoch = epoch } };
	snprintf(r->beat.attempt_id, sizeof(r->beat.attempt_id), "%s", id);
	return r;
}

/* The fence of a beat or a message. */
static int read_fence(struct report *rep, const struct json_val *v, const char *path,
	struct reported **ret, struct err *err)
{
	const char *id = NULL;
	int64_t epoch = 0;
	struct json_obj o;
	json_obj_open(&o, v, path, err);
	json_obj_need(&o, "attempt_id");
	json_obj_need(&o, "epoch");
	json_obj_str(&o, "attempt_id", 1, IDENT_MAX - 1, &id);
	json_obj_i64(&o, "epoch", 1, INT64_MAX, &epoch);
	if (o.code < 0)
		return o.code;
	if (!ident_is(id, "att"))
		return err_set(err, ERR_INVALID_VALUE, path, "'%s' is not an attempt's id.", id);
	struct reported *r = find(rep, id, epoch);
	if (r == NULL)
		return err_set(
			err, ERR_TOO_LARGE, path, "A report has at most %d attempts.", ATTEMPT_STORE_BEATS_MAX);
	*ret = r;
	return 0;
}

static void note_still(struct report *rep, const struct json_val *list)
{
	for (size_t i = 0; i < json_array_len(list); i++) {
		const char *id = json_str_or(json_get(json_array_at(list, i), "attempt_id"), "");
		if (ident_is(id, "att")) /* nothing in it would need quoting */
			buf_printf(rep->still, "%s%s", rep->still->len > 1 ? "," : "", id);
	}
}

static int read_fault(
	struct report *rep, const struct json_val *v, const char *path, struct err *err)
{
	struct fault f = { .uuid = "" };
	struct json_obj o;
	json_obj_open(&o, v, path, err);
	json_obj_need(&o, "index");
	json_obj_need(&o, "message");
	json_obj_i64(&o, "index", 0, 1023, &f.index);
	json_obj_str(&o, "uuid", 0, DEVICE_STORE_NAME_MAX, &f.uuid);
	json_obj_str(&o, "message", 1, FAULT_MAX, &f.message);
	int rc = json_obj_close(&o);
	if (rc == 0)
		rep->faults[rep->fault_count++] = f;
	return rc;
}

static int read_body(struct request *req, struct report *rep, struct err *err)
{
	const struct json_val *beats = NULL, *leaving = NULL, *faults = NULL;
	struct reported *r = NULL;
	char path[JSON_PATH_MAX];
	struct json_obj o;
	json_obj_open(&o, req->json, "$", err);
	json_obj_need(&o, "agent_id");
	json_obj_str(&o, "agent_id", 1, IDENT_MAX - 1, &rep->agent_id);
	json_obj_array(&o, "beats", ATTEMPT_STORE_BEATS_MAX, &beats);
	json_obj_array(&o, "leaving", ATTEMPT_STORE_BEATS_MAX, &leaving);
	json_obj_array(&o, "faults", DEVICE_STORE_MAX, &faults);
	json_obj_array(&o, "messages", MESSAGES_MAX, &rep->messages);
	int rc = json_obj_close(&o);
	for (size_t i = 0; rc == 0 && i < json_array_len(beats); i++) {
		snprintf(path, sizeof(path), "$.beats[%zu]", i);
		rc = read_fence(rep, json_array_at(beats, i), path, &r, err);
	}
	for (size_t i = 0; rc == 0 && i < json_array_len(faults); i++) {
		snprintf(path, sizeof(path), "$.faults[%zu]", i);
		rc = read_fault(rep, json_array_at(faults, i), path, err);
	}
	note_still(rep, beats);
	note_still(rep, leaving);
	buf_char(rep->still, '}');
	for (size_t i = 0; rc == 0 && i < json_array_len(rep->messages); i++) {
		snprintf(path, sizeof(path), "$.messages[%zu]", i);
		rc = read_fence(rep, json_array_at(rep->messages, i), path, &r, err);
		if (rc == 0)
			r->has_messages = true;
	}
	return rc;
}

/* ---------------------------------------------------------------- applying */

static bool is_of(const struct json_val *message, const struct attempt_beat *b)
{
	return json_i64_or(json_get(message, "epoch"), 0) == b->epoch &&
		strcmp(json_str_or(json_get(message, "attempt_id"), ""), b->attempt_id) == 0;
}

/* Messages that were applied before are skipped; behind a gap nothing is: acked_seq tells the
 * agent where to begin again. */
static int apply_all(struct db_conn *conn, struct batch *b, struct attempt *a, struct err *err)
{
	const struct json_val *messages = b->report->messages;
	for (size_t i = 0; i < json_array_len(messages) && a->status != ATTEMPT_ENDED; i++) {
		const struct json_val *m = json_array_at(messages, i);
		if (!is_of(m, &b->r->beat))
			continue;
		int64_t seq = json_i64_or(json_get(m, "seq"), 0);
		if (seq <= a->report_seq)
			continue;
		if (seq != a->report_seq + 1)
			break;
		char path[JSON_PATH_MAX];
		snprintf(path, sizeof(path), "$.messages[%zu]", i);
		int rc = attempt_message_apply(conn, a, m, seq, path, err);
		if (rc < 0)
			return rc;
		b->r->touched = true;
	}
	return a->status == ATTEMPT_ENDED || !b->r->touched ? 0 : attempt_store_flush(conn, a, err);
}

static int batch_in_tx(struct db_conn *conn, void *ctx, struct err *err)
{
	struct batch *b = ctx;
	struct attempt a;
	struct attempt_fence fence = {
		.attempt_id = b->r->beat.attempt_id,
		.epoch = b->r->beat.epoch,
		.agent_id = b->report->agent_id,
	};
	b->r->touched = false;
	int rc = attempt_store_lock(conn, &fence, &a, err);
	if (rc == 0)
		rc = apply_all(conn, b, &a, err);
	if (rc < 0)
		return rc;
	b->r->beat.acked_seq = a.report_seq;
	b->r->ended = a.status == ATTEMPT_ENDED;
	snprintf(b->r->job_id, sizeof(b->r->job_id), "%s", a.job_id);
	return 0;
}

/* A message that cannot be applied would come again for ever: the attempt ends instead, and its
 * job goes on from the last checkpoint. */
static int give_up_in_tx(struct db_conn *conn, void *ctx, struct err *err)
{
	struct batch *b = ctx;
	struct attempt a;
	struct attempt_fence fence = {
		.attempt_id = b->r->beat.attempt_id,
		.epoch = b->r->beat.epoch,
		.agent_id = b->report->agent_id,
	};
	struct attempt_end end = {
		.outcome = ATTEMPT_FAILED,
		.reason = "platform_error",
		.message = b->bad.message,
		.rank = ATTEMPT_NO_NUMBER,
		.exit_code = ATTEMPT_NO_NUMBER,
		.signal = ATTEMPT_NO_NUMBER,
	};
	int rc = attempt_store_lock(conn, &fence, &a, err);
	if (rc == 0)
		rc = attempt_end(conn, &a, &end, err);
	if (rc < 0)
		return rc;
	snprintf(b->r->job_id, sizeof(b->r->job_id), "%s", a.job_id);
	return 0;
}

/* The message's fault, not ours nor the moment's: also one whose values the database has no room
 * for (SQLSTATE class 22). */
static bool is_bad_message(const struct err *e)
{
	int status = err_info(e->code)->http_status;
	bool refused = status >= 400 && status < 500;
	return (refused && e->code != ERR_LEASE_LOST && e->code != ERR_DB_UNIQUE) ||
		strncmp(e->sqlstate, "22", 2) == 0;
}

static int apply_reported(struct report *rep, struct reported *r, struct err *err)
{
	struct batch b = { .report = rep, .r = r };
	int rc = db_tx(rep->app->pool, APP_DB_WAIT_MS, batch_in_tx, &b, err);
	if (rc < 0 && is_bad_message(err)) {
		log_warn("attempt.bad_message", LOG_STR("attempt_id", r->beat.attempt_id),
			LOG_STR("agent_id", rep->agent_id), LOG_ERR(err));
		b.bad = *err;
		if (b.bad.sqlstate[0]) /* the customer reads it: nothing of our tables */
			(void)err_set(
				&b.bad, err->code, NULL, "The machine sent values that cannot be stored.");
		rc = db_tx(rep->app->pool, APP_DB_WAIT_MS, give_up_in_tx, &b, err);
		r->beat.alive = false;
		r->touched = r->ended = rc == 0;
	}
	if (rc == ERR_LEASE_LOST) {
		r->beat.alive = false;
		return 0;
	}
	return rc;
}

static int beat_all(struct report *rep, struct request *req, struct err *err)
{
	struct attempt_beat beats[ATTEMPT_STORE_BEATS_MAX];
	int64_t version;
	struct db_conn *conn = NULL;
	for (int i = 0; i < rep->count; i++)
		beats[i] = rep->attempts[i].beat;
	int rc = db_pool_get(rep->app->pool, APP_DB_WAIT_MS, &conn, err);
	if (rc < 0)
		return rc;
	rc = agent_store_seen(conn, req->principal.id, rep->agent_id, &version, err);
	if (rc == 0 && rep->count > 0)
		rc = attempt_store_beat(conn, rep->agent_id, beats, rep->count, err);
	db_pool_put(rep->app->pool, conn);
	for (int i = 0; rc == 0 && i < rep->count; i++)
		rep->attempts[i].beat = beats[i];
	return rc;
}

static int leave_in_tx(struct db_conn *conn, void *ctx, struct err *err)
{
	struct report *rep = ctx;
	return attempt_leave_told(conn, rep->agent_id, buf_cstr(rep->still), &rep->freed, err);
}

/* ---------------------------------------------------------------- faults */

static int cordon_in_tx(struct db_conn *conn, void *ctx, struct err *err)
{
	struct report *rep = ctx;
	int rc = 0;
	for (int i = 0; rc == 0 && i < rep->fault_count; i++) {
		struct fault *f = &rep->faults[i];
		rc = device_store_cordon(
			conn, rep->agent_id, f->index, f->uuid, f->message, &f->is_new, err);
	}
	return rc;
}

/* Before what it says of attempts: a device that its end frees must not be given away again. */
static int cordon_all(struct report *rep, struct err *err)
{
	if (rep->fault_count == 0)
		return 0;
	int rc = db_tx(rep->app->pool, APP_DB_WAIT_MS, cordon_in_tx, rep, err);
	for (int i = 0; rc == 0 && i < rep->fault_count; i++)
		if (rep->faults[i].is_new)
			log_warn("device.cordoned", LOG_STR("agent_id", rep->agent_id),
				LOG_INT("index", rep->faults[i].index), LOG_STR("uuid", rep->faults[i].uuid),
				LOG_STR("reason", rep->faults[i].message));
	return rc;
}

static int end_doomed(
	struct db_conn *conn, struct report *rep, const struct db_result *r, int row, struct err *err)
{
	char text[ERR_MESSAGE_MAX];
	struct attempt a;
	const struct attempt_fence fence = {
		.attempt_id = db_str(r, row, 0),
		.epoch = db_i64(r, row, 1),
		.agent_id = rep->agent_id,
	};
	snprintf(text, sizeof(text), "the device failed: %s", db_str(r, row, 3));
	const struct attempt_end end = {
		.outcome = ATTEMPT_FAILED,
		.reason = "platform_error",
		.message = text,
		.rank = db_i64(r, row, 2),
		.exit_code = ATTEMPT_NO_NUMBER,
		.signal = ATTEMPT_NO_NUMBER,
	};
	int rc = attempt_store_lock(conn, &fence, &a, err);
	if (rc == ERR_LEASE_LOST)
		return 0; /* over meanwhile */
	rc = rc == 0 ? attempt_end(conn, &a, &end, err) : rc;
	if (rc == 0 && rep->doomed_count < DEVICE_STORE_MAX)
		snprintf(rep->doomed[rep->doomed_count++], IDENT_MAX, "%s", a.job_id);
	return rc;
}

/* What was placed on a device before it was cordoned, and its machine has not heard of: it ends the
 * attempts that it knows itself. */
static int end_doomed_in_tx(struct db_conn *conn, void *ctx, struct err *err)
{
	struct report *rep = ctx;
	cleanup(db_result_freep) struct db_result *r = NULL;
	rep->doomed_count = 0;
	int rc = device_store_doomed(conn, rep->agent_id, buf_cstr(rep->still), &r, err);
	for (int i = 0; rc == 0 && i < db_rows(r); i++)
		rc = end_doomed(conn, rep, r, i, err);
	return rc;
}

/* ---------------------------------------------------------------- afterwards */

static void touch(struct app *app, const char *kind, const char *id)
{
	char topic[IDENT_MAX + 8];
	snprintf(topic, sizeof(topic), "%s:%s", kind, id);
	hub_touch(app->hub, topic);
}

static void touch_agent(void *ctx, const char *agent_id)
{
	touch(ctx, "agent", agent_id);
}

/* Trainers of an attempt that is over leave sooner when their agents know at once. */
static int wake_machines(struct db_conn *conn, void *ctx, struct err *err)
{
	const struct report *rep = ctx;
	int rc = 0;
	for (int i = 0; rc == 0 && i < rep->count; i++) {
		const struct attempt_fence fence = { .attempt_id = rep->attempts[i].beat.attempt_id,
			.agent_id = rep->agent_id };
		if (rep->attempts[i].ended)
			rc = rendezvous_store_others(conn, &fence, touch_agent, rep->app, err);
	}
	return rc;
}

static void wake_others(struct report *rep)
{
	struct err ignored = { 0 };
	bool ended = false;
	for (int i = 0; i < rep->count; i++) {
		if (rep->attempts[i].touched)
			touch(rep->app, "job", rep->attempts[i].job_id);
		ended = ended || rep->attempts[i].ended;
	}
	for (int i = 0; i < rep->doomed_count; i++)
		touch(rep->app, "job", rep->doomed[i]);
	if (!ended && rep->freed == 0 && rep->doomed_count == 0)
		return;
	touch(rep->app, "agent", rep->agent_id);
	/* Who is not woken polls again in a while. */
	if (ended && db_tx(rep->app->pool, APP_DB_WAIT_MS, wake_machines, rep, &ignored) < 0)
		log_warn("attempt.machines_not_woken", LOG_ERR(&ignored));
	scheduler_wake(rep->app->scheduler);
}

static void write_answer(const struct report *rep, struct json_writer *w)
{
	json_begin_object(w);
	json_key(w, "results");
	json_begin_array(w);
	for (int i = 0; i < rep->count; i++) {
		const struct attempt_beat *b = &rep->attempts[i].beat;
		json_begin_object(w);
		json_field_str(w, "attempt_id", b->attempt_id);
		json_field_i64(w, "epoch", b->epoch);
		json_field_str(w, "status", b->alive ? "ok" : "lost");
		if (b->alive)
			json_field_i64(w, "acked_seq", b->acked_seq);
		json_end_object(w);
	}
	json_end_array(w);
	json_end_object(w);
}

int agent_report(struct request *req, struct response *res, struct err *err)
{
	struct report *rep = arena_alloc(&req->arena, sizeof(*rep));
	if (rep == NULL)
		return err_set(err, ERR_NO_MEMORY, NULL, "No memory for the report.");
	rep->app = req->app;
	cleanup(buf_finish) struct buf still;
	buf_init(&still, STILL_MAX);
	buf_char(&still, '{');
	rep->still = &still;
	int rc = read_body(req, rep, err);
	if (rc == 0)
		rc = beat_all(rep, req, err);
	if (rc == 0)
		rc = cordon_all(rep, err);
	for (int i = 0; rc == 0 && i < rep->count; i++)
		if (rep->attempts[i].has_messages && rep->attempts[i].beat.alive)
			rc = apply_reported(rep, &rep->attempts[i], err);
	if (rc == 0 && rep->fault_count > 0)
		rc = db_tx(rep->app->pool, APP_DB_WAIT_MS, end_doomed_in_tx, rep, err);
	if (rc == 0)
		rc = db_tx(rep->app->pool, APP_DB_WAIT_MS, leave_in_tx, rep, err);
	wake_others(rep);
	if (rc < 0)
		return rc;
	write_answer(rep, &res->json);
	return 0;
}

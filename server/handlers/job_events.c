/* SPDX-License-Identifier: Apache-2.0
 * GET /v1/jobs/{id}/events: a job's events in order, as a list or as server-sent events.
 * Runs on a worker thread. */
#include "server/handlers/handlers.h"

#include "core/base/num.h"
#include "core/model/job_event_store.h"
#include "core/model/job_store.h"
#include "server/http/sse.h"
#include "server/limits/args.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

struct event_stream {
	struct stream_source base; /* first: the daemon knows only this part */
	char job_id[IDENT_MAX];
	int64_t sent; /* sequence number of the last event that was written */
	struct buf *out;
	bool full; /* the buffer's share of this call is used up: the rest comes with the next one */
	bool ended;
};

enum { BATCH_BYTES_MAX = SSE_BUFFER_MAX / 2 };

static void stream_event(void *ctx, const struct job_event_row *event)
{
	struct event_stream *s = ctx;
	s->full = s->full || s->out->len > BATCH_BYTES_MAX;
	if (s->full)
		return;
	if (event->seq > s->sent + 1)
		buf_printf(s->out,
			"id: %" PRId64 "\nevent: gap\ndata: {\"from\":%" PRId64 ",\"to\":%" PRId64 "}\n\n",
			event->seq - 1, s->sent + 1, event->seq - 1);
	buf_printf(s->out, "id: %" PRId64 "\nevent: %s\ndata: ", event->seq, event->type);
	struct json_writer w;
	json_writer_init(&w, s->out);
	job_event_write(&w, s->job_id, event);
	buf_str(s->out, "\n\n");
	s->sent = event->seq;
	s->ended = job_event_is_terminal(event->type);
}

static int stream_more(
	struct stream_source *base, struct app *app, struct buf *out, bool *ret_done, struct err *err)
{
	struct event_stream *s = (struct event_stream *)base;
	struct db_conn *conn = NULL;
	int rc = db_pool_get(app->pool, APP_DB_WAIT_MS, &conn, err);
	if (rc < 0)
		return rc;
	int count = SSE_BATCH_MAX;
	bool over = false;
	s->out = out;
	s->full = false;
	while (rc == 0 && count == SSE_BATCH_MAX && !s->full)
		rc = job_event_store_read(
			conn, s->job_id, s->sent, SSE_BATCH_MAX, stream_event, s, &count, err);
	if (rc == 0 && count == 0)
		rc = job_event_store_is_over(conn, s->job_id, s->sent, &over, err);
	s->out = NULL;
	db_pool_put(app->pool, conn);
	if (rc == 0 && out->failed)
		rc = err_set(err, out->failed, NULL, "The events do not fit the stream's buffer");
	if (rc == 0)
		*ret_done = (s->ended || over) && !s->full;
	return rc;
}

static void stream_destroy(struct stream_source *base)
{
	free(base);
}

static int start_stream(struct response *res, const char *job_id, int64_t after, struct err *err)
{
	struct event_stream *s = calloc(1, sizeof(*s));
	if (!s)
		return err_set(err, ERR_NO_MEMORY, NULL, "No memory for the stream");
	s->base.more = stream_more;
	s->base.destroy = stream_destroy;
	snprintf(s->base.topic, sizeof(s->base.topic), "job:%s", job_id);
	snprintf(s->job_id, sizeof(s->job_id), "%s", job_id);
	s->sent = after;
	response_stream(res, &s->base);
	return 0;
}

struct event_list {
	struct json_writer *w;
	const char *job_id;
	int limit;
	int count;
	int64_t first, last;
};

static void list_event(void *ctx, const struct job_event_row *event)
{
	struct event_list *l = ctx;
	if (l->count == l->limit)
		return;
	if (l->count++ == 0)
		l->first = event->seq;
	l->last = event->seq;
	job_event_write(l->w, l->job_id, event);
}

static void put_seq(struct json_writer *w, const char *key, const struct event_list *l, int64_t seq)
{
	char text[NUM_F64_MAX];
	snprintf(text, sizeof(text), "%" PRId64, seq);
	json_field_str(w, key, l->count > 0 ? text : NULL);
}

static int write_list(struct db_conn *conn, struct event_list *l, int64_t after, struct err *err)
{
	json_begin_object(l->w);
	json_field_str(l->w, "object", "list");
	json_key(l->w, "data");
	json_begin_array(l->w);
	int count = 0;
	int rc = job_event_store_read(conn, l->job_id, after, l->limit + 1, list_event, l, &count, err);
	json_end_array(l->w);
	put_seq(l->w, "first_id", l, l->first);
	put_seq(l->w, "last_id", l, l->last);
	json_field_bool(l->w, "has_more", count > l->limit);
	json_end_object(l->w);
	return rc;
}

/* Where to go on: Last-Event-ID of a stream that broke, or the query's `after`. */
static int read_after(const struct request *req, bool stream, int64_t *ret, struct err *err)
{
	const char *last = stream ? request_header(req, "Last-Event-ID") : NULL;
	if (!last || !last[0])
		return request_query_i64(req, "after", 0, INT64_MAX - 1, 0, ret, err);
	if (num_parse_i64(last, 0, INT64_MAX - 1, ret) < 0)
		return err_set(err, ERR_INVALID_VALUE, "Last-Event-ID",
			"Last-Event-ID must be the sequence number of an event");
	return 0;
}

int job_events(struct request *req, struct response *res, struct err *err)
{
	static const char *const known[] = { "after", "limit", NULL };
	const char *id = NULL;
	int64_t after = 0, limit = PAGE_LIMIT_DEFAULT;
	bool stream = request_wants_stream(req);
	int rc = args_id(req, "id", "job", "job", &id, err);
	if (rc == 0)
		rc = args_only(req, known, err);
	if (rc == 0)
		rc = read_after(req, stream, &after, err);
	if (rc == 0)
		rc = request_query_i64(req, "limit", 1, PAGE_LIMIT_MAX, PAGE_LIMIT_DEFAULT, &limit, err);
	if (rc < 0)
		return rc;
	struct db_conn *conn = NULL;
	rc = db_pool_get(req->app->pool, APP_DB_WAIT_MS, &conn, err);
	if (rc < 0)
		return rc;
	bool finished = false;
	rc = job_store_exists(conn, req->principal.tenant_id, id, &finished, err);
	if (rc == 0 && !stream) {
		struct event_list list = { .w = &res->json, .job_id = id, .limit = (int)limit };
		rc = write_list(conn, &list, after, err);
	}
	db_pool_put(req->app->pool, conn);
	if (rc < 0)
		return rc;
	return stream ? start_stream(res, id, after, err) : 0;
}

/* SPDX-License-Identifier: Apache-2.0
 * Server-sent events. A stream is shared by its reply (an event loop reads) and by one wake-up (the
 * hub or a worker that fetches): each holds one of at most two references. While there is nothing
 * to send, the connection is suspended and costs no thread. */
#include "core/base/log.h"
#include "server/http/server_private.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	US_PER_MS = 1000,
	MS_PER_S = 1000,
	BLOCK_BYTES = 16 * 1024,
	RETRY_MS = 1000, /* after the database failed, or while the client reads slowly */
	STATUS_UNAVAILABLE = 503,
};

struct stream {
	struct work work;
	struct hub_waiter waiter;
	struct http_server *server;
	struct stream_source *source;
	char request_id[REQUEST_ID_MAX];
	int64_t sent_us; /* when something was last put into out */

	pthread_mutex_t lock; /* for what follows */
	struct buf out;       /* not sent yet */
	bool done;            /* nothing comes after out */
	bool dead;            /* the reply is gone */
	bool suspended;
	struct MHD_Connection *mhd;
	int refs;
};

static void unref(struct stream *s)
{
	pthread_mutex_lock(&s->lock);
	bool last = --s->refs == 0;
	pthread_mutex_unlock(&s->lock);
	if (!last)
		return;
	http_stats_gauge_add(s->server->app->stats, GAUGE_STREAMS, -1);
	s->source->destroy(s->source);
	buf_finish(&s->out);
	pthread_mutex_destroy(&s->lock);
	free(s);
}

static void resume_locked(struct stream *s)
{
	if (!s->suspended)
		return;
	s->suspended = false;
	MHD_resume_connection(s->mhd);
}

/* Puts fetched text behind what is unsent. */
static void give(struct stream *s, const struct buf *text, bool done)
{
	pthread_mutex_lock(&s->lock);
	if (text->len > 0)
		(void)buf_append(&s->out, text->data, text->len);
	s->done = s->done || done || s->out.failed || text->failed;
	if (s->out.len > 0 || s->done)
		resume_locked(s);
	pthread_mutex_unlock(&s->lock);
}

static bool has_room(struct stream *s, bool *ret_over)
{
	pthread_mutex_lock(&s->lock);
	bool room = s->out.len < SSE_BUFFER_MAX / 2;
	*ret_over = s->dead || s->done;
	pthread_mutex_unlock(&s->lock);
	return room;
}

/* Fetches once. Returns milliseconds until the next look at the latest, 0 when there is none. */
static int fetch(struct stream *s)
{
	struct app *app = s->server->app;
	int64_t heartbeat_ms = app->settings->stream_heartbeat_s * MS_PER_S;
	struct err err = { 0 };
	bool done = false;
	bool over;
	if (!has_room(s, &over) && !over)
		return RETRY_MS;
	if (over)
		return 0;
	cleanup(buf_finish) struct buf text;
	buf_init(&text, SSE_BUFFER_MAX);
	int r = 0;
	if (!atomic_load(&s->server->stopping))
		r = s->source->more(s->source, app, &text, &done, &err);
	if (r < 0 && err_info(r)->http_status != STATUS_UNAVAILABLE) {
		log_error("http.stream", LOG_ERR(&err), LOG_STR("topic", s->source->topic));
		done = true;
	}
	done = done || atomic_load(&s->server->stopping);
	int64_t now_us = clock_mono_us(app->clock);
	if (text.len == 0 && !done && now_us - s->sent_us >= heartbeat_ms * US_PER_MS)
		(void)buf_str(&text, ": heartbeat\n\n");
	if (text.len > 0)
		s->sent_us = now_us;
	give(s, &text, done);
	if (done)
		return 0;
	if (r < 0)
		return RETRY_MS;
	/* A full batch: there is more, and the source goes on where it stopped. */
	return text.len > SSE_BUFFER_MAX / 4 ? HUB_POLL_MS : (int)heartbeat_ms;
}

static void run(struct work *w)
{
	struct stream *s = (struct stream *)w;
	struct hub *hub = s->server->app->hub;
	log_set_request_id(s->request_id);
	s->waiter.since = hub_mark(hub);
	int next_ms = fetch(s);
	log_set_request_id(NULL);
	if (next_ms == 0) {
		unref(s);
		return;
	}
	s->waiter.deadline_us = clock_mono_us(s->server->app->clock) + (int64_t)next_ms * US_PER_MS;
	if (hub_wait(hub, &s->waiter) == 0)
		return; /* the reference is the hub's */
	struct buf nothing;
	buf_init(&nothing, 1);
	give(s, &nothing, true);
	unref(s);
}

static void wake(struct hub_waiter *w)
{
	struct stream *s = (struct stream *)((char *)w - offsetof(struct stream, waiter));
	workqueue_push_again(s->server->queue, &s->work);
}

int stream_create(struct exchange *x, struct stream **ret, struct err *err)
{
	struct http_server *server = x->port->server;
	struct http_stats *stats = server->app->stats;
	if (http_stats_gauge_add(stats, GAUGE_STREAMS, 1) > server->app->settings->streams_max) {
		http_stats_gauge_add(stats, GAUGE_STREAMS, -1);
		return err_set(err, ERR_OVERLOADED, NULL, "Too many event streams are open");
	}
	struct stream *s = calloc(1, sizeof(*s));
	if (!s) {
		http_stats_gauge_add(stats, GAUGE_STREAMS, -1);
		return err_set(err, ERR_NO_MEMORY, NULL, "Out of memory");
	}
	s->server = server;
	s->source = x->res.stream;
	x->res.stream = NULL;
	s->work.run = run;
	s->waiter.wake = wake;
	s->refs = 2;
	s->sent_us = clock_mono_us(server->app->clock);
	(void)snprintf(s->waiter.topic, sizeof(s->waiter.topic), "%s", s->source->topic);
	(void)snprintf(s->request_id, sizeof(s->request_id), "%s", x->req.id);
	pthread_mutex_init(&s->lock, NULL);
	buf_init(&s->out, 2 * SSE_BUFFER_MAX); /* what is unsent, and one batch */
	*ret = s;
	run(&s->work); /* the first events go with the headers */
	return 0;
}

/* Event loop: the library wants bytes. */
static ssize_t read_block(void *ctx, uint64_t pos, char *out, size_t max)
{
	struct stream *s = ctx;
	ssize_t n = 0;
	pthread_mutex_lock(&s->lock);
	if (s->out.len > 0) {
		n = (ssize_t)(s->out.len < max ? s->out.len : max);
		memcpy(out, s->out.data, (size_t)n);
		buf_consume(&s->out, (size_t)n);
	} else if (s->done) {
		n = MHD_CONTENT_READER_END_OF_STREAM;
	} else {
		s->suspended = true;
		MHD_suspend_connection(s->mhd);
	}
	pthread_mutex_unlock(&s->lock);
	return n;
}

void stream_abandon(struct stream *s)
{
	if (!s)
		return;
	pthread_mutex_lock(&s->lock);
	s->dead = true;
	s->suspended = false;
	pthread_mutex_unlock(&s->lock);
	if (hub_cancel(s->server->app->hub, &s->waiter))
		unref(s); /* the wake-up that will not come */
	unref(s);
}

static void reply_gone(void *ctx)
{
	stream_abandon(ctx);
}

struct MHD_Response *stream_response(struct stream *s, struct MHD_Connection *mhd)
{
	s->mhd = mhd;
	struct MHD_Response *r =
		MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK_BYTES, read_block, s, reply_gone);
	if (!r)
		stream_abandon(s);
	return r;
}

/* SPDX-License-Identifier: Apache-2.0
 * Runs a handler on a worker thread, and again while it asks to wait. The connection is suspended
 * all the while; resuming it hands the exchange back to its event loop. */
#include "core/base/log.h"
#include "server/http/server_private.h"

#include <stdio.h>
#include <string.h>

enum { US_PER_MS = 1000, STATUS_SERVER_ERROR = 500 };

static void wake(struct hub_waiter *w)
{
	struct exchange *x = (struct exchange *)((char *)w - offsetof(struct exchange, waiter));
	workqueue_push_again(x->port->server->queue, &x->work);
}

/* Our own faults are logged with what the client is not told. */
static void log_failure(const struct exchange *x)
{
	if (err_info(x->failed)->http_status >= STATUS_SERVER_ERROR)
		log_error("http.failure", LOG_STR("route", x->req.route->operation_id), LOG_ERR(&x->err),
			LOG_STR("sqlstate", x->err.sqlstate));
}

static int parse_json(struct exchange *x)
{
	x->req.body = buf_cstr(&x->body);
	x->req.body_bytes = x->body.len;
	if (x->body.len == 0)
		return 0;
	int r = json_doc_parse(
		x->body.data, x->body.len, (size_t)x->req.route->body_max_bytes, &x->json, &x->err);
	if (r == 0)
		x->req.json = json_doc_root(x->json);
	return r;
}

static int run_handler(struct exchange *x)
{
	int r = 0;
	if (!x->handled && x->req.route->body == BODY_JSON)
		r = parse_json(x);
	x->handled = true;
	if (r < 0)
		return r;
	response_finish(&x->res);
	response_init(&x->res);
	arena_finish(&x->req.arena);
	r = x->req.route->handler(&x->req, &x->res, &x->err);
	if (r < 0 && x->err.code != r)
		return err_set(&x->err, r, NULL, "%s", err_info(r)->title);
	if (r == 0 && x->res.body.failed)
		return err_set(&x->err, ERR_INTERNAL, NULL, "the reply is larger than its limit");
	return r;
}

/* Registers the wait; the exchange may belong to another worker when this returns 0. */
static int wait_more(struct exchange *x, int64_t mark)
{
	struct http_server *server = x->port->server;
	struct http_stats *stats = server->app->stats;
	if (!x->waiting) {
		if (http_stats_gauge_add(stats, GAUGE_WAITS, 1) > server->app->settings->waits_max) {
			http_stats_gauge_add(stats, GAUGE_WAITS, -1);
			return err_set(&x->err, ERR_OVERLOADED, NULL, "Too many polls wait; try again");
		}
		x->waiting = true;
		x->slow = true;
		x->wait_until_us = clock_mono_us(server->app->clock) + (int64_t)x->res.wait_ms * US_PER_MS;
	}
	x->waiter.wake = wake;
	x->waiter.since = mark;
	x->waiter.deadline_us = x->wait_until_us;
	(void)snprintf(x->waiter.topic, sizeof(x->waiter.topic), "%s", x->res.wait_topic);
	int r = hub_wait(server->app->hub, &x->waiter);
	return r < 0 ? err_set(&x->err, ERR_INTERNAL, NULL, "waiting for a topic failed") : 0;
}

static void finish(struct exchange *x)
{
	if (x->waiting)
		http_stats_gauge_add(x->port->server->app->stats, GAUGE_WAITS, -1);
	x->waiting = false;
	if (x->failed < 0)
		log_failure(x);
	log_set_request_id(NULL);
	x->state = EXCHANGE_READY;
	MHD_resume_connection(x->mhd); /* the last use of x here */
}

void run_gate(struct work *w)
{
	struct exchange *x = (struct exchange *)w;
	log_set_request_id(x->req.id);
	x->failed = gate_ask(x);
	if (x->failed < 0)
		log_failure(x);
	log_set_request_id(NULL);
	x->work.run = run_exchange;
	x->state = EXCHANGE_ASKED;
	MHD_resume_connection(x->mhd); /* the last use of x here */
}

void run_inline(struct exchange *x)
{
	x->failed = run_handler(x);
	if (x->failed < 0)
		log_failure(x);
}

void run_exchange(struct work *w)
{
	struct exchange *x = (struct exchange *)w;
	struct http_server *server = x->port->server;
	log_set_request_id(x->req.id);
	int64_t mark = 0;
	if (x->req.route->flags & ROUTE_WAIT)
		mark = hub_mark(server->app->hub);
	x->req.wait_over = atomic_load(&server->stopping) ||
		(x->waiting && clock_mono_us(server->app->clock) >= x->wait_until_us);
	x->failed = run_handler(x);
	if (x->failed == 0 && x->res.kind == RESPONSE_WAIT) {
		if (!x->req.wait_over) {
			/* Once it waits it may be another worker's, or gone: nothing is noted in it then. */
			int r = wait_more(x, mark);
			if (r == 0) {
				log_set_request_id(NULL);
				return;
			}
			x->failed = r;
		}
		x->res.kind = RESPONSE_BYTES;
	}
	if (x->failed == 0 && x->res.kind == RESPONSE_STREAM)
		x->failed = stream_create(x, &x->stream, &x->err);
	finish(x);
}

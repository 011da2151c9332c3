/* SPDX-License-Identifier: Apache-2.0
 * One request from its first byte to the end of its reply, as the library's callbacks see it. Runs
 * on event loops; a worker owns the exchange only while its connection is suspended. */
#include "core/base/log.h"
#include "server/http/server_private.h"
#include "server/http/upload.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *exchange_create(void *port, const char *target, struct MHD_Connection *mhd)
{
	struct http_port_state *p = port;
	const union MHD_ConnectionInfo *info =
		MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
	struct exchange *x = info && info->socket_context ? calloc(1, sizeof(*x)) : NULL;
	if (!x)
		return NULL;
	struct app *app = p->server->app;
	x->port = p;
	x->mhd = mhd;
	x->peer = info->socket_context;
	x->target_at = target;
	x->target_len = strlen(target);
	arena_init(&x->own, EXCHANGE_ARENA_MAX);
	arena_init(&x->req.arena, REQUEST_ARENA_MAX);
	response_init(&x->res);
	x->req.app = app;
	x->req.daemon_private = &x->data;
	ident_new(app->clock, "req", x->req.id);
	x->started_us = clock_mono_us(app->clock);
	x->target = arena_strndup(&x->own, target, x->target_len);
	if (!x->target) {
		arena_finish(&x->own);
		free(x);
		return NULL;
	}
	return x;
}

static struct http_stats *stats_of(const struct exchange *x)
{
	return x->port->server->app->stats;
}

static void enter(struct exchange *x, enum peer_phase phase)
{
	peers_enter(x->port->server->peers, x->peer, phase);
}

static bool expects_body(const struct exchange *x)
{
	return x->framing.chunked || x->framing.content_length > 0;
}

/* Whether what is still to come can be read away to keep the connection. */
static bool can_drain(const struct exchange *x)
{
	return !x->framing.chunked &&
		x->framing.content_length - x->received_bytes <= EXCHANGE_DRAIN_MAX;
}

static enum MHD_Result reply(struct exchange *x)
{
	enter(x, PEER_REPLY);
	x->state = EXCHANGE_REPLIED;
	return reply_queue(x);
}

/* The body is not wanted any more. */
static void refuse_rest(struct exchange *x)
{
	if (can_drain(x))
		return;
	enter(x, PEER_LINGER);
	x->state = EXCHANGE_LINGER;
	x->received_bytes = 0;
	reply_raw(x);
}

static int prepare_body(struct exchange *x)
{
	const struct route *route = x->req.route;
	const char *type = NULL;
	switch (route->body) {
	case BODY_NONE: return 0;
	case BODY_JSON: buf_init(&x->body, (size_t)gate_body_max(x)); return 0;
	case BODY_MULTIPART: type = request_header(&x->req, "Content-Type"); break;
	case BODY_BLOB: break;
	}
	int64_t file_max = x->req.app->settings->upload_max_bytes;
	if (file_max > route->body_max_bytes)
		file_max = route->body_max_bytes;
	return upload_receiver_create(x->req.app->blobs, type, file_max, &x->upload, &x->err);
}

/* Hands the exchange to a worker; false when the queue is full or the server ends. */
static bool hand_over(struct exchange *x, enum exchange_state state)
{
	struct http_server *server = x->port->server;
	if (atomic_load(&server->ended)) {
		x->failed = err_set(&x->err, ERR_UNAVAILABLE, NULL, "The server is stopping; try again");
		return false;
	}
	enter(x, PEER_WORK);
	x->state = state;
	MHD_suspend_connection(x->mhd);
	if (workqueue_push(server->queue, x->port->lane, &x->work) == 0)
		return true; /* x may be anybody's now */
	x->failed = err_set(&x->err, ERR_OVERLOADED, NULL, "The service is busy; try again");
	x->err.retry_after_s = OVERLOADED_RETRY_S;
	x->state = state == EXCHANGE_ASKING ? EXCHANGE_ASKED : EXCHANGE_READY;
	MHD_resume_connection(x->mhd);
	return true;
}

/* Everything but the body is known: take it, or refuse it. */
static enum MHD_Result begin_body(struct exchange *x)
{
	if (x->failed == 0)
		x->failed = prepare_body(x);
	x->state = EXCHANGE_BODY;
	if (x->failed < 0 && (x->close || x->framing.expects_continue))
		return reply(x);
	bool large = x->upload && (x->framing.chunked || !can_drain(x));
	enter(x, large ? PEER_BODY_LARGE : PEER_BODY_SMALL);
	if (x->failed < 0 && expects_body(x))
		refuse_rest(x);
	return MHD_YES;
}

static enum MHD_Result first(struct exchange *x, const char *method, const char *version)
{
	bool ask;
	(void)snprintf(x->method, sizeof(x->method), "%s", method);
	x->counted = true;
	atomic_fetch_add(&x->port->server->active, 1);
	http_stats_gauge_add(stats_of(x), GAUGE_IN_FLIGHT, 1);
	x->started_us = clock_mono_us(x->req.app->clock);
	x->failed = gate_check(x, method, version, &ask);
	if (x->failed == 0 && ask) {
		x->work.run = run_gate;
		if (hand_over(x, EXCHANGE_ASKING))
			return MHD_YES;
	}
	return begin_body(x);
}

static int take_body(struct exchange *x, const char *data, size_t bytes)
{
	if (x->upload)
		return upload_receiver_feed(x->upload, data, bytes, &x->err);
	if (x->req.route->body == BODY_NONE)
		return err_set(&x->err, ERR_INVALID_REQUEST, NULL, "This operation takes no request body");
	int r = buf_append(&x->body, data, bytes);
	if (r == ERR_TOO_LARGE)
		return err_set(&x->err, r, NULL, "The body has more than %" PRId64 " bytes",
			x->req.route->body_max_bytes);
	return r < 0 ? err_set(&x->err, r, NULL, "Out of memory") : 0;
}

static enum MHD_Result body_data(struct exchange *x, const char *data, size_t *data_bytes)
{
	size_t bytes = *data_bytes;
	*data_bytes = 0;
	x->received_bytes += (int64_t)bytes;
	peers_received(x->peer, bytes);
	if (x->state == EXCHANGE_LINGER)
		return x->received_bytes > EXCHANGE_LINGER_MAX ? MHD_NO : MHD_YES;
	if (x->failed < 0)
		return MHD_YES;
	x->failed = take_body(x, data, bytes);
	if (x->failed < 0)
		refuse_rest(x);
	return MHD_YES;
}

/* The body is complete: hand the exchange to a worker. */
static enum MHD_Result dispatch(struct exchange *x)
{
	if (x->failed == 0 && x->upload)
		x->failed = upload_receiver_end(x->upload, &x->err);
	if (x->failed < 0)
		return reply(x);
	if (x->upload)
		x->req.upload = upload_receiver_result(x->upload);
	if (x->req.route->flags & ROUTE_INLINE) {
		run_inline(x);
		return reply(x);
	}
	x->work.run = run_exchange;
	return hand_over(x, EXCHANGE_WORK) ? MHD_YES : reply(x);
}

enum MHD_Result exchange_step(void *port, struct MHD_Connection *mhd, const char *url,
	const char *method, const char *version, const char *data, size_t *data_bytes, void **ctx)
{
	struct exchange *x = *ctx;
	if (!x)
		return MHD_NO;
	switch (x->state) {
	case EXCHANGE_NEW: return first(x, method, version);
	case EXCHANGE_ASKED: return begin_body(x);
	case EXCHANGE_BODY: return *data_bytes > 0 ? body_data(x, data, data_bytes) : dispatch(x);
	case EXCHANGE_LINGER: return *data_bytes > 0 ? body_data(x, data, data_bytes) : MHD_NO;
	case EXCHANGE_READY: return reply(x);
	case EXCHANGE_ASKING:
	case EXCHANGE_WORK:
	case EXCHANGE_REPLIED: break;
	}
	*data_bytes = 0;
	return MHD_YES;
}

static void log_request(const struct exchange *x, int64_t us, bool complete)
{
	const struct principal *p = &x->req.principal;
	log_set_request_id(x->req.id);
	log_info("http.request", LOG_STR("method", x->method),
		LOG_STR("route", x->req.route ? x->req.route->operation_id : NULL),
		LOG_INT("status", x->status), LOG_F64("ms", (double)us / 1000.0),
		LOG_INT("received_bytes", x->received_bytes), LOG_INT("sent_bytes", x->sent_bytes),
		LOG_STR("tenant", p->tenant_id[0] ? p->tenant_id : NULL),
		LOG_STR("principal", p->id[0] ? p->id : NULL),
		LOG_STR("code", x->failed < 0 ? err_info(x->failed)->slug : NULL),
		LOG_BOOL("complete", complete));
	log_set_request_id(NULL);
}

void exchange_completed(
	void *port, struct MHD_Connection *mhd, void **ctx, enum MHD_RequestTerminationCode how)
{
	struct exchange *x = *ctx;
	if (!x)
		return;
	*ctx = NULL;
	if (x->counted) {
		int64_t us = clock_mono_us(x->req.app->clock) - x->started_us;
		atomic_fetch_sub(&x->port->server->active, 1);
		http_stats_gauge_add(stats_of(x), GAUGE_IN_FLIGHT, -1);
		http_stats_count(stats_of(x), x->req.route, x->status, x->slow ? -1 : us, x->sent_bytes);
		log_request(x, us, how == MHD_REQUEST_TERMINATED_COMPLETED_OK);
	}
	if (how == MHD_REQUEST_TERMINATED_COMPLETED_OK)
		enter(x, PEER_IDLE);
	stream_abandon(x->stream);
	response_finish(&x->res);
	upload_receiver_destroy(x->upload);
	json_doc_free(x->json);
	buf_finish(&x->body);
	arena_finish(&x->req.arena);
	arena_finish(&x->own);
	free(x);
}

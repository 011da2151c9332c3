/* SPDX-License-Identifier: Apache-2.0
 * Turns what a handler filled, or an error, into the library's reply. The one place that makes
 * error bodies and common headers. Runs on event loops. */
#include "server/http/error_body.h"
#include "server/http/range.h"
#include "server/http/server_private.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
	ERROR_BODY_MAX = 8 * 1024,
	VALUE_MAX = 96,
	NOT_MODIFIED = 304,
	PARTIAL = 206,
};

/* Fails only when memory is out; the reply then lacks a header. */
static void header(struct MHD_Response *r, const char *name, const char *value)
{
	(void)MHD_add_response_header(r, name, value);
}

static void header_i64(struct MHD_Response *r, const char *name, int64_t value)
{
	char text[VALUE_MAX];
	(void)snprintf(text, sizeof(text), "%" PRId64, value);
	header(r, name, text);
}

static struct MHD_Response *from_buf(struct exchange *x, struct buf *b)
{
	size_t len = 0;
	char *text = buf_take(b, &len);
	if (!text)
		return NULL;
	struct MHD_Response *r = MHD_create_response_from_buffer(len, text, MHD_RESPMEM_MUST_FREE);
	if (!r)
		free(text);
	x->sent_bytes = (int64_t)len;
	return r;
}

/* ---------------------------------------------------------------- errors */

/* A client that retries a conflict of states would only repeat it. */
static bool must_not_retry(int code)
{
	return err_info(code)->http_status == 409 && code != ERR_IDEMPOTENCY_BUSY;
}

static int retry_after_s(const struct exchange *x)
{
	int status = err_info(x->failed)->http_status;
	if (x->err.retry_after_s > 0)
		return x->err.retry_after_s;
	return status == 429 || status == 503 || x->failed == ERR_IDEMPOTENCY_BUSY ? OVERLOADED_RETRY_S
																			   : 0;
}

/* Calls put for each header that belongs to the error. */
static void error_headers(
	const struct exchange *x, void (*put)(void *to, const char *name, const char *value), void *to)
{
	char text[VALUE_MAX];
	if (retry_after_s(x) > 0) {
		(void)snprintf(text, sizeof(text), "%d", retry_after_s(x));
		put(to, "Retry-After", text);
	}
	if (must_not_retry(x->failed))
		put(to, "X-Should-Retry", "false");
	if (x->failed == ERR_UNAUTHENTICATED)
		put(to, "WWW-Authenticate", "Bearer realm=\"trainyard\"");
	if (x->failed == ERR_METHOD)
		put(to, "Allow", x->allow);
	if (x->failed == ERR_RANGE) {
		(void)snprintf(text, sizeof(text), "bytes */%" PRId64, x->res.file_bytes);
		put(to, "Content-Range", text);
	}
}

static void error_body(const struct exchange *x, struct buf *out)
{
	buf_init(out, ERROR_BODY_MAX);
	(void)error_body_write(out, &x->err, x->req.app->settings->public_url, x->req.id);
}

static void put_mhd(void *to, const char *name, const char *value)
{
	header(to, name, value);
}

static struct MHD_Response *error_response(struct exchange *x)
{
	cleanup(buf_finish) struct buf body;
	error_body(x, &body);
	struct MHD_Response *r = from_buf(x, &body);
	if (!r)
		return NULL;
	header(r, "Content-Type", "application/problem+json");
	error_headers(x, put_mhd, r);
	x->status = err_info(x->failed)->http_status;
	return r;
}

static void put_text(void *to, const char *name, const char *value)
{
	(void)buf_printf(to, "%s: %s\r\n", name, value);
}

void reply_raw(struct exchange *x)
{
	cleanup(buf_finish) struct buf body;
	cleanup(buf_finish) struct buf text;
	error_body(x, &body);
	buf_init(&text, 2 * ERROR_BODY_MAX);
	x->status = err_info(x->failed)->http_status;
	(void)buf_printf(&text,
		"HTTP/1.1 %d Refused\r\nContent-Type: application/problem+json\r\n"
		"Content-Length: %zu\r\nConnection: close\r\nX-Request-Id: %s\r\n",
		x->status, body.len, x->req.id);
	error_headers(x, put_text, &text);
	(void)buf_str(&text, "\r\n");
	(void)buf_str(&text, buf_cstr(&body));
	if (text.failed)
		return;
	int fd = peers_fd(x->peer);
	/* The socket's send buffer is empty: nothing was sent for this request. */
	ssize_t n = send(fd, text.data, text.len, MSG_DONTWAIT | MSG_NOSIGNAL);
	x->sent_bytes = n > 0 ? n : 0;
	(void)shutdown(fd, SHUT_WR);
}

/* ---------------------------------------------------------------- files */

static struct MHD_Response *file_part(struct exchange *x, int64_t first, int64_t count)
{
	int fd = x->res.file_fd;
	struct MHD_Response *r;
	x->sent_bytes = count;
	if (count == 0)
		return MHD_create_response_from_buffer(0, (void *)"", MHD_RESPMEM_PERSISTENT);
	r = MHD_create_response_from_fd_at_offset64((uint64_t)count, fd, (uint64_t)first);
	if (r)
		x->res.file_fd = -1; /* the library closes it */
	return r;
}

static struct MHD_Response *file_response(struct exchange *x)
{
	struct response *res = &x->res;
	int64_t first;
	int64_t count;
	char text[VALUE_MAX];
	struct MHD_Response *r;
	if (res->file_etag &&
		range_etag_matches(request_header(&x->req, "If-None-Match"), res->file_etag)) {
		x->status = NOT_MODIFIED;
		r = MHD_create_response_from_buffer(0, (void *)"", MHD_RESPMEM_PERSISTENT);
	} else {
		const char *range = request_header(&x->req, "Range");
		const char *if_range = request_header(&x->req, "If-Range");
		if (if_range &&
			(!res->file_etag || strncmp(if_range, "W/", 2) == 0 ||
				!range_etag_matches(if_range, res->file_etag)))
			range = NULL;
		enum range_kind kind = range_parse(range, res->file_bytes, &first, &count);
		if (kind == RANGE_UNSATISFIABLE) {
			x->failed = err_set(
				&x->err, ERR_RANGE, "Range", "The file has %" PRId64 " bytes", res->file_bytes);
			return error_response(x);
		}
		x->status = kind == RANGE_PART ? PARTIAL : res->status;
		r = file_part(x, first, count);
		if (r && kind == RANGE_PART) {
			(void)snprintf(text, sizeof(text), "bytes %" PRId64 "-%" PRId64 "/%" PRId64, first,
				first + count - 1, res->file_bytes);
			header(r, "Content-Range", text);
		}
	}
	if (!r)
		return NULL;
	header(r, "Accept-Ranges", "bytes");
	header(r, "Content-Type", res->content_type);
	if (res->file_etag) {
		(void)snprintf(text, sizeof(text), "\"%s\"", res->file_etag);
		header(r, "ETag", text);
	}
	return r;
}

/* ---------------------------------------------------------------- all */

static struct MHD_Response *stream_reply(struct exchange *x)
{
	struct MHD_Response *r = stream_response(take_ptr(x->stream), x->mhd);
	x->status = x->res.status;
	x->slow = true;
	if (!r)
		return NULL;
	header(r, "Content-Type", "text/event-stream");
	header(r, "X-Accel-Buffering", "no");
	peers_enter(x->port->server->peers, x->peer, PEER_STREAM);
	return r;
}

static struct MHD_Response *bytes_response(struct exchange *x)
{
	struct MHD_Response *r = from_buf(x, &x->res.body);
	x->status = x->res.status;
	if (r && x->sent_bytes > 0)
		header(r, "Content-Type", x->res.content_type);
	return r;
}

static struct MHD_Response *make(struct exchange *x)
{
	struct MHD_Response *r = NULL;
	if (x->failed < 0)
		return error_response(x);
	switch (x->res.kind) {
	case RESPONSE_FILE: r = file_response(x); break;
	case RESPONSE_STREAM: r = stream_reply(x); break;
	case RESPONSE_BYTES:
	case RESPONSE_WAIT: r = bytes_response(x); break;
	}
	if (!r || x->failed < 0)
		return r;
	for (int i = 0; i < x->res.header_count; i++)
		header(r, x->res.headers[i].name, x->res.headers[i].value);
	return r;
}

enum MHD_Result reply_queue(struct exchange *x)
{
	struct MHD_Response *r = make(x);
	if (!r)
		return MHD_NO; /* out of memory: the connection ends */
	header(r, "X-Request-Id", x->req.id);
	header(r, "Cache-Control", "no-store");
	header(r, "X-Content-Type-Options", "nosniff");
	if (x->rate.limit > 0) {
		header_i64(r, "RateLimit-Limit", x->rate.limit);
		header_i64(r, "RateLimit-Remaining", x->rate.remaining);
		header_i64(r, "RateLimit-Reset", x->rate.reset_s);
	}
	if (x->close || atomic_load(&x->port->server->stopping))
		header(r, "Connection", "close");
	enum MHD_Result queued = MHD_queue_response(x->mhd, (unsigned int)x->status, r);
	MHD_destroy_response(r);
	return queued;
}

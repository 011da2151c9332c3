/* SPDX-License-Identifier: Apache-2.0
 * A request as handlers see it: matched, authenticated, limited, its body read. Filled by daemon.c;
 * lives in its arena until the reply has been sent. One thread at a time. */
#pragma once

#include "core/base/arena.h"
#include "core/base/err.h"
#include "core/json/reader.h"
#include "server/app.h"
#include "server/auth/principal.h"

#include <stdbool.h>
#include <stdint.h>

struct route;
struct upload; /* server/http/multipart.h: parts streamed to disk */

enum {
	REQUEST_PATH_PARAMS_MAX = 4,
	REQUEST_ARENA_MAX = 4 * 1024 * 1024,
	REQUEST_ID_MAX = 40,
};

struct path_param {
	const char *name; /* "id" of /v1/jobs/{id} */
	const char *value;
};

struct request {
	char id[REQUEST_ID_MAX]; /* "req_…", sent back as X-Request-Id and in every log line */
	struct arena arena;
	struct app *app;
	const struct route *route;
	const char *path; /* as sent, without the query */
	struct path_param path_params[REQUEST_PATH_PARAMS_MAX];
	int path_param_count;
	struct principal principal;
	/* JSON routes: the parsed body (NULL when there was none) and its bytes. */
	const struct json_val *json;
	const char *body;
	size_t body_bytes;
	/* Blob routes: the body as a file on disk, hashed. Multipart routes: the parts. */
	struct upload *upload;
	/* Runs of a handler that answered RESPONSE_WAIT: true when its wait_ms are over. */
	bool wait_over;
	void *daemon_private;
};

/* NULL when absent. Names of headers are compared without case. */
const char *request_header(const struct request *r, const char *name);
const char *request_query(const struct request *r, const char *name);
const char *request_param(const struct request *r, const char *name);
/* Calls fn for each query argument (metadata[team]=nlp). */
void request_each_query(
	const struct request *r, void (*fn)(void *ctx, const char *name, const char *value), void *ctx);
/* Whole number in the query within [min, max]; def when absent; INVALID_VALUE naming it otherwise.
 */
int request_query_i64(const struct request *r, const char *name, int64_t min, int64_t max,
	int64_t def, int64_t *ret, struct err *err) must_check;
/* True when Accept asks for text/event-stream. */
bool request_wants_stream(const struct request *r);

/* SPDX-License-Identifier: Apache-2.0
 * HTTP to the servers: JSON calls and blobs. The only libcurl user here. One object belongs to one
 * thread and keeps its connection alive between calls. */
#pragma once

#include "core/base/attr.h"
#include "core/base/buf.h"
#include "core/base/err.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum {
	HTTP_REPLY_MAX = 4 * 1024 * 1024, /* bytes of a JSON reply */
	HTTP_CONNECT_MS = 5000,
	HTTP_SLOW_BYTES_PER_S = 1024, /* a blob slower than this ... */
	HTTP_SLOW_S = 30,             /* ... for so long is given up */
};

struct http;

/* Once per process, before threads start. */
int http_global_init(struct err *err) must_check;
/* Strings are borrowed. abandon (may be NULL): once true, running calls end with CANCELLED. */
int http_create(const char *base_url, const char *key, const char *ca_file,
	const atomic_bool *abandon, struct http **ret, struct err *err) must_check;
void http_destroy(struct http *h);
void http_destroyp(struct http **h);

/* POSTs JSON. 0 for a 2xx reply, whose body is then in reply (reset first). NETWORK when nobody
 * answered, otherwise the code that the reply names, with its message. */
int http_post(struct http *h, const char *path, const char *json, size_t bytes, int timeout_ms,
	struct buf *reply, struct err *err) must_check;

/* What blobs of one attempt are asked for with. */
struct http_grant {
	const char *attempt_id;
	int64_t epoch;
	const char *token;
};

/* Downloads the blob to path (created, synced) and checks bytes and hash: INVALID_DATA if they
 * differ. */
int http_fetch(struct http *h, const struct http_grant *g, const char *sha256, int64_t bytes,
	const char *path, struct err *err) must_check;
int http_store(struct http *h, const struct http_grant *g, const char *sha256, int64_t bytes,
	const char *path, struct err *err) must_check;

/* SPDX-License-Identifier: Apache-2.0
 * What a handler fills in. daemon.c alone turns it into a reply; an error code returned by the
 * handler becomes the error body (RFC 9457 members and OpenAI's `error` in one object) there and
 * nowhere else. */
#pragma once

#include "core/base/attr.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/json/writer.h"

#include <stdint.h>

enum {
	RESPONSE_BODY_MAX = 16 * 1024 * 1024,
	RESPONSE_HEADERS_MAX = 8,
};

struct request;
struct stream_source; /* server/http/sse.h */

struct response_header {
	char name[40];
	char value[200];
};

enum response_kind { RESPONSE_BYTES, RESPONSE_FILE, RESPONSE_STREAM, RESPONSE_WAIT };

struct response {
	enum response_kind kind;
	int status; /* 200 unless set */
	const char *content_type;
	struct buf body;
	struct json_writer json; /* writes into body; ready to use when the handler starts */
	struct response_header headers[RESPONSE_HEADERS_MAX];
	int header_count;
	/* RESPONSE_FILE: an open descriptor that the reply owns, served with Range support. */
	int file_fd;
	int64_t file_bytes;
	const char *file_etag; /* arena; the content's SHA-256 */
	/* RESPONSE_STREAM: server-sent events, owned by the reply. */
	struct stream_source *stream;
	/* RESPONSE_WAIT: run the handler again when the hub says topic changed, or at the latest
	 * wait_ms after its first run. What the last run left in body is sent then, so a handler fills
	 * the body first and asks to wait afterwards. */
	char wait_topic[64];
	int wait_ms;
};

void response_header(struct response *r, const char *name, const char *fmt, ...) printf_like(3, 4);
/* 201 with Location. */
void response_created(struct response *r, const char *location_fmt, ...) printf_like(2, 3);
/* Asks to run again: see RESPONSE_WAIT. Needs ROUTE_WAIT in the route's flags. */
void response_wait(struct response *r, const char *topic, int wait_ms);
/* Streams events from the source (taken over). Needs ROUTE_STREAM in the route's flags. */
void response_stream(struct response *r, struct stream_source *source);
/* Serves a tenant's content from the blob store with Range, ETag (its SHA-256) and
 * Content-Disposition. NOT_FOUND when it is not there. */
int response_blob(struct response *r, struct request *req, const char *tenant_id,
	const char *sha256, const char *filename, struct err *err) must_check;

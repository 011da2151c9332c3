/* SPDX-License-Identifier: Apache-2.0
 * What handlers call to fill a response. Runs on worker threads; no state. */
#include "server/http/response.h"

#include "server/app.h"
#include "server/http/request.h"
#include "server/http/response_private.h"
#include "server/storage/blob.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { STATUS_CREATED = 201 };

void response_init(struct response *r)
{
	memset(r, 0, sizeof(*r));
	r->kind = RESPONSE_BYTES;
	r->status = 200;
	r->content_type = "application/json";
	r->file_fd = -1;
	buf_init(&r->body, RESPONSE_BODY_MAX);
	json_writer_init(&r->json, &r->body);
}

void response_finish(struct response *r)
{
	buf_finish(&r->body);
	closep(&r->file_fd);
	r->file_fd = -1;
	if (r->stream)
		r->stream->destroy(r->stream);
	r->stream = NULL;
}

/* Header values are made by us, but of ids and names: a control character ends them. */
static void put_header(struct response *r, const char *name, const char *fmt, va_list args)
{
	assert(r->header_count < RESPONSE_HEADERS_MAX);
	struct response_header *h = &r->headers[r->header_count++];
	(void)snprintf(h->name, sizeof(h->name), "%s", name);
	(void)vsnprintf(h->value, sizeof(h->value), fmt, args);
	for (char *p = h->value; *p; p++) {
		if ((unsigned char)*p < ' ' || *p == 0x7f)
			*p = '\0';
		if (*p == '\0')
			break;
	}
}

void response_header(struct response *r, const char *name, const char *fmt, ...)
{
	va_list args;
	va_start(args, fmt);
	put_header(r, name, fmt, args);
	va_end(args);
}

void response_created(struct response *r, const char *location_fmt, ...)
{
	va_list args;
	va_start(args, location_fmt);
	put_header(r, "Location", location_fmt, args);
	va_end(args);
	r->status = STATUS_CREATED;
}

void response_wait(struct response *r, const char *topic, int wait_ms)
{
	assert(strlen(topic) < sizeof(r->wait_topic));
	r->kind = RESPONSE_WAIT;
	(void)snprintf(r->wait_topic, sizeof(r->wait_topic), "%s", topic);
	r->wait_ms = wait_ms;
}

void response_stream(struct response *r, struct stream_source *source)
{
	r->kind = RESPONSE_STREAM;
	r->stream = source;
	r->content_type = "text/event-stream";
}

/* filename="…" for old readers, filename*= for names that are not plain ASCII (RFC 6266). */
static void put_disposition(struct response *r, const char *filename)
{
	static const char hex[] = "0123456789ABCDEF";
	char plain[80];
	char coded[160];
	size_t plain_len = 0;
	size_t coded_len = 0;
	for (const unsigned char *p = (const unsigned char *)filename; *p; p++) {
		bool word = (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') ||
			(*p >= '0' && *p <= '9') || strchr("._-", *p);
		if (plain_len + 1 < sizeof(plain) && (*p < 0x80 || *p >= 0xc0))
			plain[plain_len++] = word ? (char)*p : '_';
		if (coded_len + 4 > sizeof(coded))
			break;
		if (word) {
			coded[coded_len++] = (char)*p;
		} else {
			coded[coded_len++] = '%';
			coded[coded_len++] = hex[*p >> 4];
			coded[coded_len++] = hex[*p & 15];
		}
	}
	plain[plain_len] = '\0';
	coded[coded_len] = '\0';
	if (strcmp(plain, coded) == 0)
		response_header(r, "Content-Disposition", "attachment; filename=\"%s\"", plain);
	else
		response_header(r, "Content-Disposition", "attachment; filename*=UTF-8''%s", coded);
}

int response_blob(struct response *r, struct request *req, const char *tenant_id,
	const char *sha256, const char *filename, struct err *err)
{
	const char *etag = arena_strdup(&req->arena, sha256);
	if (!etag)
		return err_set(err, ERR_NO_MEMORY, NULL, "No memory for the reply");
	int fd = -1;
	int64_t bytes = 0;
	int rc = blob_store_open(req->app->blobs, tenant_id, sha256, &fd, &bytes, err);
	if (rc < 0)
		return rc;
	r->kind = RESPONSE_FILE;
	r->file_fd = fd;
	r->file_bytes = bytes;
	r->content_type = "application/octet-stream";
	r->file_etag = etag;
	put_disposition(r, filename);
	return 0;
}

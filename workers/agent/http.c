/* SPDX-License-Identifier: Apache-2.0
 * HTTP to the servers over libcurl. */
#include "workers/agent/http.h"

#include "core/crypto/digest.h"
#include "core/json/reader.h"

#include <curl/curl.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { URL_MAX = 1024, HEADER_MAX = 700, ERROR_BODY_MAX = 64 * 1024 };

struct http {
	CURL *curl;
	const char *base_url, *key, *ca_file;
	const atomic_bool *abandon;
};

/* Where a running call's body goes, or comes from. */
struct transfer {
	CURL *curl;
	struct buf *reply; /* JSON, or the text of a refusal */
	int fd;            /* blob file, -1 = none */
	struct digest *digest;
	int64_t bytes, bytes_max;
	int io_errno;
};

int http_global_init(struct err *err)
{
	if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
		return err_set(err, ERR_INTERNAL, NULL, "libcurl cannot start");
	return 0;
}

int http_create(const char *base_url, const char *key, const char *ca_file,
	const atomic_bool *abandon, struct http **ret, struct err *err)
{
	struct http *h = calloc(1, sizeof(*h));
	CURL *curl = curl_easy_init();
	if (h == NULL || curl == NULL) {
		free(h);
		curl_easy_cleanup(curl);
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for an HTTP client");
	}
	*h = (struct http){
		.curl = curl, .base_url = base_url, .key = key, .ca_file = ca_file, .abandon = abandon
	};
	*ret = h;
	return 0;
}

void http_destroy(struct http *h)
{
	if (h == NULL)
		return;
	curl_easy_cleanup(h->curl);
	free(h);
}

void http_destroyp(struct http **h)
{
	http_destroy(*h);
	*h = NULL;
}

static int on_progress(
	void *ctx, curl_off_t dl_total, curl_off_t dl, curl_off_t ul_total, curl_off_t ul)
{
	const struct http *h = ctx;
	(void)dl_total;
	(void)dl;
	(void)ul_total;
	(void)ul;
	return h->abandon != NULL && atomic_load(h->abandon) ? 1 : 0;
}

static int write_all(int fd, const char *p, size_t bytes)
{
	while (bytes > 0) {
		ssize_t n = write(fd, p, bytes);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -1;
		p += n;
		bytes -= (size_t)n;
	}
	return 0;
}

/* A blob's bytes go to the file, unless the reply is a refusal: then they are its text. */
static size_t on_body(char *data, size_t size, size_t count, void *ctx)
{
	struct transfer *t = ctx;
	size_t bytes = size * count;
	long status = 0;
	curl_easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &status);
	if (t->fd < 0 || t->digest == NULL || status != 200)
		return buf_append(t->reply, data, bytes) < 0 ? 0 : bytes;
	if ((int64_t)bytes > t->bytes_max - t->bytes)
		return 0;
	if (write_all(t->fd, data, bytes) < 0) {
		t->io_errno = errno;
		return 0;
	}
	t->bytes += (int64_t)bytes;
	return digest_update(t->digest, data, bytes) < 0 ? 0 : bytes;
}

static size_t on_read(char *into, size_t size, size_t count, void *ctx)
{
	struct transfer *t = ctx;
	ssize_t n;
	do
		n = read(t->fd, into, size * count);
	while (n < 0 && errno == EINTR);
	if (n < 0) {
		t->io_errno = errno;
		return CURL_READFUNC_ABORT;
	}
	return (size_t)n;
}

static int on_rewind(void *ctx, curl_off_t offset, int origin)
{
	const struct transfer *t = ctx;
	return lseek(t->fd, offset, origin) < 0 ? CURL_SEEKFUNC_FAIL : CURL_SEEKFUNC_OK;
}

static int add_header(struct curl_slist **list, const char *name, const char *value)
{
	char line[HEADER_MAX];
	int n = snprintf(line, sizeof(line), "%s: %s", name, value);
	struct curl_slist *longer = n > 0 && n < HEADER_MAX ? curl_slist_append(*list, line) : NULL;
	if (longer == NULL)
		return ERR_NO_MEMORY;
	*list = longer;
	return 0;
}

static void free_headers(struct curl_slist **list)
{
	curl_slist_free_all(*list);
}

/* The code of errors.yaml that a refusal names; by status when it names none. */
static int refusal(long status, const struct buf *reply, struct err *err)
{
	cleanup(json_doc_freep) struct json_doc *doc = NULL;
	const char *slug = "", *message = "";
	if (json_doc_parse(buf_cstr(reply), reply->len, ERROR_BODY_MAX, &doc, NULL) == 0) {
		const struct json_val *e = json_get(json_doc_root(doc), "error");
		slug = json_str_or(json_get(e, "code"), "");
		message = json_str_or(json_get(e, "message"), "");
	}
	size_t count = 0;
	const struct err_info *all = err_all(&count);
	for (size_t i = 0; i < count; i++)
		if (strcmp(all[i].slug, slug) == 0)
			return err_set(err, all[i].code, NULL, "HTTP %ld: %.600s", status, message);
	int code = status >= 500 ? ERR_UNAVAILABLE : ERR_INVALID_REQUEST;
	if (status == 404)
		code = ERR_NOT_FOUND;
	return err_set(err, code, NULL, "HTTP %ld %.600s", status, message);
}

static int perform(struct http *h, const char *path, struct curl_slist *headers, struct transfer *t,
	struct err *err)
{
	char url[URL_MAX], detail[CURL_ERROR_SIZE] = "";
	int n = snprintf(url, sizeof(url), "%s%s", h->base_url, path);
	if (n < 0 || n >= URL_MAX)
		return err_set(err, ERR_INVALID_VALUE, NULL, "the URL is too long");
	t->curl = h->curl;
	curl_easy_setopt(h->curl, CURLOPT_URL, url);
	curl_easy_setopt(h->curl, CURLOPT_PROTOCOLS_STR, "http,https");
	curl_easy_setopt(h->curl, CURLOPT_HTTPHEADER, headers);
	curl_easy_setopt(h->curl, CURLOPT_ERRORBUFFER, detail);
	curl_easy_setopt(h->curl, CURLOPT_NOSIGNAL, 1L);
	curl_easy_setopt(h->curl, CURLOPT_NOPROXY, "*");
	curl_easy_setopt(h->curl, CURLOPT_TCP_KEEPALIVE, 1L);
	curl_easy_setopt(h->curl, CURLOPT_CONNECTTIMEOUT_MS, (long)HTTP_CONNECT_MS);
	curl_easy_setopt(h->curl, CURLOPT_NOPROGRESS, 0L);
	curl_easy_setopt(h->curl, CURLOPT_XFERINFOFUNCTION, on_progress);
	curl_easy_setopt(h->curl, CURLOPT_XFERINFODATA, h);
	curl_easy_setopt(h->curl, CURLOPT_WRITEFUNCTION, on_body);
	curl_easy_setopt(h->curl, CURLOPT_WRITEDATA, t);
	if (h->ca_file != NULL && h->ca_file[0] != '\0')
		curl_easy_setopt(h->curl, CURLOPT_CAINFO, h->ca_file);
	CURLcode code = curl_easy_perform(h->curl);
	long status = 0;
	curl_easy_getinfo(h->curl, CURLINFO_RESPONSE_CODE, &status);
	curl_easy_reset(h->curl); /* keeps the connection, drops pointers to this frame */
	if (t->io_errno != 0)
		return err_errno(err, ERR_IO, t->io_errno, "a blob's file");
	if (code == CURLE_ABORTED_BY_CALLBACK)
		return err_set(err, ERR_CANCELLED, NULL, "the call was abandoned");
	if (code != CURLE_OK)
		return err_set(err, ERR_NETWORK, NULL, "%s: %s", url,
			detail[0] != '\0' ? detail : curl_easy_strerror(code));
	if (status < 200 || status > 299)
		return refusal(status, t->reply, err);
	return 0;
}

static int common_headers(const struct http *h, struct curl_slist **list)
{
	char value[HEADER_MAX / 2 + 32];
	snprintf(value, sizeof(value), "Bearer %.300s", h->key);
	int rc = add_header(list, "Authorization", value);
	return rc < 0 ? rc : add_header(list, "Expect", "");
}

int http_post(struct http *h, const char *path, const char *json, size_t bytes, int timeout_ms,
	struct buf *reply, struct err *err)
{
	cleanup(free_headers) struct curl_slist *headers = NULL;
	struct transfer t = { .reply = reply, .fd = -1 };
	buf_reset(reply);
	if (common_headers(h, &headers) < 0 ||
		add_header(&headers, "Content-Type", "application/json") < 0)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for headers");
	curl_easy_setopt(h->curl, CURLOPT_POSTFIELDS, json);
	curl_easy_setopt(h->curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)bytes);
	curl_easy_setopt(h->curl, CURLOPT_TIMEOUT_MS, (long)timeout_ms);
	return perform(h, path, headers, &t, err);
}

static int blob_call(struct http *h, const struct http_grant *g, const char *sha256,
	struct transfer *t, struct err *err)
{
	cleanup(free_headers) struct curl_slist *headers = NULL;
	char path[128], epoch[32];
	snprintf(path, sizeof(path), "/agent/v1/blobs/%.64s", sha256);
	snprintf(epoch, sizeof(epoch), "%lld", (long long)g->epoch);
	if (common_headers(h, &headers) < 0 ||
		add_header(&headers, "X-Attempt-Id", g->attempt_id) < 0 ||
		add_header(&headers, "X-Attempt-Epoch", epoch) < 0 ||
		add_header(&headers, "X-Attempt-Token", g->token) < 0 ||
		(t->digest == NULL && add_header(&headers, "Content-Type", "application/octet-stream") < 0))
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for headers");
	curl_easy_setopt(h->curl, CURLOPT_LOW_SPEED_LIMIT, (long)HTTP_SLOW_BYTES_PER_S);
	curl_easy_setopt(h->curl, CURLOPT_LOW_SPEED_TIME, (long)HTTP_SLOW_S);
	return perform(h, path, headers, t, err);
}

static int finish_fetch(
	struct transfer *t, const char *sha256, int64_t bytes, const char *path, struct err *err)
{
	unsigned char sum[DIGEST_BYTES];
	char hex[DIGEST_HEX_MAX];
	int rc = digest_final(t->digest, sum);
	if (rc < 0)
		return err_set(err, rc, NULL, "%s cannot be hashed", path);
	digest_to_hex(sum, hex);
	if (t->bytes != bytes || strcmp(hex, sha256) != 0)
		return err_set(err, ERR_INVALID_DATA, NULL,
			"the blob %s came with %lld bytes and the SHA-256 %s; %lld bytes were promised", sha256,
			(long long)t->bytes, hex, (long long)bytes);
	if (fsync(t->fd) < 0)
		return err_errno(err, ERR_IO, errno, "%s cannot be synced", path);
	return 0;
}

int http_fetch(struct http *h, const struct http_grant *g, const char *sha256, int64_t bytes,
	const char *path, struct err *err)
{
	cleanup(buf_finish) struct buf text;
	cleanup(digest_destroyp) struct digest *digest = NULL;
	cleanup(closep) int fd =
		open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
	buf_init(&text, ERROR_BODY_MAX);
	if (fd < 0)
		return err_errno(err, ERR_IO, errno, "%s cannot be created", path);
	int rc = digest_create(&digest);
	if (rc < 0)
		return err_set(err, rc, NULL, "no memory for a digest");
	struct transfer t = { .reply = &text, .fd = fd, .digest = digest, .bytes_max = bytes };
	rc = blob_call(h, g, sha256, &t, err);
	return rc < 0 ? rc : finish_fetch(&t, sha256, bytes, path, err);
}

int http_store(struct http *h, const struct http_grant *g, const char *sha256, int64_t bytes,
	const char *path, struct err *err)
{
	cleanup(buf_finish) struct buf text;
	cleanup(closep) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	buf_init(&text, ERROR_BODY_MAX);
	if (fd < 0)
		return err_errno(err, ERR_IO, errno, "%s cannot be opened", path);
	struct transfer t = { .reply = &text, .fd = fd };
	curl_easy_setopt(h->curl, CURLOPT_UPLOAD, 1L);
	curl_easy_setopt(h->curl, CURLOPT_READFUNCTION, on_read);
	curl_easy_setopt(h->curl, CURLOPT_READDATA, &t);
	curl_easy_setopt(h->curl, CURLOPT_SEEKFUNCTION, on_rewind);
	curl_easy_setopt(h->curl, CURLOPT_SEEKDATA, &t);
	curl_easy_setopt(h->curl, CURLOPT_INFILESIZE_LARGE, (curl_off_t)bytes);
	return blob_call(h, g, sha256, &t, err);
}

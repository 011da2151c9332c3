/* SPDX-License-Identifier: Apache-2.0
 * Framing rules. Called by event loops on every request, before its target is read. */
#include "server/http/framing.h"

#include "core/base/num.h"

#include <string.h>
#include <strings.h>

enum { DEL = 0x7f, SPACE = 0x20, TAB = 0x09, LINE_END_BYTES = 2 };

static int refuse(struct err *err, const char *header, const char *why)
{
	return err_set(err, ERR_BAD_FRAMING, header, "%s %s", header, why);
}

static int check_name(const char *name, struct err *err)
{
	static const char tchar[] = "!#$%&'*+-.^_`|~0123456789"
								"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
	if (name[0] == '\0' || name[strspn(name, tchar)] != '\0')
		return err_set(err, ERR_BAD_FRAMING, NULL, "A header's name is not a token");
	return 0;
}

static int check_value(const char *name, const char *value, struct err *err)
{
	for (const char *p = value; *p; p++) {
		unsigned char c = (unsigned char)*p;
		if ((c < SPACE && c != TAB) || c == DEL)
			return refuse(err, name, "holds a control character");
	}
	return 0;
}

/* Headers whose repetition changes what a request means. */
static int check_single(const struct name_value *headers, int count, struct err *err)
{
	static const char *const single[] = { "Host", "Content-Length", "Transfer-Encoding",
		"Authorization", "Content-Type", "Expect", "Range", "Idempotency-Key", "X-Tenant-Id",
		"X-Attempt-Id", "X-Attempt-Epoch", "X-Attempt-Token" };
	for (size_t s = 0; s < ARRAY_LEN(single); s++) {
		int seen = 0;
		for (int i = 0; i < count; i++)
			seen += strcasecmp(headers[i].name, single[s]) == 0;
		if (seen > 1)
			return refuse(err, single[s], "is given more than once");
	}
	return 0;
}

static const char *find(const struct name_value *headers, int count, const char *name)
{
	for (int i = 0; i < count; i++) {
		if (strcasecmp(headers[i].name, name) == 0)
			return headers[i].value;
	}
	return NULL;
}

static int check_host(const char *host, bool required, struct err *err)
{
	static const char allowed[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
								  "-._~:[]%!$&'()*+,;=";
	if (!host)
		return required ? refuse(err, "Host", "is missing") : 0;
	if (host[strspn(host, allowed)] != '\0')
		return refuse(err, "Host", "is not a host and port");
	return 0;
}

static int check_length(const char *length, struct framing *ret, struct err *err)
{
	if (!length)
		return 0;
	/* Digits only: "+5", "5, 5", "0x5" and "" mean different things to different readers. */
	if (length[0] < '0' || length[0] > '9' ||
		num_parse_i64(length, 0, INT64_MAX, &ret->content_length) < 0)
		return refuse(err, "Content-Length", "is not a number");
	return 0;
}

int framing_check(const char *method, const char *version, const struct name_value *headers,
	int count, struct framing *ret, struct err *err)
{
	struct framing f = { .content_length = -1 };
	bool http11 = strcmp(version, "HTTP/1.1") == 0;
	if (!http11 && strcmp(version, "HTTP/1.0") != 0)
		return err_set(err, ERR_BAD_FRAMING, NULL, "The HTTP version is not 1.0 or 1.1");
	int r = check_name(method, err);
	for (int i = 0; r == 0 && i < count; i++) {
		r = check_name(headers[i].name, err);
		if (r == 0)
			r = check_value(headers[i].name, headers[i].value, err);
	}
	if (r == 0)
		r = check_single(headers, count, err);
	if (r == 0)
		r = check_host(find(headers, count, "Host"), http11, err);
	if (r == 0)
		r = check_length(find(headers, count, "Content-Length"), &f, err);
	if (r < 0)
		return r;
	const char *coding = find(headers, count, "Transfer-Encoding");
	if (coding && f.content_length >= 0)
		return refuse(err, "Transfer-Encoding", "and Content-Length exclude each other");
	if (coding && (!http11 || strcasecmp(coding, "chunked") != 0))
		return refuse(err, "Transfer-Encoding", "must be chunked");
	f.chunked = coding != NULL;
	const char *expect = find(headers, count, "Expect");
	if (expect && strcasecmp(expect, "100-continue") != 0)
		return refuse(err, "Expect", "must be 100-continue");
	f.expects_continue = expect != NULL;
	*ret = f;
	return 0;
}

static int refuse_block(struct err *err)
{
	return err_set(err, ERR_BAD_FRAMING, NULL, "The request's header lines are not well formed");
}

int framing_check_block(
	const struct framing_block *b, const struct name_value *headers, int count, struct err *err)
{
	const char *end = b->method + b->bytes;
	if (b->target != b->method + strlen(b->method) + 1 ||
		b->version != b->target + b->target_len + 1)
		return refuse_block(err);
	const char *at = b->version + strlen(b->version) + LINE_END_BYTES;
	for (int i = 0; i < count; i++) {
		const char *name = headers[i].name;
		const char *value = headers[i].value;
		if (name != at)
			return refuse_block(err);
		at = name + strlen(name) + 1;
		while (at < value && (*at == SPACE || *at == TAB))
			at++;
		if (value != at || value > end)
			return refuse_block(err);
		at = value + strlen(value);
		while (at < end && (*at == SPACE || *at == TAB))
			at++;
		at += LINE_END_BYTES;
	}
	return at + LINE_END_BYTES == end ? 0 : refuse_block(err);
}

/* SPDX-License-Identifier: Apache-2.0
 * What is decided before a body is read: framing, route, size, credential, rate, scope. Runs on
 * event loops. */
#include "server/auth/scope.h"
#include "server/http/multipart_parser.h"
#include "server/http/server_private.h"
#include "server/http/target.h"

#include <inttypes.h>
#include <string.h>
#include <strings.h>

static enum MHD_Result add_header(
	void *ctx, enum MHD_ValueKind kind, const char *name, const char *value)
{
	struct exchange *x = ctx;
	if (x->data.header_count == REQUEST_HEADERS_MAX) {
		x->data.header_count++; /* says: too many */
		return MHD_NO;
	}
	if (x->data.header_count > REQUEST_HEADERS_MAX)
		return MHD_NO;
	x->data.headers[x->data.header_count++] =
		(struct name_value){ .name = name, .value = value ? value : "" };
	return MHD_YES;
}

/* The library keeps blanks behind values. */
static int trim_values(struct exchange *x)
{
	for (int i = 0; i < x->data.header_count; i++) {
		struct name_value *h = &x->data.headers[i];
		size_t len = strlen(h->value);
		size_t kept = len;
		while (kept > 0 && (h->value[kept - 1] == ' ' || h->value[kept - 1] == '\t'))
			kept--;
		if (kept == len)
			continue;
		h->value = arena_strndup(&x->own, h->value, kept);
		if (!h->value)
			return err_set(&x->err, ERR_NO_MEMORY, NULL, "Out of memory");
	}
	return 0;
}

static int read_headers(struct exchange *x, const char *method, const char *version)
{
	const union MHD_ConnectionInfo *size =
		MHD_get_connection_info(x->mhd, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
	(void)MHD_get_connection_values(x->mhd, MHD_HEADER_KIND, add_header, x);
	if (x->data.header_count > REQUEST_HEADERS_MAX || !size ||
		size->header_size > REQUEST_HEADER_BYTES_MAX) {
		x->data.header_count = 0;
		x->close = true;
		return err_set(&x->err, ERR_HEADERS_TOO_LARGE, NULL,
			"A request may have %d header lines and %d bytes of them", REQUEST_HEADERS_MAX,
			REQUEST_HEADER_BYTES_MAX);
	}
	struct framing_block block = {
		.method = method,
		.target = x->target_at,
		.target_len = x->target_len,
		.version = version,
		.bytes = size->header_size,
	};
	int r = framing_check_block(&block, x->data.headers, x->data.header_count, &x->err);
	if (r == 0)
		r = trim_values(x);
	if (r == 0)
		r = framing_check(
			method, version, x->data.headers, x->data.header_count, &x->framing, &x->err);
	if (r < 0)
		x->close = true;
	return r;
}

static bool is_json(const char *type)
{
	static const char want[] = "application/json";
	size_t len = type ? strcspn(type, "; \t") : 0;
	return len == sizeof(want) - 1 && strncasecmp(type, want, len) == 0;
}

int64_t gate_body_max(const struct exchange *x)
{
	const struct route *route = x->req.route;
	int64_t max = route->body_max_bytes;
	if (route->body != BODY_MULTIPART && route->body != BODY_BLOB)
		return max;
	if (max > x->req.app->settings->upload_max_bytes)
		max = x->req.app->settings->upload_max_bytes;
	return route->body == BODY_MULTIPART ? max + FORM_OVERHEAD_MAX : max;
}

static int check_body(struct exchange *x)
{
	const struct route *route = x->req.route;
	const struct framing *f = &x->framing;
	const char *type = request_header(&x->req, "Content-Type");
	bool has_body = f->chunked || f->content_length > 0;
	bool is_file = route->body == BODY_MULTIPART || route->body == BODY_BLOB;
	if (route->body == BODY_NONE && f->content_length > 0)
		return err_set(&x->err, ERR_INVALID_REQUEST, NULL, "This operation takes no request body");
	if (f->content_length > gate_body_max(x))
		return err_set(&x->err, ERR_TOO_LARGE, NULL,
			"The body has %" PRId64 " bytes; at most %" PRId64 " are taken here", f->content_length,
			gate_body_max(x));
	if (is_file && f->content_length < 0 && !f->chunked)
		return err_set(
			&x->err, ERR_LENGTH_REQUIRED, NULL, "Send Content-Length, or the body in chunks");
	if (route->body == BODY_JSON && has_body && f->content_length != 0 && !is_json(type))
		return err_set(
			&x->err, ERR_MEDIA_TYPE, "Content-Type", "The content type must be application/json");
	if (route->body == BODY_MULTIPART) {
		char boundary[MULTIPART_BOUNDARY_MAX + 1];
		return multipart_boundary(type, boundary, &x->err);
	}
	const char *coding = request_header(&x->req, "Content-Encoding");
	if (has_body && coding && strcasecmp(coding, "identity") != 0)
		return err_set(&x->err, ERR_MEDIA_TYPE, "Content-Encoding", "The body must not be encoded");
	return 0;
}

static enum route_scope scope_of(const struct exchange *x)
{
	const struct route *route = x->req.route;
	/* The one row whose scope is a setting. */
	if (strcmp(route->operation_id, "metrics") == 0 && !x->req.app->settings->metrics_public)
		return SCOPE_OPERATOR;
	return route->scope;
}

static int check_rate(struct exchange *x)
{
	const struct principal *p = &x->req.principal;
	if (p->role == ROLE_AGENT)
		return 0;
	limiter_take(x->req.app->limiter, p->tenant_id[0] ? p->tenant_id : p->id, &x->rate);
	if (x->rate.allowed)
		return 0;
	int r = err_set(&x->err, ERR_RATE_LIMITED, NULL,
		"More than %" PRId64 " requests a second; try again in %" PRId64 " s",
		x->req.app->settings->rate_per_s, x->rate.retry_after_s);
	x->err.retry_after_s = (int)x->rate.retry_after_s;
	return r;
}

static int check_rights(struct exchange *x)
{
	int r = check_rate(x);
	return r < 0 ? r : scope_check(scope_of(x), &x->req, &x->err);
}

static const char *authorization(const struct exchange *x)
{
	return request_header(&x->req, "Authorization");
}

int gate_ask(struct exchange *x)
{
	int r = credentials_ask(x->req.app->credentials, authorization(x), &x->req.principal, &x->err);
	return r < 0 ? r : check_rights(x);
}

static int check_who(struct exchange *x, bool *ret_ask)
{
	if (scope_of(x) == SCOPE_PUBLIC)
		return 0;
	int r = credentials_check(
		x->req.app->credentials, authorization(x), &x->req.principal, ret_ask, &x->err);
	return r < 0 || *ret_ask ? r : check_rights(x);
}

int gate_check(struct exchange *x, const char *method, const char *version, bool *ret_ask)
{
	*ret_ask = false;
	int r = read_headers(x, method, version);
	if (r == 0)
		r = target_parse(&x->own, x->target, &x->data, &x->req.path, &x->err);
	if (r < 0)
		return r;
	r = router_match(x->port->routes, x->port->route_count, method, &x->data, &x->own, &x->req,
		x->allow, &x->err);
	if (r == 0)
		r = check_body(x);
	return r < 0 ? r : check_who(x, ret_ask);
}

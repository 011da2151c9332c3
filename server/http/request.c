/* SPDX-License-Identifier: Apache-2.0
 * What handlers ask a request. Called on worker threads; no state of its own. */
#include "server/http/request.h"

#include "core/base/num.h"
#include "server/http/request_private.h"

#include <inttypes.h>
#include <string.h>
#include <strings.h>

static const struct request_data *data_of(const struct request *r)
{
	return r->daemon_private;
}

const char *request_header(const struct request *r, const char *name)
{
	const struct request_data *d = data_of(r);
	for (int i = 0; i < d->header_count; i++) {
		if (strcasecmp(d->headers[i].name, name) == 0)
			return d->headers[i].value;
	}
	return NULL;
}

const char *request_query(const struct request *r, const char *name)
{
	const struct request_data *d = data_of(r);
	for (int i = 0; i < d->query_count; i++) {
		if (strcmp(d->query[i].name, name) == 0)
			return d->query[i].value;
	}
	return NULL;
}

void request_each_query(
	const struct request *r, void (*fn)(void *ctx, const char *name, const char *value), void *ctx)
{
	const struct request_data *d = data_of(r);
	for (int i = 0; i < d->query_count; i++)
		fn(ctx, d->query[i].name, d->query[i].value);
}

const char *request_param(const struct request *r, const char *name)
{
	for (int i = 0; i < r->path_param_count; i++) {
		if (strcmp(r->path_params[i].name, name) == 0)
			return r->path_params[i].value;
	}
	return NULL;
}

int request_query_i64(const struct request *r, const char *name, int64_t min, int64_t max,
	int64_t def, int64_t *ret, struct err *err)
{
	const char *text = request_query(r, name);
	if (!text) {
		*ret = def;
		return 0;
	}
	if (num_parse_i64(text, min, max, ret) < 0)
		return err_set(err, ERR_INVALID_VALUE, name,
			"%s must be a whole number from %" PRId64 " to %" PRId64, name, min, max);
	return 0;
}

/* One media range of an Accept header, without its parameters. */
static bool names_event_stream(const char *range, size_t len)
{
	static const char want[] = "text/event-stream";
	while (len > 0 && (*range == ' ' || *range == '\t')) {
		range++;
		len--;
	}
	size_t word = 0;
	while (word < len && !strchr("; \t", range[word]))
		word++;
	return word == sizeof(want) - 1 && strncasecmp(range, want, word) == 0;
}

bool request_wants_stream(const struct request *r)
{
	const char *accept = request_header(r, "Accept");
	while (accept && *accept) {
		size_t len = strcspn(accept, ",");
		if (names_event_stream(accept, len))
			return true;
		accept += len;
		accept += *accept == ',';
	}
	return false;
}

/* SPDX-License-Identifier: Apache-2.0
 * A route: one row of server/routes.c, which a lint test compares with api-spec/openapi.yaml. */
#pragma once

#include "core/base/err.h"
#include "server/http/request.h"
#include "server/http/response.h"

enum route_scope {
	SCOPE_PUBLIC,       /* no credential */
	SCOPE_TENANT_READ,  /* owner or member of a tenant; an operator with ?tenant_id= or X-Tenant-Id
						 */
	SCOPE_TENANT_WRITE, /* the same, writing */
	SCOPE_TENANT_OWNER,
	SCOPE_OPERATOR,
	SCOPE_AGENT,
};

enum route_body { BODY_NONE, BODY_JSON, BODY_MULTIPART, BODY_BLOB };

enum {
	ROUTE_IDEMPOTENT = 1 << 0, /* honours Idempotency-Key */
	ROUTE_STREAM = 1 << 1,     /* may answer with server-sent events */
	ROUTE_WAIT = 1 << 2,       /* may answer RESPONSE_WAIT */
	ROUTE_INLINE = 1 << 3, /* never blocks: answered by the event loop, whatever the workers do */
};

/* Plain blocking code on a worker thread. Returns 0 with the response filled, or a negative code
 * with err filled. */
typedef int (*route_handler)(struct request *req, struct response *res, struct err *err);

struct route {
	const char *method;
	const char *pattern; /* "/v1/jobs/{id}" */
	const char *operation_id;
	enum route_scope scope;
	enum route_body body;
	int64_t body_max_bytes;
	int flags;
	route_handler handler;
};

/* server/routes.c: customers' and operators' port, and the agents' port. */
extern const struct route routes_api[];
extern const size_t routes_api_count;
extern const struct route routes_agent[];
extern const size_t routes_agent_count;

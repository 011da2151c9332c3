/* SPDX-License-Identifier: Apache-2.0
 * May this principal use this route, and for which tenant. Asked by the daemon's gate after the
 * credential is known. Pure. */
#pragma once

#include "core/base/err.h"
#include "server/http/request.h"
#include "server/http/route.h"

/* Settles r->principal.tenant_id of operators who name one (?tenant_id= or X-Tenant-Id). FORBIDDEN,
 * or MISSING_FIELD when an operator must name a tenant. */
int scope_check(enum route_scope scope, struct request *r, struct err *err) must_check;

/* SPDX-License-Identifier: Apache-2.0
 * Roles against scopes. Called by event loops; no state. */
#include "server/auth/scope.h"

#include "core/model/watch_store.h"

#include <string.h>

static int name_tenant(struct request *r, struct err *err)
{
	const char *query = request_query(r, "tenant_id");
	const char *header = request_header(r, "X-Tenant-Id");
	const char *tenant = query ? query : header;
	if (!tenant)
		return err_set(err, ERR_MISSING_FIELD, "tenant_id",
			"An operator must name the tenant: ?tenant_id= or X-Tenant-Id");
	if (query && header && strcmp(query, header) != 0)
		return err_set(
			err, ERR_INVALID_VALUE, "tenant_id", "?tenant_id= and X-Tenant-Id name two tenants");
	if (!watch_store_id_ok(tenant))
		return err_set(err, ERR_INVALID_VALUE, "tenant_id", "This is not the id of a tenant");
	memcpy(r->principal.tenant_id, tenant, strlen(tenant) + 1);
	return 0;
}

static int need(bool allowed, struct err *err, const char *who)
{
	return allowed ? 0 : err_set(err, ERR_FORBIDDEN, NULL, "This needs %s", who);
}

int scope_check(enum route_scope scope, struct request *r, struct err *err)
{
	enum principal_role role = r->principal.role;
	switch (scope) {
	case SCOPE_PUBLIC: return 0;
	case SCOPE_TENANT_READ:
	case SCOPE_TENANT_WRITE:
		if (role == ROLE_OPERATOR)
			return name_tenant(r, err);
		return need(role == ROLE_OWNER || role == ROLE_MEMBER, err, "a tenant's key");
	case SCOPE_TENANT_OWNER:
		if (role == ROLE_OPERATOR)
			return name_tenant(r, err);
		return need(role == ROLE_OWNER, err, "an owner's key");
	case SCOPE_OPERATOR: return need(role == ROLE_OPERATOR, err, "an operator's key");
	case SCOPE_AGENT: return need(role == ROLE_AGENT, err, "an agent's key");
	}
	return need(false, err, "another key");
}

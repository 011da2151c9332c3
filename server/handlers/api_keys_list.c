/* SPDX-License-Identifier: Apache-2.0
 * GET /v1/tenants/{id}/api-keys: a tenant's keys, never their text.
 * Runs on a worker thread. */
#include "server/handlers/handlers.h"

#include "core/model/api_key_store.h"
#include "core/model/tenant_store.h"
#include "server/limits/args.h"

int api_keys_list(struct request *req, struct response *res, struct err *err)
{
	static const char *const known[] = { "after", "before", "limit", NULL };
	const char *tenant_id = NULL;
	struct page page;
	int rc = args_id(req, "id", "tenant", "tenant", &tenant_id, err);
	if (rc == 0)
		rc = args_only(req, known, err);
	if (rc == 0)
		rc = args_page(req, "key", &page, err);
	if (rc < 0)
		return rc;
	struct db_conn *conn = NULL;
	rc = db_pool_get(req->app->pool, APP_DB_WAIT_MS, &conn, err);
	if (rc < 0)
		return rc;
	struct residency_set unused;
	rc = tenant_store_residency(conn, tenant_id, &unused, err);
	if (rc == 0)
		rc = api_key_store_list(conn, tenant_id, &page, &res->json, err);
	db_pool_put(req->app->pool, conn);
	return rc;
}

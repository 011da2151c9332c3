/* SPDX-License-Identifier: Apache-2.0
 * GET /v1/tenants: all tenants, newest first, for the operator.
 * Runs on a worker thread. */
#include "server/handlers/handlers.h"

#include "core/model/tenant_store.h"
#include "server/limits/args.h"

int tenants_list(struct request *req, struct response *res, struct err *err)
{
	static const char *const known[] = { "after", "before", "limit", NULL };
	struct page page;
	int rc = args_only(req, known, err);
	if (rc == 0)
		rc = args_page(req, "tenant", &page, err);
	if (rc < 0)
		return rc;
	struct db_conn *conn = NULL;
	rc = db_pool_get(req->app->pool, APP_DB_WAIT_MS, &conn, err);
	if (rc < 0)
		return rc;
	rc = tenant_store_list(conn, &page, &res->json, err);
	db_pool_put(req->app->pool, conn);
	return rc;
}

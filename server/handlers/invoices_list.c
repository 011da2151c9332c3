/* SPDX-License-Identifier: Apache-2.0
 * GET /v1/invoices: a tenant's invoices, newest first. Runs on a worker thread. */
#include "server/handlers/handlers.h"

#include "core/model/invoice_store.h"
#include "server/limits/args.h"

int invoices_list(struct request *req, struct response *res, struct err *err)
{
	static const char *const known[] = { "after", "before", "limit", NULL };
	struct page page;
	int rc = args_only(req, known, err);
	if (rc == 0)
		rc = args_page(req, "inv", &page, err);
	if (rc < 0)
		return rc;
	struct db_conn *conn = NULL;
	rc = db_pool_get(req->app->pool, APP_DB_WAIT_MS, &conn, err);
	if (rc < 0)
		return rc;
	rc = invoice_store_list(conn, req->principal.tenant_id, &page, &res->json, err);
	db_pool_put(req->app->pool, conn);
	return rc;
}

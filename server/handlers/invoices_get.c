/* SPDX-License-Identifier: Apache-2.0
 * GET /v1/invoices/{id}: one invoice with its lines, its content and a check made now. Runs on a
 * worker thread. */
#include "server/handlers/handlers.h"

#include "core/model/invoice_store.h"
#include "core/model/usage_store.h"
#include "server/limits/args.h"

int invoices_get(struct request *req, struct response *res, struct err *err)
{
	static const char *const known[] = { NULL };
	const char *id = NULL;
	int rc = args_id(req, "id", "inv", "invoice", &id, err);
	if (rc == 0)
		rc = args_only(req, known, err);
	if (rc < 0)
		return rc;
	struct db_conn *conn = NULL;
	rc = db_pool_get(req->app->pool, APP_DB_WAIT_MS, &conn, err);
	if (rc < 0)
		return rc;
	/* Invoice, lines and segments of one instant. Putting the connection back ends it. */
	rc = usage_store_snapshot(conn, err);
	if (rc == 0)
		rc = invoice_store_write(conn, req->principal.tenant_id, id, &res->json, err);
	db_pool_put(req->app->pool, conn);
	return rc;
}

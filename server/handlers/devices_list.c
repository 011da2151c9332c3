/* SPDX-License-Identifier: Apache-2.0
 * GET /v1/devices: every device with its state and its time by state, for operators. Runs on a
 * worker thread. */
#include "server/handlers/handlers.h"

#include "core/model/device_store.h"
#include "server/limits/args.h"

int devices_list(struct request *req, struct response *res, struct err *err)
{
	static const char *const known[] = { "after", "before", "limit", "include", NULL };
	static const char *const includes[] = { "segments", NULL };
	struct page page;
	const char *include = NULL;
	int rc = args_only(req, known, err);
	if (rc == 0)
		rc = args_page(req, "dev", &page, err);
	if (rc == 0)
		rc = args_word(req, "include", includes, &include, err);
	if (rc < 0)
		return rc;
	struct db_conn *conn = NULL;
	rc = db_pool_get(req->app->pool, APP_DB_WAIT_MS, &conn, err);
	if (rc < 0)
		return rc;
	rc = device_store_list(conn, &page, include != NULL, &res->json, err);
	db_pool_put(req->app->pool, conn);
	return rc;
}

/* SPDX-License-Identifier: Apache-2.0
 * GET /v1/instance-types: the catalogue with prices and free devices. Runs on a worker thread. */
#include "server/handlers/handlers.h"

#include "core/model/instance_type_store.h"
#include "server/limits/args.h"

int instance_types_list(struct request *req, struct response *res, struct err *err)
{
	static const char *const known[] = { NULL };
	int rc = args_only(req, known, err);
	if (rc < 0)
		return rc;
	struct db_conn *conn = NULL;
	rc = db_pool_get(req->app->pool, APP_DB_WAIT_MS, &conn, err);
	if (rc < 0)
		return rc;
	rc = instance_type_store_list(conn, &res->json, err);
	db_pool_put(req->app->pool, conn);
	return rc;
}

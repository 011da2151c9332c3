/* SPDX-License-Identifier: Apache-2.0
 * GET /v1/models/{id}: one finished model's object, or a preset's.
 * Runs on a worker thread. */
#include "server/handlers/handlers.h"

#include "core/model/model_store.h"
#include "core/spec/preset.h"
#include "server/limits/args.h"

int models_get(struct request *req, struct response *res, struct err *err)
{
	const char *id = request_param(req, "id");
	int rc = id && preset_find(id) ? 0 : args_id(req, "id", "model", "model", &id, err);
	if (rc < 0)
		return rc;
	struct db_conn *conn = NULL;
	rc = db_pool_get(req->app->pool, APP_DB_WAIT_MS, &conn, err);
	if (rc < 0)
		return rc;
	rc = model_store_write(conn, req->principal.tenant_id, id, &res->json, err);
	db_pool_put(req->app->pool, conn);
	return rc;
}

/* SPDX-License-Identifier: Apache-2.0
 * GET /v1/jobs/{id}/checkpoints: a job's checkpoints, newest first.
 * Runs on a worker thread. */
#include "server/handlers/handlers.h"

#include "core/model/model_store.h"
#include "server/limits/args.h"

int job_checkpoints(struct request *req, struct response *res, struct err *err)
{
	static const char *const known[] = { "after", "before", "limit", NULL };
	const char *id = NULL;
	struct page page;
	int rc = args_id(req, "id", "job", "job", &id, err);
	if (rc == 0)
		rc = args_only(req, known, err);
	if (rc == 0)
		rc = args_page(req, "ckpt", &page, err);
	if (rc < 0)
		return rc;
	struct db_conn *conn = NULL;
	rc = db_pool_get(req->app->pool, APP_DB_WAIT_MS, &conn, err);
	if (rc < 0)
		return rc;
	rc = model_store_list_checkpoints(conn, req->principal.tenant_id, id, &page, &res->json, err);
	db_pool_put(req->app->pool, conn);
	return rc;
}

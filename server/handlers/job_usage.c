/* SPDX-License-Identifier: Apache-2.0
 * GET /v1/jobs/{id}/usage: every segment of a job, with its price and its part of the amount. Runs
 * on a worker thread. */
#include "server/handlers/handlers.h"

#include "core/model/usage_store.h"
#include "server/limits/args.h"

int job_usage(struct request *req, struct response *res, struct err *err)
{
	static const char *const known[] = { "after", "limit", NULL };
	const char *id = NULL;
	int64_t after = 0, limit = 0;
	int rc = args_id(req, "id", "job", "job", &id, err);
	if (rc == 0)
		rc = args_only(req, known, err);
	if (rc == 0)
		rc = request_query_i64(req, "after", 0, INT64_MAX, 0, &after, err);
	if (rc == 0)
		rc = request_query_i64(req, "limit", 1, USAGE_PAGE_MAX, USAGE_PAGE_DEFAULT, &limit, err);
	if (rc < 0)
		return rc;
	struct db_conn *conn = NULL;
	rc = db_pool_get(req->app->pool, APP_DB_WAIT_MS, &conn, err);
	if (rc < 0)
		return rc;
	/* Total, segments and open time of one instant. Putting the connection back ends it. */
	rc = usage_store_snapshot(conn, err);
	if (rc == 0)
		rc = usage_store_write_job(
			conn, req->principal.tenant_id, id, after, (int)limit, &res->json, err);
	db_pool_put(req->app->pool, conn);
	return rc;
}

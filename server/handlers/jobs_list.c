/* SPDX-License-Identifier: Apache-2.0
 * GET /v1/jobs: a tenant's jobs, newest first, filtered by status, instance type and metadata.
 * Runs on a worker thread. */
#include "server/handlers/handlers.h"

#include "core/model/instance_type_store.h"
#include "core/model/job_render.h"
#include "server/limits/args.h"

int jobs_list(struct request *req, struct response *res, struct err *err)
{
	static const char *const known[] = { "after", "before", "limit", "status", "instance_type",
		"metadata[", NULL };
	static const char *const statuses[] = { "validating_files", "queued", "running", "paused",
		"succeeded", "failed", "cancelled", NULL };
	struct page page;
	struct job_filter filter = { 0 };
	int rc = args_only(req, known, err);
	if (rc == 0)
		rc = args_page(req, "job", &page, err);
	if (rc == 0)
		rc = args_word(req, "status", statuses, &filter.status, err);
	if (rc == 0)
		rc = args_name(req, "instance_type", INSTANCE_TYPE_NAME_MAX, &filter.instance_type, err);
	if (rc == 0)
		rc = args_metadata(req, &filter.metadata_json, err);
	if (rc < 0)
		return rc;
	struct db_conn *conn = NULL;
	rc = db_pool_get(req->app->pool, APP_DB_WAIT_MS, &conn, err);
	if (rc < 0)
		return rc;
	rc = job_render_list(conn, req->principal.tenant_id, &filter, &page, &res->json, err);
	db_pool_put(req->app->pool, conn);
	return rc;
}

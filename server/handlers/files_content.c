/* SPDX-License-Identifier: Apache-2.0
 * GET /v1/files/{id}/content: the bytes as they were uploaded.
 * Runs on a worker thread. */
#include "server/handlers/handlers.h"

#include "core/model/file_store.h"
#include "server/limits/args.h"

int files_content(struct request *req, struct response *res, struct err *err)
{
	const char *id = NULL;
	int rc = args_id(req, "id", "file", "file", &id, err);
	if (rc < 0)
		return rc;
	struct db_conn *conn = NULL;
	rc = db_pool_get(req->app->pool, APP_DB_WAIT_MS, &conn, err);
	if (rc < 0)
		return rc;
	struct file file;
	rc = file_store_get(conn, req->principal.tenant_id, id, &file, err);
	db_pool_put(req->app->pool, conn);
	if (rc < 0)
		return rc;
	return response_blob(res, req, req->principal.tenant_id, file.sha256, file.filename, err);
}

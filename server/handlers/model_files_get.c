/* SPDX-License-Identifier: Apache-2.0
 * GET /v1/models/{id}/files/{name}: the bytes of one file of a model; Range and ETag.
 * Runs on a worker thread. */
#include "server/handlers/handlers.h"

#include "core/model/model_store.h"
#include "server/limits/args.h"

#include <string.h>

int model_files_get(struct request *req, struct response *res, struct err *err)
{
	const char *id = NULL;
	int rc = args_id(req, "id", "model", "model", &id, err);
	if (rc < 0)
		return rc;
	const char *name = request_param(req, "name");
	if (!name || strlen(name) > MODEL_FILE_NAME_MAX ||
		args_check_text(name, "name", MODEL_FILE_NAME_MAX, NULL) < 0)
		return err_set(err, ERR_NOT_FOUND, NULL, "There is no such model file");
	struct db_conn *conn = NULL;
	rc = db_pool_get(req->app->pool, APP_DB_WAIT_MS, &conn, err);
	if (rc < 0)
		return rc;
	struct model_file file = { 0 };
	rc = model_store_file(conn, req->principal.tenant_id, id, name, &file, err);
	db_pool_put(req->app->pool, conn);
	if (rc < 0)
		return rc;
	return response_blob(res, req, req->principal.tenant_id, file.sha256, name, err);
}

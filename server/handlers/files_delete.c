/* SPDX-License-Identifier: Apache-2.0
 * DELETE /v1/files/{id}: the object, and its content unless something else has the same bytes.
 * Runs on a worker thread. */
#include "server/handlers/handlers.h"

#include "core/model/content.h"
#include "core/model/file_store.h"
#include "server/limits/args.h"
#include "server/storage/blob.h"

struct deletion {
	struct request *req;
	const char *id;
};

static int delete_in_tx(struct db_conn *conn, void *ctx, struct err *err)
{
	struct deletion *d = ctx;
	const char *tenant = d->req->principal.tenant_id;
	struct file file;
	int rc = file_store_get(conn, tenant, d->id, &file, err);
	if (rc == 0)
		rc = content_lock(conn, tenant, file.sha256, err);
	if (rc == 0)
		rc = file_store_delete(conn, tenant, d->id, err);
	if (rc < 0)
		return rc;
	bool unused = false;
	rc = content_drop(conn, tenant, file.sha256, &unused, err);
	if (rc < 0 || !unused)
		return rc;
	/* Last before the commit, under the content's lock: an upload of the same bytes waits. */
	return blob_store_remove(d->req->app->blobs, tenant, file.sha256, err);
}

int files_delete(struct request *req, struct response *res, struct err *err)
{
	struct deletion d = { .req = req };
	int rc = args_id(req, "id", "file", "file", &d.id, err);
	if (rc == 0)
		rc = db_tx(req->app->pool, APP_DB_WAIT_MS, delete_in_tx, &d, err);
	if (rc < 0)
		return rc;
	json_begin_object(&res->json);
	json_field_str(&res->json, "id", d.id);
	json_field_str(&res->json, "object", "file");
	json_field_bool(&res->json, "deleted", true);
	json_end_object(&res->json);
	return 0;
}

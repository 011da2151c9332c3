/* SPDX-License-Identifier: Apache-2.0
 * PUT /agent/v1/blobs/{sha256}: content of the attempt's tenant, on disk and hashed by the daemon
 * already. 201 when it is new, 200 when it was stored before. Runs on a worker thread. */
#include "server/handlers/handlers.h"

#include "core/model/content.h"
#include "server/http/multipart.h"
#include "server/limits/attempt_fence.h"
#include "server/storage/blob.h"

#include <string.h>

struct put {
	struct request *req;
	struct blob_fence fence;
	bool is_new;
	bool published; /* by an earlier try of the transaction */
};

static int put_in_tx(struct db_conn *conn, void *ctx, struct err *err)
{
	struct put *p = ctx;
	const struct upload *u = p->req->upload;
	struct attempt_capability capability;
	int rc = attempt_fence_check(conn, p->req, &p->fence, &capability, err);
	if (rc == 0)
		rc = content_touch(conn, capability.tenant_id, p->fence.sha256, u->bytes, &p->is_new, err);
	if (rc < 0 || p->published)
		return rc;
	rc = blob_store_publish(
		p->req->app->blobs, u->temp_path, capability.tenant_id, p->fence.sha256, err);
	p->published = rc == 0;
	return rc;
}

int agent_blob_put(struct request *req, struct response *res, struct err *err)
{
	struct put p = { .req = req };
	int rc = attempt_fence_read(req, &p.fence, err);
	if (rc < 0)
		return rc;
	if (req->upload == NULL || !req->upload->has_file)
		return err_set(err, ERR_INVALID_REQUEST, NULL, "The request has no content.");
	if (strcmp(req->upload->sha256, p.fence.sha256) != 0)
		return err_set(err, ERR_INVALID_DATA, NULL,
			"The content's SHA-256 is %s, not the one in the path.", req->upload->sha256);
	rc = blob_store_sync(req->upload->temp_path, err);
	if (rc == 0)
		rc = db_tx(req->app->pool, APP_DB_WAIT_MS, put_in_tx, &p, err);
	if (rc < 0)
		return rc;
	res->status = p.is_new ? 201 : 200;
	json_begin_object(&res->json);
	json_field_str(&res->json, "sha256", p.fence.sha256);
	json_field_i64(&res->json, "bytes", req->upload->bytes);
	json_end_object(&res->json);
	return 0;
}

/* SPDX-License-Identifier: Apache-2.0
 * GET /agent/v1/blobs/{sha256}: an input or a checkpoint of the attempt's job, for as long as the
 * attempt lives and where its residency allows. Runs on a worker thread. */
#include "server/handlers/handlers.h"

#include "core/model/attempt_store.h"
#include "core/model/residency.h"
#include "server/limits/attempt_fence.h"

struct fetch {
	struct request *req;
	struct blob_fence fence;
	struct attempt_capability capability;
	bool allowed;
};

/* The decision's row is written whatever it says. */
static int fetch_in_tx(struct db_conn *conn, void *ctx, struct err *err)
{
	struct fetch *f = ctx;
	struct residency_set set;
	int rc = attempt_fence_check(conn, f->req, &f->fence, &f->capability, err);
	if (rc < 0)
		return rc;
	if (!f->capability.serves)
		return err_set(err, ERR_NOT_FOUND, NULL, "The job has no such content.");
	rc = residency_set_parse(f->capability.residency, &set, err);
	if (rc < 0)
		return rc;
	struct residency_question question = {
		.ask = RESIDENCY_FETCH,
		.tenant_id = f->capability.tenant_id,
		.subject = f->fence.attempt_id,
		.allowed_set = &set,
		.place = f->capability.region,
	};
	return residency_decide(conn, &question, &f->allowed, err);
}

int agent_blob_get(struct request *req, struct response *res, struct err *err)
{
	struct fetch f = { .req = req };
	int rc = attempt_fence_read(req, &f.fence, err);
	if (rc == 0)
		rc = db_tx(req->app->pool, APP_DB_WAIT_MS, fetch_in_tx, &f, err);
	if (rc < 0)
		return rc;
	if (!f.allowed)
		return ERR_RESIDENCY;
	return response_blob(res, req, f.capability.tenant_id, f.fence.sha256, f.fence.sha256, err);
}

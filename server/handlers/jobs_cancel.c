/* SPDX-License-Identifier: Apache-2.0
 * POST /v1/jobs/{id}/cancel: a durable wish, asked as often as one likes. Runs on a worker
 * thread. */
#include "server/handlers/handlers.h"

#include "core/model/job.h"
#include "core/model/job_render.h"
#include "server/http/hub.h"
#include "server/limits/args.h"
#include "server/limits/idempotency.h"
#include "server/scheduler/scheduler.h"

#include <stdio.h>

struct cancellation {
	struct request *req;
	struct response *res;
	const char *job_id;
	struct job_cancelled done;
	bool replayed;
};

static int cancel_in_tx(struct db_conn *conn, void *ctx, struct err *err)
{
	struct cancellation *c = ctx;
	const char *tenant_id = c->req->principal.tenant_id;
	struct idempotency idem;
	c->replayed = false;
	int rc = idempotency_begin(c->req, conn, NULL, &idem, c->res, &c->replayed, err);
	if (rc < 0 || c->replayed)
		return rc;
	rc = job_cancel(conn, tenant_id, c->job_id, &c->done, err);
	if (rc == 0)
		rc = job_render_one(conn, tenant_id, c->job_id, &c->res->json, err);
	return rc < 0 ? rc : idempotency_finish(&idem, conn, c->res, NULL, err);
}

static void touch(struct app *app, const char *kind, const char *id)
{
	char topic[IDENT_MAX + 8];
	snprintf(topic, sizeof(topic), "%s:%s", kind, id);
	hub_touch(app->hub, topic);
}

int jobs_cancel(struct request *req, struct response *res, struct err *err)
{
	struct cancellation c = { .req = req, .res = res };
	int rc = args_id(req, "id", "job", "job", &c.job_id, err);
	if (rc == 0)
		rc = db_tx(req->app->pool, APP_DB_WAIT_MS, cancel_in_tx, &c, err);
	if (rc < 0 || c.replayed)
		return rc;
	touch(req->app, "job", c.job_id);
	if (c.done.agent_id[0] != '\0')
		touch(req->app, "agent", c.done.agent_id);
	scheduler_wake(req->app->scheduler);
	return 0;
}

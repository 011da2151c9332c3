/* SPDX-License-Identifier: Apache-2.0
 * POST /v1/jobs/{id}/cancel: a durable wish, asked as often as one likes. Runs on a worker
 * thread. */
#include "server/handlers/handlers.h"

#include "core/model/job.h"
#include "core/model/job_render.h"
#include "server/http/hub.h"
#include "server/limits/args.h"
#include "server/scheduler/scheduler.h"

#include <stdio.h>

struct cancellation {
	struct request *req;
	struct response *res;
	const char *job_id;
	struct job_cancelled done;
};

static int cancel_in_tx(struct db_conn *conn, void *ctx, struct err *err)
{
	struct cancellation *c = ctx;
	buf_reset(&c->res->body);
	json_writer_init(&c->res->json, &c->res->body);
	const char *tenant_id = c->req->principal.tenant_id;
	int rc = job_cancel(conn, tenant_id, c->job_id, &c->done, err);
	return rc < 0 ? rc : job_render_one(conn, tenant_id, c->job_id, &c->res->json, err);
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
	if (rc < 0)
		return rc;
	touch(req->app, "job", c.job_id);
	if (c.done.agent_id[0] != '\0')
		touch(req->app, "agent", c.done.agent_id);
	scheduler_wake(req->app->scheduler);
	return 0;
}

/* SPDX-License-Identifier: Apache-2.0
 * POST /v1/tenants: the operator makes a tenant.
 * Runs on a worker thread. */
#include "server/handlers/handlers.h"

#include "core/base/ident.h"
#include "core/model/tenant_store.h"
#include "server/limits/args.h"
#include "server/limits/idempotency.h"

struct creation {
	struct request *req;
	struct response *res;
	char id[IDENT_MAX];
	const char *name;
	struct residency_set residency;
};

static int read_body(struct creation *c, struct err *err)
{
	struct json_obj o;
	json_obj_open(&o, c->req->json, "$", err);
	json_obj_need(&o, "name");
	json_obj_str(&o, "name", 1, TENANT_NAME_MAX, &c->name);
	args_json_regions(&o, "residency", &c->residency);
	int rc = json_obj_close(&o);
	if (rc == 0)
		rc = args_check_text(c->name, "$.name", TENANT_NAME_MAX, err);
	if (rc == 0 && c->residency.count == 0)
		rc = residency_set_add(&c->residency, "any", err);
	return rc;
}

static int create_in_tx(struct db_conn *conn, void *ctx, struct err *err)
{
	struct creation *c = ctx;
	struct idempotency idem;
	bool replayed = false;
	int rc = idempotency_begin(c->req, conn, NULL, &idem, c->res, &replayed, err);
	if (rc < 0 || replayed)
		return rc;
	rc = tenant_store_insert(conn, c->id, c->name, &c->residency, err);
	if (rc == 0)
		rc = tenant_store_write(conn, c->id, &c->res->json, err);
	if (rc < 0)
		return rc;
	response_created(c->res, "/v1/tenants/%s", c->id);
	return idempotency_finish(&idem, conn, c->res, NULL, err);
}

int tenants_create(struct request *req, struct response *res, struct err *err)
{
	struct creation c = { .req = req, .res = res };
	int rc = read_body(&c, err);
	if (rc < 0)
		return rc;
	ident_new(req->app->clock, "tenant", c.id);
	return db_tx(req->app->pool, APP_DB_WAIT_MS, create_in_tx, &c, err);
}

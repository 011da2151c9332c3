/* SPDX-License-Identifier: Apache-2.0
 * POST /v1/devices/{id}/return: an operator has looked at a cordoned device; jobs are placed on it
 * again. Runs on a worker thread. */
#include "server/handlers/handlers.h"

#include "core/base/log.h"
#include "core/model/device_store.h"
#include "server/limits/args.h"
#include "server/scheduler/scheduler.h"

struct returned {
	const char *id;
	bool was_cordoned;
};

static int return_in_tx(struct db_conn *conn, void *ctx, struct err *err)
{
	struct returned *d = ctx;
	return device_store_return(conn, d->id, &d->was_cordoned, err);
}

int devices_return(struct request *req, struct response *res, struct err *err)
{
	struct returned d = { .id = NULL };
	int rc = args_id(req, "id", "dev", "device", &d.id, err);
	if (rc == 0)
		rc = db_tx(req->app->pool, APP_DB_WAIT_MS, return_in_tx, &d, err);
	if (rc < 0)
		return rc;
	if (d.was_cordoned) {
		log_info("device.returned", LOG_STR("device_id", d.id), LOG_STR("by", req->principal.id));
		scheduler_wake(req->app->scheduler);
	}
	json_begin_object(&res->json);
	json_field_str(&res->json, "id", d.id);
	json_field_str(&res->json, "object", "device");
	json_field_bool(&res->json, "was_cordoned", d.was_cordoned);
	json_end_object(&res->json);
	return 0;
}

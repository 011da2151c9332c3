/* SPDX-License-Identifier: Apache-2.0
 * POST /agent/v1/poll: the whole list of what this machine should run, at once when it differs
 * from what the machine knows, otherwise when it changes or the wait is over. Runs on a worker
 * thread, again after each wake-up. */
#include "server/handlers/handlers.h"

#include "core/model/agent_store.h"
#include "core/model/attempt_store.h"

#include <stdio.h>

enum { WAIT_MAX_MS = 25000 };

int agent_poll(struct request *req, struct response *res, struct err *err)
{
	const char *agent_id = NULL;
	int64_t known = -1, wait_ms = 0, version = 0;
	struct json_obj o;
	json_obj_open(&o, req->json, "$", err);
	json_obj_need(&o, "agent_id");
	json_obj_str(&o, "agent_id", 1, IDENT_MAX - 1, &agent_id);
	json_obj_i64(&o, "version", -1, INT64_MAX, &known);
	json_obj_i64(&o, "wait_ms", 0, INT64_MAX, &wait_ms);
	int rc = json_obj_close(&o);
	if (rc < 0)
		return rc;
	struct db_conn *conn = NULL;
	rc = db_pool_get(req->app->pool, APP_DB_WAIT_MS, &conn, err);
	if (rc < 0)
		return rc;
	rc = agent_store_seen(conn, req->principal.id, agent_id, &version, err);
	if (rc == 0)
		rc = attempt_store_write_poll(conn, agent_id, &res->json, err);
	db_pool_put(req->app->pool, conn);
	if (rc < 0)
		return rc;
	if (version == known && wait_ms > 0 && !req->wait_over) {
		char topic[IDENT_MAX + 8];
		snprintf(topic, sizeof(topic), "agent:%s", agent_id);
		response_wait(res, topic, (int)(wait_ms < WAIT_MAX_MS ? wait_ms : WAIT_MAX_MS));
	}
	return 0;
}

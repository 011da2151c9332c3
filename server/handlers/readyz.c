/* SPDX-License-Identifier: Apache-2.0
 * GET /readyz: requests can be served now: the database answers and has the schema of this build.
 */
#include "core/db/migrate.h"
#include "server/handlers/handlers.h"
#include "server/settings.h"

int readyz(struct request *req, struct response *res, struct err *err)
{
	struct db_conn *conn = NULL;
	int r = db_pool_get(req->app->pool, APP_DB_WAIT_MS, &conn, err);
	if (r == 0)
		r = migrate_check(conn, req->app->settings->migrations_dir, err);
	db_pool_put(req->app->pool, conn);
	if (r < 0)
		return r;
	json_begin_object(&res->json);
	json_field_str(&res->json, "status", "ready");
	json_field_str(&res->json, "version", TRAINYARD_VERSION);
	json_end_object(&res->json);
	return 0;
}

/* SPDX-License-Identifier: Apache-2.0
 * DELETE /v1/tenants/{id}/api-keys/{key_id}: the key is refused from now on; its row stays.
 * Runs on a worker thread. */
#include "server/handlers/handlers.h"

#include "core/model/api_key_store.h"
#include "server/limits/args.h"

int api_keys_revoke(struct request *req, struct response *res, struct err *err)
{
	const char *tenant_id = NULL;
	const char *key_id = NULL;
	int rc = args_id(req, "id", "tenant", "tenant", &tenant_id, err);
	if (rc == 0)
		rc = args_id(req, "key_id", "key", "API key", &key_id, err);
	if (rc < 0)
		return rc;
	struct db_conn *conn = NULL;
	rc = db_pool_get(req->app->pool, APP_DB_WAIT_MS, &conn, err);
	if (rc < 0)
		return rc;
	rc = api_key_store_revoke(conn, tenant_id, key_id, err);
	db_pool_put(req->app->pool, conn);
	if (rc < 0)
		return rc;
	json_begin_object(&res->json);
	json_field_str(&res->json, "id", key_id);
	json_field_str(&res->json, "object", "api_key");
	json_field_bool(&res->json, "deleted", true);
	json_end_object(&res->json);
	return 0;
}

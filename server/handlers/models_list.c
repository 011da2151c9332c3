/* SPDX-License-Identifier: Apache-2.0
 * GET /v1/models: a tenant's finished models, newest first, then the presets.
 * Runs on a worker thread. */
#include "server/handlers/handlers.h"

#include "core/model/model_store.h"
#include "core/spec/preset.h"
#include "server/limits/args.h"

/* The cursor is a preset's name: only the limit is left to read. */
static int page_after_preset(const struct request *req, struct page *ret, struct err *err)
{
	int64_t limit = PAGE_LIMIT_DEFAULT;
	if (request_query(req, "before"))
		return err_set(err, ERR_INVALID_VALUE, "before",
			"before cannot be joined with after, which names a preset");
	int rc = request_query_i64(req, "limit", 1, PAGE_LIMIT_MAX, PAGE_LIMIT_DEFAULT, &limit, err);
	ret->limit = (int)limit;
	return rc;
}

int models_list(struct request *req, struct response *res, struct err *err)
{
	static const char *const known[] = { "after", "before", "limit", NULL };
	struct page page = { 0 };
	const char *after = request_query(req, "after");
	const struct preset *preset = after ? preset_find(after) : NULL;
	int rc = args_only(req, known, err);
	if (rc == 0 && !preset)
		rc = args_page(req, "model", &page, err);
	if (rc == 0 && preset)
		rc = page_after_preset(req, &page, err);
	if (rc < 0)
		return rc;
	struct db_conn *conn = NULL;
	rc = db_pool_get(req->app->pool, APP_DB_WAIT_MS, &conn, err);
	if (rc < 0)
		return rc;
	rc = model_store_list(conn, req->principal.tenant_id, &page, preset, &res->json, err);
	db_pool_put(req->app->pool, conn);
	return rc;
}

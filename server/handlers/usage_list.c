/* SPDX-License-Identifier: Apache-2.0
 * GET /v1/usage: device time and its cost in a window, by job, instance type or day. Runs on a
 * worker thread. */
#include "server/handlers/handlers.h"

#include "core/model/usage_store.h"
#include "server/limits/args.h"

#include <string.h>

/* A time of the query, or USAGE_UNSET. */
static int time_arg(const struct request *req, const char *name, int64_t *ret_us, struct err *err)
{
	const char *text = request_query(req, name);
	int64_t us = USAGE_UNSET;
	if (text && (clock_parse_rfc3339(text, &us) < 0 || us < 0))
		return err_set(err, ERR_INVALID_VALUE, name,
			"%s must be a time like 2026-11-30T02:04:01Z (RFC 3339), 1970 or later", name);
	*ret_us = us;
	return 0;
}

static enum usage_group group_of(const char *word)
{
	for (int i = 0; usage_group_words[i]; i++)
		if (word && strcmp(word, usage_group_words[i]) == 0)
			return (enum usage_group)i;
	return USAGE_BY_JOB;
}

int usage_list(struct request *req, struct response *res, struct err *err)
{
	static const char *const known[] = { "from", "to", "group_by", NULL };
	struct usage_window window = { 0 };
	const char *group = NULL;
	int rc = args_only(req, known, err);
	if (rc == 0)
		rc = time_arg(req, "from", &window.from_us, err);
	if (rc == 0)
		rc = time_arg(req, "to", &window.to_us, err);
	if (rc == 0)
		rc = args_word(req, "group_by", usage_group_words, &group, err);
	if (rc < 0)
		return rc;
	struct db_conn *conn = NULL;
	rc = db_pool_get(req->app->pool, APP_DB_WAIT_MS, &conn, err);
	if (rc < 0)
		return rc;
	rc = usage_store_write(
		conn, req->principal.tenant_id, &window, group_of(group), &res->json, err);
	db_pool_put(req->app->pool, conn);
	return rc;
}

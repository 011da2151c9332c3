/* SPDX-License-Identifier: Apache-2.0
 * SQL of stored content. One connection, one thread. */
#include "core/model/content.h"

int content_lock(struct db_conn *conn, const char *tenant_id, const char *sha256, struct err *err)
{
	return db_exec(conn, NULL, err,
		"select pg_advisory_xact_lock(hashtextextended($1::text || '/' || $2::text, 0))",
		DB_TEXT(tenant_id), DB_TEXT(sha256));
}

int content_touch(struct db_conn *conn, const char *tenant_id, const char *sha256, int64_t bytes,
	bool *ret_new, struct err *err)
{
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc = content_lock(conn, tenant_id, sha256, err);
	if (rc == 0)
		rc = db_exec(conn, &r, err,
			"insert into blobs as b (tenant_id, sha256, bytes) values ($1, $2, $3)"
			" on conflict (tenant_id, sha256) do update set reused_at = yard_now()"
			" returning b.reused_at is null",
			DB_TEXT(tenant_id), DB_TEXT(sha256), DB_I64(bytes));
	if (rc == 0)
		*ret_new = db_bool(r, 0, 0);
	return rc;
}

int content_drop(struct db_conn *conn, const char *tenant_id, const char *sha256, bool *ret_dropped,
	struct err *err)
{
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc = db_exec(conn, &r, err,
		"delete from blobs b where b.tenant_id = $1 and b.sha256 = $2 and not " CONTENT_REFERRED
		" and (b.reused_at is null"
		"  or b.reused_at < yard_now() - $3 * interval '1 millisecond') returning b.sha256",
		DB_TEXT(tenant_id), DB_TEXT(sha256), DB_I64(CONTENT_REUSE_MS));
	if (rc == 0)
		*ret_dropped = db_rows(r) > 0;
	return rc;
}

/* SPDX-License-Identifier: Apache-2.0
 * The SQL of checkpoints, models and their content. */
#include "core/model/checkpoint_store.h"

#include "core/base/clock.h"
#include "core/model/content.h"

#include <stdio.h>
#include <string.h>

#define FILES "jsonb_to_recordset($2::jsonb) as f (name text, sha256 text, bytes bigint)"

/* Sum of the files' bytes; the first content that is not stored is named. */
static int check_stored(struct db_conn *conn, const char *tenant_id, const char *files_json,
	int64_t *ret_bytes, struct err *err)
{
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc = db_exec(conn, &r, err,
		"select coalesce(sum(f.bytes), 0)::bigint, min(f.name) filter (where b.sha256 is null)"
		" from " FILES
		" left join blobs b on b.tenant_id = $1 and b.sha256 = f.sha256 and b.bytes = f.bytes",
		DB_TEXT(tenant_id), DB_TEXT(files_json));
	if (rc < 0)
		return rc;
	if (!db_is_null(r, 0, 1))
		return err_set(err, ERR_INVALID_VALUE, "files",
			"The content of '%.100s' has not been uploaded.", db_str(r, 0, 1));
	*ret_bytes = db_i64(r, 0, 0);
	return 0;
}

/* A checkpoint beyond all earlier ones is progress. */
static int note_progress(struct db_conn *conn, const char *job_id, int64_t step, struct err *err)
{
	return db_exec(conn, NULL, err,
		"update jobs set barren_failures = 0 where id = $1 and barren_failures > 0"
		" and not exists (select from checkpoints where job_id = $1 and step >= $2)",
		DB_TEXT(job_id), DB_I64(step));
}

int checkpoint_store_insert(struct db_conn *conn, const struct attempt *a, int64_t step,
	const char *files_json, const char *metrics_json, char ret_id[static IDENT_MAX],
	int64_t *ret_bytes, struct err *err)
{
	char id[IDENT_MAX];
	int64_t bytes = 0;
	int rc = check_stored(conn, a->tenant_id, files_json, &bytes, err);
	if (rc == 0)
		rc = note_progress(conn, a->job_id, step, err);
	if (rc < 0)
		return rc;
	ident_new(clock_system(), "ckpt", id);
	cleanup(db_result_freep) struct db_result *r = NULL;
	rc = db_exec(conn, &r, err,
		"with c as (insert into checkpoints"
		"  (id, job_id, tenant_id, attempt_id, step, bytes, metrics, residency)"
		"  select $1, j.id, j.tenant_id, $4, $5, $6, coalesce($7::jsonb, '{}'), j.residency"
		"  from jobs j where j.id = $3 on conflict (attempt_id, step) do nothing returning id),"
		" cf as (insert into checkpoint_files (checkpoint_id, name, sha256, bytes)"
		"  select c.id, f.name, f.sha256, f.bytes from c, " FILES ")"
		" select id from c union all"
		" select id from checkpoints where attempt_id = $4 and step = $5",
		DB_TEXT(id), DB_TEXT(files_json), DB_TEXT(a->job_id), DB_TEXT(a->id), DB_I64(step),
		DB_I64(bytes), DB_TEXT(metrics_json));
	if (rc < 0)
		return rc;
	snprintf(ret_id, IDENT_MAX, "%s", db_str(r, 0, 0));
	*ret_bytes = bytes;
	return 0;
}

int checkpoint_store_trim(struct db_conn *conn, const char *job_id, int64_t keep, struct err *err)
{
	return db_exec(conn, NULL, err,
		"update checkpoints c set trimmed_at = yard_now() from ("
		"  select id, row_number() over (order by step desc, id desc) as place"
		"  from checkpoints where job_id = $1 and trimmed_at is null) p"
		" where c.id = p.id and p.place > greatest($2, 1)"
		" and not exists (select from attempts a where a.job_id = $1 and a.status <> 'ended'"
		"  and a.resume_checkpoint_id = c.id)",
		DB_TEXT(job_id), DB_I64(keep));
}

static int drop_one(struct db_conn *conn, const char *tenant_id, const char *sha256,
	checkpoint_remove_fn remove, void *ctx, struct err *err)
{
	bool dropped = false;
	int rc = content_lock(conn, tenant_id, sha256, err);
	if (rc == 0)
		rc = content_drop(conn, tenant_id, sha256, &dropped, err);
	if (rc < 0 || !dropped)
		return rc;
	rc = remove(ctx, tenant_id, sha256, err);
	/* Not there: an earlier call was cut off between the bytes and its commit. */
	return rc == ERR_NOT_FOUND ? 0 : rc;
}

static int drop_content(struct db_conn *conn, const char *tenant_id, const char *checkpoint_id,
	checkpoint_remove_fn remove, void *ctx, struct err *err)
{
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc = db_exec(conn, &r, err,
		"select distinct sha256 from checkpoint_files where checkpoint_id = $1 order by sha256",
		DB_TEXT(checkpoint_id));
	for (int i = 0; rc == 0 && i < db_rows(r); i++)
		rc = drop_one(conn, tenant_id, db_str(r, i, 0), remove, ctx, err);
	if (rc < 0)
		return rc;
	/* Done unless something was left alone only because it had been stored again lately. */
	return db_exec(conn, NULL, err,
		"update checkpoints set dropped_at = yard_now() where id = $1"
		" and not exists (select from jobs where base_checkpoint_id = $1 and finished_at is null)"
		" and not exists"
		" (select from checkpoint_files x join blobs b on b.tenant_id = $2"
		"  and b.sha256 = x.sha256 where x.checkpoint_id = $1 and not " CONTENT_REFERRED ")",
		DB_TEXT(checkpoint_id), DB_TEXT(tenant_id));
}

int checkpoint_store_drop(
	struct db_conn *conn, checkpoint_remove_fn remove, void *ctx, int *ret_dropped, struct err *err)
{
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc = db_exec(conn, &r, err,
		"select c.id, c.tenant_id from checkpoints c where c.trimmed_at is not null"
		" and c.dropped_at is null and not exists (select from jobs j"
		"  where j.base_checkpoint_id = c.id and j.finished_at is null)"
		" order by c.trimmed_at limit $1 for update of c skip locked",
		DB_I64(CHECKPOINT_STORE_DROPS_MAX));
	for (int i = 0; rc == 0 && i < db_rows(r); i++)
		rc = drop_content(conn, db_str(r, i, 1), db_str(r, i, 0), remove, ctx, err);
	if (rc == 0)
		*ret_dropped = db_rows(r);
	return rc;
}

int checkpoint_store_insert_model(struct db_conn *conn, const struct attempt *a,
	const char *files_json, const char *metrics_json, char ret_id[static IDENT_MAX],
	struct err *err)
{
	char id[IDENT_MAX];
	int64_t bytes = 0;
	int rc = check_stored(conn, a->tenant_id, files_json, &bytes, err);
	if (rc < 0)
		return rc;
	ident_new(clock_system(), "model", id);
	rc = db_exec(conn, NULL, err,
		"with m as (insert into models (id, job_id, tenant_id, bytes, metrics, residency)"
		"  select $1, j.id, j.tenant_id, $4, coalesce($5::jsonb, '{}'), j.residency"
		"  from jobs j where j.id = $3 returning id)"
		" insert into model_files (model_id, name, sha256, bytes)"
		" select m.id, f.name, f.sha256, f.bytes from m, " FILES,
		DB_TEXT(id), DB_TEXT(files_json), DB_TEXT(a->job_id), DB_I64(bytes), DB_TEXT(metrics_json));
	if (rc == 0)
		snprintf(ret_id, IDENT_MAX, "%s", id);
	return rc;
}

/* SPDX-License-Identifier: Apache-2.0
 * SQL of submitted jobs. One connection, one thread. */
#include "core/model/job_store.h"

#include <stdio.h>

static int insert_files(struct db_conn *conn, const char *job_id, const char *role,
	const char *const *ids, int count, struct err *err)
{
	for (int i = 0; i < count; i++) {
		int rc = db_exec(conn, NULL, err,
			"insert into job_files (job_id, role, position, file_id) values ($1, $2, $3, $4)",
			DB_TEXT(job_id), DB_TEXT(role), DB_I64(i), DB_TEXT(ids[i]));
		if (rc < 0)
			return rc;
	}
	return 0;
}

int job_store_insert(struct db_conn *conn, const struct job_new *job, struct err *err)
{
	char regions[RESIDENCY_TEXT_MAX];
	residency_set_format(job->residency, regions);
	int rc = db_exec(conn, NULL, err,
		"insert into jobs (id, tenant_id, name, status, spec, plan, metadata, residency,"
		" instance_type, device_count, priority, max_runtime_s, created_by,"
		" base_checkpoint_id, base_model_id, parallelism_chosen)"
		" values ($1, $2, $3, 'validating_files', $4, $5, coalesce($6, '{}')::jsonb,"
		" $7::text[], $8, $9, $10, $11, $12, nullif($13, ''), nullif($14, ''),"
		" $15::jsonb)",
		DB_TEXT(job->id), DB_TEXT(job->tenant_id), DB_TEXT(job->name), DB_TEXT(job->spec_json),
		DB_TEXT(job->plan_json), DB_TEXT(job->metadata_json), DB_TEXT(regions),
		DB_TEXT(job->instance_type), DB_I64(job->device_count), DB_I64(job->priority),
		DB_I64(job->max_runtime_s), DB_TEXT(job->created_by), DB_TEXT(job->base_checkpoint_id),
		DB_TEXT(job->base_model_id), DB_TEXT(job->chosen_json));
	if (rc < 0)
		return rc;
	rc = insert_files(
		conn, job->id, "training_file", job->training_files, job->training_file_count, err);
	if (rc < 0)
		return rc;
	rc = insert_files(
		conn, job->id, "validation_file", job->validation_files, job->validation_file_count, err);
	if (rc < 0 || job->tokenizer_file == NULL || job->tokenizer_file[0] == '\0')
		return rc;
	return insert_files(conn, job->id, "tokenizer", &job->tokenizer_file, 1, err);
}

int job_store_exists(struct db_conn *conn, const char *tenant_id, const char *id,
	bool *ret_finished, struct err *err)
{
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc = db_exec(conn, &r, err,
		"select status in ('succeeded', 'failed', 'cancelled') from jobs"
		" where id = $1 and tenant_id = $2",
		DB_TEXT(id), DB_TEXT(tenant_id));
	if (rc < 0)
		return rc;
	if (db_rows(r) == 0)
		return err_set(err, ERR_NOT_FOUND, NULL, "There is no such job");
	*ret_finished = db_bool(r, 0, 0);
	return 0;
}

int job_store_instance_types(
	struct db_conn *conn, char *ret_names, size_t max_bytes, struct err *err)
{
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc = db_exec(conn, &r, err,
		"select coalesce(string_agg(name, ', ' order by sort_order, name), '')"
		" from instance_types");
	if (rc < 0)
		return rc;
	snprintf(ret_names, max_bytes, "%s", db_str(r, 0, 0));
	return 0;
}

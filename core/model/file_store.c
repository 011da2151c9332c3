/* SPDX-License-Identifier: Apache-2.0
 * SQL of files and their content. One connection, one thread. */
#include "core/model/file_store.h"

#include "core/json/writer.h"
#include "core/model/sql_text.h"

#include <stdio.h>
#include <string.h>

int file_store_insert(
	struct db_conn *conn, const char *tenant_id, const struct file *file, struct err *err)
{
	char regions[RESIDENCY_TEXT_MAX];
	residency_set_format(&file->residency, regions);
	int rc = db_exec(conn, NULL, err,
		"insert into blobs (tenant_id, sha256, bytes) values ($1, $2, $3)"
		" on conflict do nothing",
		DB_TEXT(tenant_id), DB_TEXT(file->sha256), DB_I64(file->bytes));
	if (rc < 0)
		return rc;
	return db_exec(conn, NULL, err,
		"insert into files (id, tenant_id, filename, purpose, bytes, sha256, status,"
		" residency) values ($1, $2, $3, $4, $5, $6, $7, $8::text[])",
		DB_TEXT(file->id), DB_TEXT(tenant_id), DB_TEXT(file->filename), DB_TEXT(file->purpose),
		DB_I64(file->bytes), DB_TEXT(file->sha256),
		DB_TEXT(file->processed ? "processed" : "uploaded"), DB_TEXT(regions));
}

#define FILE_GET                                                                   \
	"select id, filename, purpose, bytes, sha256, status = 'processed', residency" \
	" from files where id = $1 and tenant_id = $2 and deleted_at is null"

static int get(struct db_conn *conn, const char *sql, const char *tenant_id, const char *id,
	struct file *ret, struct err *err)
{
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc = db_exec(conn, &r, err, sql, DB_TEXT(id), DB_TEXT(tenant_id));
	if (rc < 0)
		return rc;
	if (db_rows(r) == 0)
		return err_set(err, ERR_NOT_FOUND, NULL, "There is no such file");
	struct file f = { .bytes = db_i64(r, 0, 3), .processed = db_bool(r, 0, 5) };
	snprintf(f.id, sizeof(f.id), "%s", db_str(r, 0, 0));
	snprintf(f.filename, sizeof(f.filename), "%s", db_str(r, 0, 1));
	snprintf(f.purpose, sizeof(f.purpose), "%s", db_str(r, 0, 2));
	snprintf(f.sha256, sizeof(f.sha256), "%s", db_str(r, 0, 4));
	rc = residency_set_parse(db_str(r, 0, 6), &f.residency, err);
	if (rc < 0)
		return rc;
	*ret = f;
	return 0;
}

int file_store_get(
	struct db_conn *conn, const char *tenant_id, const char *id, struct file *ret, struct err *err)
{
	return get(conn, FILE_GET, tenant_id, id, ret, err);
}

int file_store_hold(
	struct db_conn *conn, const char *tenant_id, const char *id, struct file *ret, struct err *err)
{
	return get(conn, FILE_GET " for key share", tenant_id, id, ret, err);
}

/* clang-format off */
#define FILE_COLUMNS                                                            \
	"id, bytes, " SQL_UNIX("created_at") ", filename, purpose, status, sha256," \
	" array_to_json(residency)"
/* clang-format on */

static void write_row(struct json_writer *w, const struct db_result *r, int row)
{
	json_begin_object(w);
	json_field_str(w, "id", db_str(r, row, 0));
	json_field_str(w, "object", "file");
	json_field_i64(w, "bytes", db_i64(r, row, 1));
	json_field_i64(w, "created_at", db_i64(r, row, 2));
	json_field_null(w, "expires_at");
	json_field_str(w, "filename", db_str(r, row, 3));
	json_field_str(w, "purpose", db_str(r, row, 4));
	json_field_str(w, "status", db_str(r, row, 5));
	json_field_null(w, "status_details");
	json_field_str(w, "sha256", db_str(r, row, 6));
	json_field_raw(w, "residency", db_str(r, row, 7));
	json_end_object(w);
}

int file_store_write(struct db_conn *conn, const char *tenant_id, const char *id,
	struct json_writer *w, struct err *err)
{
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc = db_exec(conn, &r, err,
		"select " FILE_COLUMNS
		" from files where id = $1 and tenant_id = $2 and deleted_at is null",
		DB_TEXT(id), DB_TEXT(tenant_id));
	if (rc < 0)
		return rc;
	if (db_rows(r) == 0)
		return err_set(err, ERR_NOT_FOUND, NULL, "There is no such file");
	write_row(w, r, 0);
	return 0;
}

#define FILE_LIST                                                                     \
	"select " FILE_COLUMNS " from files where tenant_id = $1 and id < $2 and id > $3" \
	" and deleted_at is null and ($4::text is null or purpose = $4) "

int file_store_list(struct db_conn *conn, const char *tenant_id, const char *purpose,
	const struct page *page, struct json_writer *w, struct err *err)
{
	struct page_bounds b;
	page_bounds(page, "file", &b);
	const char *sql =
		b.ascending ? FILE_LIST "order by id asc limit $5" : FILE_LIST "order by id desc limit $5";
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc = db_exec(conn, &r, err, sql, DB_TEXT(tenant_id), DB_TEXT(b.below), DB_TEXT(b.above),
		DB_TEXT(purpose), DB_I64(b.fetch));
	if (rc < 0)
		return rc;
	page_begin(w);
	for (int i = 0; i < page_count(page, r); i++)
		write_row(w, r, page_row(page, r, i));
	page_end(w, page, r, 0);
	return 0;
}

int file_store_delete(struct db_conn *conn, const char *tenant_id, const char *id, struct err *err)
{
	/* Waits for a submit that holds the file, and then sees its job. */
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc = db_exec(conn, &r, err,
		"select 1 from files where id = $1 and tenant_id = $2 and deleted_at is null"
		" for update",
		DB_TEXT(id), DB_TEXT(tenant_id));
	if (rc < 0)
		return rc;
	if (db_rows(r) == 0)
		return err_set(err, ERR_NOT_FOUND, NULL, "There is no such file");
	cleanup(db_result_freep) struct db_result *user = NULL;
	rc = db_exec(conn, &user, err,
		"select j.id from job_files f join jobs j on j.id = f.job_id where f.file_id = $1"
		" and j.status not in ('succeeded', 'failed', 'cancelled') limit 1",
		DB_TEXT(id));
	if (rc < 0)
		return rc;
	if (db_rows(user) > 0)
		return err_set(err, ERR_CONFLICT, NULL,
			"Job %s still needs this file: wait for its end or cancel it", db_str(user, 0, 0));
	return db_exec(
		conn, NULL, err, "update files set deleted_at = yard_now() where id = $1", DB_TEXT(id));
}

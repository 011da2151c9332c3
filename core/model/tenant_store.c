/* SPDX-License-Identifier: Apache-2.0
 * SQL of tenants. One connection, one thread. */
#include "core/model/tenant_store.h"

#include "core/json/writer.h"
#include "core/model/sql_text.h"

#define TENANT_COLUMNS \
	"id, name, array_to_json(residency)::text, currency, status, " SQL_TIME("created_at")

int tenant_store_insert(struct db_conn *conn, const char *id, const char *name,
	const struct residency_set *residency, struct err *err)
{
	char regions[RESIDENCY_TEXT_MAX];
	residency_set_format(residency, regions);
	return db_exec(conn, NULL, err,
		"insert into tenants (id, name, residency) values ($1, $2, $3::text[])", DB_TEXT(id),
		DB_TEXT(name), DB_TEXT(regions));
}

int tenant_store_residency(
	struct db_conn *conn, const char *id, struct residency_set *ret, struct err *err)
{
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc = db_exec(conn, &r, err, "select residency from tenants where id = $1", DB_TEXT(id));
	if (rc < 0)
		return rc;
	if (db_rows(r) == 0)
		return err_set(err, ERR_NOT_FOUND, NULL, "There is no such tenant");
	return residency_set_parse(db_str(r, 0, 0), ret, err);
}

static void write_row(struct json_writer *w, const struct db_result *r, int row)
{
	json_begin_object(w);
	json_field_str(w, "id", db_str(r, row, 0));
	json_field_str(w, "object", "tenant");
	json_field_str(w, "name", db_str(r, row, 1));
	json_field_raw(w, "residency", db_str(r, row, 2));
	json_field_str(w, "currency", db_str(r, row, 3));
	json_field_str(w, "status", db_str(r, row, 4));
	json_field_str(w, "created_at", db_str(r, row, 5));
	json_end_object(w);
}

int tenant_store_write(struct db_conn *conn, const char *id, struct json_writer *w, struct err *err)
{
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc =
		db_exec(conn, &r, err, "select " TENANT_COLUMNS " from tenants where id = $1", DB_TEXT(id));
	if (rc < 0)
		return rc;
	if (db_rows(r) == 0)
		return err_set(err, ERR_NOT_FOUND, NULL, "There is no such tenant");
	write_row(w, r, 0);
	return 0;
}

int tenant_store_list(
	struct db_conn *conn, const struct page *page, struct json_writer *w, struct err *err)
{
	struct page_bounds b;
	page_bounds(page, "tenant", &b);
	const char *sql = b.ascending
		? "select " TENANT_COLUMNS
		  " from tenants where id < $1 and id > $2 order by id asc limit $3"
		: "select " TENANT_COLUMNS
		  " from tenants where id < $1 and id > $2 order by id desc limit $3";
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc = db_exec(conn, &r, err, sql, DB_TEXT(b.below), DB_TEXT(b.above), DB_I64(b.fetch));
	if (rc < 0)
		return rc;
	page_begin(w);
	for (int i = 0; i < page_count(page, r); i++)
		write_row(w, r, page_row(page, r, i));
	page_end(w, page, r, 0);
	return 0;
}

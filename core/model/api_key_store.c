/* SPDX-License-Identifier: Apache-2.0
 * SQL of API keys. One connection, one thread. */
#include "core/model/api_key_store.h"

#include "core/json/writer.h"
#include "core/model/sql_text.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

static const char *const role_words[] = { "owner", "member", "operator", "agent" };

const char *api_key_role_word(enum api_key_role role)
{
	assert((size_t)role < ARRAY_LEN(role_words));
	return role_words[role];
}

static const char *or_null(const char *text)
{
	return text[0] ? text : NULL;
}

int api_key_store_insert(struct db_conn *conn, const struct api_key *key,
	const unsigned char hash[static API_KEY_HASH_BYTES], struct err *err)
{
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc = db_exec(conn, &r, err,
		"insert into api_keys (id, tenant_id, role, name, secret_hash, redacted, agent_region)"
		" select $1, $2, $3, $4, $5, $6, $7"
		" where $2::text is null or exists (select from tenants where id = $2)",
		DB_TEXT(key->id), DB_TEXT(or_null(key->tenant_id)), DB_TEXT(api_key_role_word(key->role)),
		DB_TEXT(key->name), DB_BYTES(hash, API_KEY_HASH_BYTES), DB_TEXT(key->redacted),
		DB_TEXT(or_null(key->agent_region)));
	if (rc < 0)
		return rc;
	if (db_affected(r) == 0)
		return err_set(err, ERR_NOT_FOUND, NULL, "There is no such tenant");
	return 0;
}

static void copy_text(char *to, size_t size, const char *from)
{
	snprintf(to, size, "%s", from ? from : "");
}

int api_key_store_find_by_hash(struct db_conn *conn,
	const unsigned char hash[static API_KEY_HASH_BYTES], struct api_key *ret, struct err *err)
{
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc = db_exec(conn, &r, err,
		"select k.id, k.tenant_id, k.role, k.name, k.redacted, k.agent_region,"
		" coalesce(t.status = 'active', true), k.revoked_at is not null,"
		" k.last_used_at is null or k.last_used_at < yard_now() - interval '1 minute'"
		" from api_keys k left join tenants t on t.id = k.tenant_id where k.secret_hash = $1",
		DB_BYTES(hash, API_KEY_HASH_BYTES));
	if (rc < 0)
		return rc;
	if (db_rows(r) == 0)
		return err_set(err, ERR_NOT_FOUND, NULL, "There is no such API key");
	struct api_key k = { 0 };
	copy_text(k.id, sizeof(k.id), db_str(r, 0, 0));
	copy_text(k.tenant_id, sizeof(k.tenant_id), db_str(r, 0, 1));
	const char *role = db_str(r, 0, 2);
	for (size_t i = 0; i < ARRAY_LEN(role_words); i++)
		if (strcmp(role, role_words[i]) == 0)
			k.role = (enum api_key_role)i;
	copy_text(k.name, sizeof(k.name), db_str(r, 0, 3));
	copy_text(k.redacted, sizeof(k.redacted), db_str(r, 0, 4));
	copy_text(k.agent_region, sizeof(k.agent_region), db_str(r, 0, 5));
	k.tenant_active = db_bool(r, 0, 6);
	k.revoked = db_bool(r, 0, 7);
	if (db_bool(r, 0, 8) && !k.revoked) {
		/* Skips a row that somebody holds: the note is not worth waiting for. */
		rc = db_exec(conn, NULL, err,
			"update api_keys set last_used_at = yard_now() where id ="
			" (select id from api_keys where id = $1 for update skip locked)",
			DB_TEXT(k.id));
		if (rc < 0)
			return rc;
	}
	*ret = k;
	return 0;
}

#define KEY_COLUMNS                                                                             \
	"id, tenant_id, role, name, redacted, agent_region, " SQL_TIME("created_at") ", " SQL_TIME( \
		"last_used_at") ", " SQL_TIME("revoked_at")

static void write_row(struct json_writer *w, const struct db_result *r, int row, const char *secret)
{
	json_begin_object(w);
	json_field_str(w, "id", db_str(r, row, 0));
	json_field_str(w, "object", "api_key");
	json_field_str(w, "tenant_id", db_str(r, row, 1));
	json_field_str(w, "role", db_str(r, row, 2));
	json_field_str(w, "name", db_str(r, row, 3));
	json_field_str(w, "redacted_value", db_str(r, row, 4));
	json_field_str(w, "agent_region", db_str(r, row, 5));
	json_field_str(w, "created_at", db_str(r, row, 6));
	json_field_str(w, "last_used_at", db_str(r, row, 7));
	json_field_str(w, "revoked_at", db_str(r, row, 8));
	if (secret)
		json_field_str(w, "key", secret);
	json_end_object(w);
}

int api_key_store_list(struct db_conn *conn, const char *tenant_id, const struct page *page,
	struct json_writer *w, struct err *err)
{
	struct page_bounds b;
	page_bounds(page, "key", &b);
	const char *sql = b.ascending
		? "select " KEY_COLUMNS " from api_keys where tenant_id = $1 and id < $2 and id > $3"
		  " order by id asc limit $4"
		: "select " KEY_COLUMNS " from api_keys where tenant_id = $1 and id < $2 and id > $3"
		  " order by id desc limit $4";
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc = db_exec(conn, &r, err, sql, DB_TEXT(tenant_id), DB_TEXT(b.below), DB_TEXT(b.above),
		DB_I64(b.fetch));
	if (rc < 0)
		return rc;
	page_begin(w);
	for (int i = 0; i < page_count(page, r); i++)
		write_row(w, r, page_row(page, r, i), NULL);
	page_end(w, page, r, 0);
	return 0;
}

int api_key_store_write(struct db_conn *conn, const char *id, const char *secret,
	struct json_writer *w, struct err *err)
{
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc =
		db_exec(conn, &r, err, "select " KEY_COLUMNS " from api_keys where id = $1", DB_TEXT(id));
	if (rc < 0)
		return rc;
	if (db_rows(r) == 0)
		return err_set(err, ERR_NOT_FOUND, NULL, "There is no such API key");
	write_row(w, r, 0, secret);
	return 0;
}

int api_key_store_revoke(
	struct db_conn *conn, const char *tenant_id, const char *id, struct err *err)
{
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc = db_exec(conn, &r, err,
		"update api_keys set revoked_at = coalesce(revoked_at, yard_now())"
		" where id = $2 and tenant_id = $1",
		DB_TEXT(tenant_id), DB_TEXT(id));
	if (rc < 0)
		return rc;
	if (db_affected(r) == 0)
		return err_set(err, ERR_NOT_FOUND, NULL, "There is no such API key");
	return 0;
}

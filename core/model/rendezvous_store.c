/* SPDX-License-Identifier: Apache-2.0
 * The SQL of rendezvous. */
#include "core/model/rendezvous_store.h"

#include <string.h>

bool rendezvous_key_is_valid(const char *key)
{
	static const char allowed[] = "abcdefghijklmnopqrstuvwxyz0123456789-_.";
	size_t n = strlen(key);
	return n > 0 && n <= RENDEZVOUS_KEY_MAX && key[0] != '.' && strspn(key, allowed) == n;
}

bool rendezvous_value_is_valid(const char *value)
{
	static const char allowed[] =
		"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=";
	size_t n = strlen(value);
	return n <= RENDEZVOUS_VALUE_MAX && n % 4 == 0 && strspn(value, allowed) == n;
}

static int check_room(struct db_conn *conn, const char *attempt_id, struct err *err)
{
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc = db_exec(conn, &r, err,
		"select count(*), coalesce(sum(octet_length(value)), 0)::bigint"
		" from attempt_rendezvous where attempt_id = $1",
		DB_TEXT(attempt_id));
	if (rc < 0)
		return rc;
	if (db_i64(r, 0, 0) > RENDEZVOUS_KEYS_MAX || db_i64(r, 0, 1) > RENDEZVOUS_BYTES_MAX)
		return err_set(err, ERR_QUOTA, "$.entries",
			"The ranks of an attempt may say at most %d things to each other, of %d bytes.",
			RENDEZVOUS_KEYS_MAX, RENDEZVOUS_BYTES_MAX);
	return 0;
}

int rendezvous_store_put(struct db_conn *conn, const struct attempt_fence *fence,
	const struct rendezvous_entry *entries, int count, int *ret_new, struct err *err)
{
	int added = 0;
	for (int i = 0; i < count; i++) {
		cleanup(db_result_freep) struct db_result *r = NULL;
		int rc = db_exec(conn, &r, err,
			"insert into attempt_rendezvous (attempt_id, agent_id, key, value)"
			" values ($1, $2, $3, $4) on conflict (attempt_id, key) do nothing returning number",
			DB_TEXT(fence->attempt_id), DB_TEXT(fence->agent_id), DB_TEXT(entries[i].key),
			DB_TEXT(entries[i].value));
		if (rc < 0)
			return rc;
		added += db_rows(r);
	}
	int rc = added > 0 ? check_room(conn, fence->attempt_id, err) : 0;
	if (rc == 0 && added > 0) /* those who wait for it look again */
		rc = db_exec(conn, NULL, err,
			"update agents set version = version + 1 where id in (select g.id from agents g"
			" where g.id <> $2 and (g.id = (select agent_id from attempts where id = $1)"
			"  or g.id in (select agent_id from attempt_parts where attempt_id = $1))"
			" order by g.id for update)",
			DB_TEXT(fence->attempt_id), DB_TEXT(fence->agent_id));
	if (rc == 0)
		*ret_new = added;
	return rc;
}

int rendezvous_store_write(struct db_conn *conn, const struct attempt_fence *fence, int64_t have,
	struct json_writer *w, int *ret_count, struct err *err)
{
	cleanup(db_result_freep) struct db_result *r = NULL;
	size_t bytes = 0;
	int rc = db_exec(conn, &r, err,
		"select number, key, value from attempt_rendezvous"
		" where attempt_id = $1 and agent_id <> $2 and number > $3 order by number limit $4",
		DB_TEXT(fence->attempt_id), DB_TEXT(fence->agent_id), DB_I64(have),
		DB_I64(RENDEZVOUS_ENTRIES_MAX));
	if (rc < 0)
		return rc;
	json_begin_object(w);
	json_key(w, "entries");
	json_begin_array(w);
	int i = 0;
	for (; i < db_rows(r) && bytes < RENDEZVOUS_REPLY_MAX; i++) {
		bytes += strlen(db_str(r, i, 2));
		have = db_i64(r, i, 0);
		json_begin_object(w);
		json_field_str(w, "key", db_str(r, i, 1));
		json_field_str(w, "value", db_str(r, i, 2));
		json_end_object(w);
	}
	json_end_array(w);
	json_field_i64(w, "have", have);
	json_end_object(w);
	*ret_count = i;
	return 0;
}

int rendezvous_store_others(struct db_conn *conn, const struct attempt_fence *fence,
	void (*fn)(void *ctx, const char *agent_id), void *ctx, struct err *err)
{
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc = db_exec(conn, &r, err,
		"select agent_id from attempts where id = $1 and agent_id <> $2"
		" union select agent_id from attempt_parts where attempt_id = $1 and agent_id <> $2",
		DB_TEXT(fence->attempt_id), DB_TEXT(fence->agent_id));
	for (int i = 0; rc == 0 && i < db_rows(r); i++)
		fn(ctx, db_str(r, i, 0));
	return rc;
}

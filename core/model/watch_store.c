/* SPDX-License-Identifier: Apache-2.0
 * One statement for all that is waited for. Called several times a second by the hub's thread. */
#include "core/model/watch_store.h"

#include "core/base/ident.h"

#include <string.h>

enum { COL_KIND, COL_ID, COL_NUMBER };

void watch_list_init(struct watch_list *l)
{
	for (int k = 0; k < WATCH_KINDS; k++)
		buf_init(&l->ids[k], WATCH_LIST_BYTES_MAX);
}

void watch_list_finish(struct watch_list *l)
{
	for (int k = 0; k < WATCH_KINDS; k++)
		buf_finish(&l->ids[k]);
}

bool watch_list_is_empty(const struct watch_list *l)
{
	for (int k = 0; k < WATCH_KINDS; k++) {
		if (l->ids[k].len > 0)
			return false;
	}
	return true;
}

void watch_list_add(struct watch_list *l, enum watch_kind kind, const char *id)
{
	struct buf *b = &l->ids[kind];
	if (b->len + IDENT_MAX + 2 > b->max_bytes)
		return;
	(void)buf_char(b, b->len == 0 ? '{' : ',');
	(void)buf_str(b, id);
}

bool watch_store_id_ok(const char *id)
{
	static const char allowed[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_";
	size_t len = strnlen(id, IDENT_MAX);
	return len > 0 && len < IDENT_MAX && strspn(id, allowed) == len;
}

static const char *array_text(struct buf *copy, const struct buf *ids)
{
	(void)buf_str(copy, ids->len > 0 ? buf_cstr(ids) : "{");
	(void)buf_char(copy, '}');
	return copy->failed ? "{}" : buf_cstr(copy);
}

int watch_store_read(struct db_conn *conn, const struct watch_list *l,
	void (*fn)(void *ctx, enum watch_kind kind, const char *id, int64_t number), void *ctx,
	struct err *err)
{
	cleanup(buf_finish) struct buf jobs;
	cleanup(buf_finish) struct buf agents;
	buf_init(&jobs, WATCH_LIST_BYTES_MAX + 2);
	buf_init(&agents, WATCH_LIST_BYTES_MAX + 2);
	cleanup(db_result_freep) struct db_result *rows = NULL;
	int r = db_exec(conn, &rows, err,
		"select 0, id, seq from jobs where id = any($1::text[])"
		" union all select 1, id, version from agents where id = any($2::text[])",
		DB_TEXT(array_text(&jobs, &l->ids[WATCH_JOB])),
		DB_TEXT(array_text(&agents, &l->ids[WATCH_AGENT])));
	if (r < 0)
		return r;
	for (int i = 0; i < db_rows(rows); i++) {
		enum watch_kind kind = db_i64(rows, i, COL_KIND) == 0 ? WATCH_JOB : WATCH_AGENT;
		fn(ctx, kind, db_str(rows, i, COL_ID), db_i64(rows, i, COL_NUMBER));
	}
	return 0;
}

/* SPDX-License-Identifier: Apache-2.0
 * SQL of reading events. One connection, one thread. */
#include "core/model/job_event_store.h"

#include "core/json/writer.h"
#include "core/model/sql_text.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define EVENT_AT SQL_TIME("at")

int job_event_store_read(struct db_conn *conn, const char *job_id, int64_t after, int limit,
	job_event_fn fn, void *ctx, int *ret_count, struct err *err)
{
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc = db_exec(conn, &r, err,
		"select seq, type, " EVENT_AT ", data from job_events"
		" where job_id = $1 and seq > $2 order by seq limit $3",
		DB_TEXT(job_id), DB_I64(after), DB_I64(limit));
	if (rc < 0)
		return rc;
	for (int i = 0; i < db_rows(r); i++) {
		struct job_event_row event = { db_i64(r, i, 0), db_str(r, i, 1), db_str(r, i, 2),
			db_str(r, i, 3) };
		fn(ctx, &event);
	}
	*ret_count = db_rows(r);
	return 0;
}

int job_event_store_is_over(
	struct db_conn *conn, const char *job_id, int64_t after, bool *ret_over, struct err *err)
{
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc = db_exec(conn, &r, err,
		"select status in ('succeeded', 'failed', 'cancelled') and seq <= $2"
		" from jobs where id = $1",
		DB_TEXT(job_id), DB_I64(after));
	if (rc < 0)
		return rc;
	if (db_rows(r) == 0)
		return err_set(err, ERR_NOT_FOUND, NULL, "There is no such job");
	*ret_over = db_bool(r, 0, 0);
	return 0;
}

bool job_event_is_terminal(const char *type)
{
	return strcmp(type, "job.succeeded") == 0 || strcmp(type, "job.failed") == 0 ||
		strcmp(type, "job.cancelled") == 0;
}

void job_event_write(struct json_writer *w, const char *job_id, const struct job_event_row *event)
{
	char id[24];
	snprintf(id, sizeof(id), "%" PRId64, event->seq);
	json_begin_object(w);
	json_field_str(w, "id", id);
	json_field_str(w, "object", "job.event");
	json_field_str(w, "job_id", job_id);
	json_field_i64(w, "seq", event->seq);
	json_field_str(w, "type", event->type);
	json_field_str(w, "created_at", event->at);
	json_field_raw(w, "data", event->data);
	json_end_object(w);
}

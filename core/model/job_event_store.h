/* SPDX-License-Identifier: Apache-2.0
 * Reading a job's events, numbered from 1 without gaps unless old ones were trimmed. Written by
 * core/model/job.c. Called by the events handler, for lists and streams; one thread per
 * connection. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "core/db/db.h"

#include <stdbool.h>
#include <stdint.h>

struct json_writer;

struct job_event_row {
	int64_t seq;
	const char *type;
	const char *at;   /* RFC 3339 */
	const char *data; /* a JSON object's text */
};

/* Borrowed: valid during the call. */
typedef void (*job_event_fn)(void *ctx, const struct job_event_row *event);

/* Calls fn for at most limit events with seq > after, in order. *ret_count is how many there were.
 */
int job_event_store_read(struct db_conn *conn, const char *job_id, int64_t after, int limit,
	job_event_fn fn, void *ctx, int *ret_count, struct err *err) must_check;

/* Whether the job's story is told up to `after`: it is finished and has no later event. */
int job_event_store_is_over(struct db_conn *conn, const char *job_id, int64_t after, bool *ret_over,
	struct err *err) must_check;

/* succeeded, failed, cancelled. */
bool job_event_is_terminal(const char *type);

/* The event's object. */
void job_event_write(struct json_writer *w, const char *job_id, const struct job_event_row *event);

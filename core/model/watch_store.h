/* SPDX-License-Identifier: Apache-2.0
 * The numbers that rise whenever a job or an agent's list changes, read for many at once. Used by
 * the server's hub to wake event streams and long polls. A connection belongs to one thread. */
#pragma once

#include "core/base/attr.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/db/db.h"

#include <stdbool.h>
#include <stdint.h>

enum watch_kind { WATCH_JOB, WATCH_AGENT, WATCH_KINDS };

enum { WATCH_LIST_BYTES_MAX = 4 * 1024 * 1024 };

/* What to ask about. One that finds no room is left out, as if it had not changed. */
struct watch_list {
	struct buf ids[WATCH_KINDS]; /* text of a PostgreSQL array */
};

void watch_list_init(struct watch_list *l);
void watch_list_finish(struct watch_list *l);
bool watch_list_is_empty(const struct watch_list *l);
/* id must be watch_store_id_ok. */
void watch_list_add(struct watch_list *l, enum watch_kind kind, const char *id);

/* Letters, digits and '_' only, of an id's length. */
bool watch_store_id_ok(const char *id);

/* Calls fn for each that exists: a job's seq, an agent's version. */
int watch_store_read(struct db_conn *conn, const struct watch_list *l,
	void (*fn)(void *ctx, enum watch_kind kind, const char *id, int64_t number), void *ctx,
	struct err *err) must_check;

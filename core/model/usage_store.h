/* SPDX-License-Identifier: Apache-2.0
 * Usage: device time of a tenant or a job by state, and what it costs. Reads segments, never writes
 * them. Rated like an invoice: per job and price, rounded once. A connection belongs to one thread.
 */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "core/base/ident.h"
#include "core/db/db.h"
#include "core/json/writer.h"
#include "core/model/rate.h"

#include <stdint.h>

enum {
	USAGE_ROWS_MAX = 20000,      /* (job, type, price, day) groups of one answer */
	USAGE_SEGMENTS_MAX = 200000, /* segments of one job that are rated together */
	USAGE_PAGE_DEFAULT = 1000,
	USAGE_PAGE_MAX = 1000,
	USAGE_WINDOW_DAYS_MAX = 400,
};

struct usage_total {
	int64_t billed_ms;
	int64_t unbilled_ms;
	int64_t lost_ms;
	int64_t provisional_ms;     /* training now, not yet decided */
	int64_t amount_minor;       /* of billed_ms */
	char amount[RATE_TEXT_MAX]; /* "0.04" */
	char currency[4];
};

/* Everything a job has used so far. A job without segments gives zeros. */
int usage_store_job_total(
	struct db_conn *conn, const char *job_id, struct usage_total *ret, struct err *err) must_check;

enum usage_group { USAGE_BY_JOB, USAGE_BY_INSTANCE_TYPE, USAGE_BY_DAY };
extern const char *const usage_group_words[]; /* "job", "instance_type", "day", NULL */

/* Half-open, UTC. A bound that is USAGE_UNSET: from = first of the current month, to = now, both on
 * the database's clock. */
enum { USAGE_UNSET = -1 };
struct usage_window {
	int64_t from_us;
	int64_t to_us;
};

/* Writes the usage object of a tenant. INVALID_VALUE for a window that is empty or too long,
 * TOO_LARGE above USAGE_ROWS_MAX. */
int usage_store_write(struct db_conn *conn, const char *tenant_id,
	const struct usage_window *window, enum usage_group group, struct json_writer *w,
	struct err *err) must_check;

/* Writes the usage object of one job, with at most limit of its segments after segment id `after`
 * (0 = from the first). NOT_FOUND when the tenant has no such job. */
int usage_store_write_job(struct db_conn *conn, const char *tenant_id, const char *job_id,
	int64_t after, int limit, struct json_writer *w, struct err *err) must_check;

/* Begins a read-only transaction in which every answer is of one instant of the database; the
 * caller ends it with db_commit or db_rollback. */
int usage_store_snapshot(struct db_conn *conn, struct err *err) must_check;

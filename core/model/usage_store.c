/* SPDX-License-Identifier: Apache-2.0
 * Usage of a tenant in a window, grouped, and of a job in total. The segments of one job are in
 * usage_store_job.c. One connection, one thread. */
#include "core/model/usage_store.h"

#include "core/base/clock.h"
#include "core/model/sql_text.h"
#include "core/model/usage_private.h"

#include <stdlib.h>
#include <string.h>

const char *const usage_group_words[] = { "job", "instance_type", "day", NULL };

int usage_store_snapshot(struct db_conn *conn, struct err *err)
{
	int rc = db_begin(conn, err);
	if (rc < 0)
		return rc;
	return db_exec(conn, NULL, err, "set transaction isolation level repeatable read, read only");
}

/* ---------------------------------------------------------------- totals */

int usage_total_add(struct usage_total *total, const char *state, int64_t ms)
{
	int64_t *slot = strcmp(state, "billed") == 0 ? &total->billed_ms
		: strcmp(state, "unbilled") == 0         ? &total->unbilled_ms
		: strcmp(state, "lost") == 0             ? &total->lost_ms
												 : &total->provisional_ms;
	return __builtin_add_overflow(*slot, ms, slot) ? ERR_INVALID_VALUE : 0;
}

void usage_total_write_members(struct json_writer *w, const struct usage_total *total)
{
	char amount[RATE_TEXT_MAX];
	rate_format_minor(total->amount_minor, amount);
	json_field_i64(w, "billed_ms", total->billed_ms);
	json_field_i64(w, "unbilled_ms", total->unbilled_ms);
	json_field_i64(w, "lost_ms", total->lost_ms);
	json_field_i64(w, "provisional_ms", total->provisional_ms);
	json_field_str(w, "amount", amount);
}

static int too_much(struct err *err)
{
	return err_set(err, ERR_INTERNAL, NULL, "a sum of device time does not fit 64 bits");
}

int usage_store_job_total(
	struct db_conn *conn, const char *job_id, struct usage_total *ret, struct err *err)
{
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc = db_exec(conn, &r, err,
		"select s.state, p.micros_per_hour, sum(" SQL_RANGE_MS(
			"s.period") ")::bigint "
						"from segments s left join prices p on p.id = s.price_id where s.job_id = "
						"$1 "
						"group by s.state, s.price_id, p.micros_per_hour "
						"union all select 'provisional', null, sum(" USAGE_OPEN_MS ")::bigint "
						"from devices d join attempts a on a.id = d.open_attempt_id "
						"where a.job_id = $1 and a.status <> 'ended' and d.open_state = 'training' "
						"and d.deregistered_at is null having count(*) > 0",
		DB_TEXT(job_id));
	if (rc < 0)
		return rc;
	struct usage_total total = { .currency = "USD" };
	for (int i = 0; i < db_rows(r); i++) {
		int64_t ms = db_i64(r, i, 2), amount = 0;
		if (usage_total_add(&total, db_str(r, i, 0), ms) < 0)
			return too_much(err);
		if (!db_is_null(r, i, 1) && rate_amount_minor(ms, db_i64(r, i, 1), &amount) < 0)
			return too_much(err);
		if (__builtin_add_overflow(total.amount_minor, amount, &total.amount_minor))
			return too_much(err);
	}
	rate_format_minor(total.amount_minor, total.amount);
	*ret = total;
	return 0;
}

/* ---------------------------------------------------------------- a tenant's window */

#define PART_MS SQL_RANGE_MS("c.part")

/* Pieces of device time of tenant $1 that touch [$2, $3), decided and open, cut into $2..$3 and by
 * `cut`: a lateral (day, part) that says the day and its range. */
#define USAGE_ROWS_SQL(cut)                                                                      \
	"with bounds as (select $2::timestamptz as lo, $3::timestamptz as hi), pieces as ("          \
	" select s.job_id, s.device_id, s.price_id, s.state, s.period from segments s, bounds b"     \
	" where s.tenant_id = $1 and upper(s.period) > b.lo and lower(s.period) < b.hi"              \
	" union all"                                                                                 \
	" select a.job_id, d.id, null, 'provisional',"                                               \
	"  tstzrange(d.open_since, greatest(d.open_since, yard_now()), '[)')"                        \
	" from devices d join attempts a on a.id = d.open_attempt_id"                                \
	" where a.tenant_id = $1 and a.status <> 'ended' and d.open_state = 'training'"              \
	"  and d.deregistered_at is null) "                                                          \
	"select x.job_id, j.name, d.instance_type, c.day, x.state, x.price_id, p.micros_per_hour,"   \
	" sum(" PART_MS ")::bigint "                                                                 \
	"from pieces x join jobs j on j.id = x.job_id join devices d on d.id = x.device_id "         \
	"left join prices p on p.id = x.price_id, bounds b, lateral (" cut ") c "                    \
	"where not isempty(c.part) "                                                                 \
	"group by x.job_id, j.name, d.instance_type, c.day, x.state, x.price_id, p.micros_per_hour " \
	"order by x.job_id desc, x.price_id, d.instance_type, c.day, x.state limit $4"

static const char rows_sql[] =
	USAGE_ROWS_SQL("select null::text as day, x.period * tstzrange(b.lo, b.hi, '[)') as part");
static const char rows_by_day_sql[] = USAGE_ROWS_SQL(
	"select to_char(day, 'YYYY-MM-DD') as day, x.period * tstzrange(b.lo, b.hi, '[)') *"
	" tstzrange(day at time zone 'UTC', (day + interval '1 day') at time zone 'UTC', '[)') as part"
	" from generate_series(date_trunc('day', greatest(lower(x.period), b.lo) at time zone 'UTC'),"
	" least(upper(x.period), b.hi) at time zone 'UTC', interval '1 day') day");

enum column { COL_JOB, COL_NAME, COL_TYPE, COL_DAY, COL_STATE, COL_PRICE, COL_MICROS, COL_MS };

static bool same_line(const struct db_result *r, int a, int b)
{
	return !db_is_null(r, a, COL_PRICE) && !db_is_null(r, b, COL_PRICE) &&
		strcmp(db_str(r, a, COL_JOB), db_str(r, b, COL_JOB)) == 0 &&
		strcmp(db_str(r, a, COL_PRICE), db_str(r, b, COL_PRICE)) == 0;
}

/* One line is the run of rows of one job at one price; its rows share the line's amount. */
static int rate_rows(const struct db_result *r, struct rate_slice *slices, struct err *err)
{
	int count = db_rows(r);
	for (int first = 0; first < count;) {
		int64_t ms = 0, amount = 0;
		int i = first;
		do {
			slices[i] = (struct rate_slice){ .key = i, .ms = db_i64(r, i, COL_MS) };
			if (__builtin_add_overflow(ms, slices[i].ms, &ms))
				return too_much(err);
			i++;
		} while (i < count && same_line(r, first, i));
		if (!db_is_null(r, first, COL_PRICE)) {
			if (rate_amount_minor(ms, db_i64(r, first, COL_MICROS), &amount) < 0)
				return too_much(err);
			int rc = rate_share(amount, slices + first, (size_t)(i - first));
			if (rc < 0)
				return err_set(err, rc, NULL, "an amount cannot be shared");
		}
		first = i;
	}
	return 0;
}

struct group {
	int row; /* a row of the result that names the group */
	struct usage_total total;
};

static bool same_group(const struct db_result *r, enum usage_group by, int a, int b)
{
	switch (by) {
	case USAGE_BY_JOB:
		return strcmp(db_str(r, a, COL_JOB), db_str(r, b, COL_JOB)) == 0 &&
			strcmp(db_str(r, a, COL_TYPE), db_str(r, b, COL_TYPE)) == 0;
	case USAGE_BY_INSTANCE_TYPE: return strcmp(db_str(r, a, COL_TYPE), db_str(r, b, COL_TYPE)) == 0;
	case USAGE_BY_DAY: return strcmp(db_str(r, a, COL_DAY), db_str(r, b, COL_DAY)) == 0;
	}
	return false;
}

/* Adds row i to its group, which for jobs can only be among the last few: rows come by job. */
static int add_row(const struct db_result *r, enum usage_group by, int i, int64_t amount,
	struct group *groups, int *count)
{
	int g = *count - 1;
	while (g >= 0 && !same_group(r, by, groups[g].row, i)) {
		if (by == USAGE_BY_JOB &&
			strcmp(db_str(r, groups[g].row, COL_JOB), db_str(r, i, COL_JOB)) != 0)
			g = 0;
		g--;
	}
	if (g < 0) {
		g = (*count)++;
		groups[g] = (struct group){ .row = i };
	}
	struct usage_total *total = &groups[g].total;
	if (__builtin_add_overflow(total->amount_minor, amount, &total->amount_minor))
		return ERR_INVALID_VALUE;
	return usage_total_add(total, db_str(r, i, COL_STATE), db_i64(r, i, COL_MS));
}

/* Days ascending, types by name. */
static int compare_groups(const void *a, const void *b, void *rows)
{
	const struct group *x = a, *y = b;
	const struct db_result *r = rows;
	int column = db_is_null(r, x->row, COL_DAY) ? COL_TYPE : COL_DAY;
	return strcmp(db_str(r, x->row, column), db_str(r, y->row, column));
}

static void write_group(
	struct json_writer *w, const struct db_result *r, enum usage_group by, const struct group *g)
{
	json_begin_object(w);
	json_field_str(w, "object", "usage.row");
	if (by == USAGE_BY_JOB) {
		json_field_str(w, "job_id", db_str(r, g->row, COL_JOB));
		json_field_str(w, "job_name", db_str(r, g->row, COL_NAME));
	}
	if (by == USAGE_BY_DAY)
		json_field_str(w, "day", db_str(r, g->row, COL_DAY));
	else
		json_field_str(w, "instance_type", db_str(r, g->row, COL_TYPE));
	usage_total_write_members(w, &g->total);
	json_end_object(w);
}

static int write_groups(
	struct db_result *r, enum usage_group by, struct json_writer *w, struct err *err)
{
	size_t count = (size_t)db_rows(r);
	cleanup(freep) struct rate_slice *slices = calloc(count + 1, sizeof(*slices));
	cleanup(freep) struct group *groups = calloc(count + 1, sizeof(*groups));
	if (!slices || !groups)
		return err_set(err, ERR_NO_MEMORY, NULL, "out of memory");
	int rc = rate_rows(r, slices, err);
	if (rc < 0)
		return rc;
	struct usage_total total = { 0 };
	int group_count = 0;
	for (int i = 0; i < (int)count; i++) {
		int64_t amount = slices[i].amount_minor;
		if (add_row(r, by, i, amount, groups, &group_count) < 0 ||
			usage_total_add(&total, db_str(r, i, COL_STATE), db_i64(r, i, COL_MS)) < 0 ||
			__builtin_add_overflow(total.amount_minor, amount, &total.amount_minor))
			return too_much(err);
	}
	if (by != USAGE_BY_JOB)
		qsort_r(groups, (size_t)group_count, sizeof(*groups), compare_groups, r);
	json_key(w, "data");
	json_begin_array(w);
	for (int i = 0; i < group_count; i++)
		write_group(w, r, by, &groups[i]);
	json_end_array(w);
	json_key(w, "total");
	json_begin_object(w);
	usage_total_write_members(w, &total);
	json_end_object(w);
	return 0;
}

struct bounds {
	char from[CLOCK_RFC3339_MAX];
	char to[CLOCK_RFC3339_MAX];
};

/* Fills unset bounds from the database's clock and refuses windows that make no sense. */
static int window_bounds(
	struct db_conn *conn, const struct usage_window *window, struct bounds *ret, struct err *err)
{
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc = db_exec(conn, &r, err,
		"select " SQL_MICROS("date_trunc('month', yard_now() at time zone 'UTC')"
							 " at time zone 'UTC'") ", " SQL_MICROS("yard_now()"));
	if (rc < 0)
		return rc;
	int64_t from_us = window->from_us == USAGE_UNSET ? db_i64(r, 0, 0) : window->from_us;
	int64_t to_us = window->to_us == USAGE_UNSET ? db_i64(r, 0, 1) : window->to_us;
	if (to_us <= from_us)
		return err_set(err, ERR_INVALID_VALUE, window->to_us == USAGE_UNSET ? "from" : "to",
			"the window is empty: from must be before to");
	const int64_t day_us = INT64_C(86400) * 1000000;
	if ((to_us - from_us) / day_us >= USAGE_WINDOW_DAYS_MAX)
		return err_set(err, ERR_INVALID_VALUE, "from", "the window is longer than %d days",
			USAGE_WINDOW_DAYS_MAX);
	clock_rfc3339(from_us, ret->from);
	clock_rfc3339(to_us, ret->to);
	return 0;
}

int usage_store_write(struct db_conn *conn, const char *tenant_id,
	const struct usage_window *window, enum usage_group group, struct json_writer *w,
	struct err *err)
{
	struct bounds bounds = { 0 };
	int rc = window_bounds(conn, window, &bounds, err);
	if (rc < 0)
		return rc;
	cleanup(db_result_freep) struct db_result *r = NULL;
	rc = db_exec(conn, &r, err, group == USAGE_BY_DAY ? rows_by_day_sql : rows_sql,
		DB_TEXT(tenant_id), DB_TEXT(bounds.from), DB_TEXT(bounds.to), DB_I64(USAGE_ROWS_MAX + 1));
	if (rc < 0)
		return rc;
	if (db_rows(r) > USAGE_ROWS_MAX)
		return err_set(err, ERR_TOO_LARGE, "from",
			"the usage has more than %d rows: ask for a shorter window", USAGE_ROWS_MAX);
	json_begin_object(w);
	json_field_str(w, "object", "usage");
	json_field_str(w, "from", bounds.from);
	json_field_str(w, "to", bounds.to);
	json_field_str(w, "group_by", usage_group_words[group]);
	json_field_str(w, "currency", "USD");
	rc = write_groups(r, group, w, err);
	json_end_object(w);
	return rc;
}

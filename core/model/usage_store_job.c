/* SPDX-License-Identifier: Apache-2.0
 * Usage of one job, segment by segment. One connection, one thread. */
#include "core/base/num.h"
#include "core/model/sql_text.h"
#include "core/model/usage_private.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Amounts of all billed segments of the job, in order of id. */
struct amounts {
	struct rate_slice *slices;
	size_t count;
};

static int by_key(const void *a, const void *b)
{
	const struct rate_slice *x = a, *y = b;
	return x->key < y->key ? -1 : x->key > y->key;
}

/* Rows: price, micros, segment, ms; by price. Each price is one line that its segments share. */
static int share_lines(const struct db_result *r, struct amounts *amounts, struct err *err)
{
	struct rate_slice *slices = amounts->slices;
	for (int first = 0; first < db_rows(r);) {
		int64_t ms = 0, line = 0;
		int i = first;
		for (; i < db_rows(r) && strcmp(db_str(r, i, 0), db_str(r, first, 0)) == 0; i++) {
			slices[i] = (struct rate_slice){ .key = db_i64(r, i, 2), .ms = db_i64(r, i, 3) };
			if (__builtin_add_overflow(ms, slices[i].ms, &ms))
				return err_set(err, ERR_INTERNAL, NULL, "a sum of device time is too large");
		}
		int rc = rate_amount_minor(ms, db_i64(r, first, 1), &line);
		if (rc == 0)
			rc = rate_share(line, slices + first, (size_t)(i - first));
		if (rc < 0)
			return err_set(err, rc, NULL, "an amount cannot be computed");
		first = i;
	}
	qsort(slices, amounts->count, sizeof(*slices), by_key);
	return 0;
}

static int load_amounts(
	struct db_conn *conn, const char *job_id, struct amounts *ret, struct err *err)
{
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc = db_exec(conn, &r, err,
		"select s.price_id, p.micros_per_hour, s.id, " SQL_RANGE_MS(
			"s.period") " "
						"from segments s join prices p on p.id = s.price_id where s.job_id = $1 "
						"order by s.price_id, s.id limit $2",
		DB_TEXT(job_id), DB_I64(USAGE_SEGMENTS_MAX + 1));
	if (rc < 0)
		return rc;
	if (db_rows(r) > USAGE_SEGMENTS_MAX)
		return err_set(err, ERR_TOO_LARGE, NULL, "the job has more than %d billed segments",
			USAGE_SEGMENTS_MAX);
	struct amounts amounts = { .count = (size_t)db_rows(r) };
	amounts.slices = calloc(amounts.count + 1, sizeof(*amounts.slices));
	if (!amounts.slices)
		return err_set(err, ERR_NO_MEMORY, NULL, "out of memory");
	rc = share_lines(r, &amounts, err);
	if (rc < 0) {
		free(amounts.slices);
		return rc;
	}
	*ret = amounts;
	return 0;
}

static int64_t amount_of(const struct amounts *amounts, int64_t segment_id)
{
	struct rate_slice key = { .key = segment_id };
	const struct rate_slice *found =
		bsearch(&key, amounts->slices, amounts->count, sizeof(key), by_key);
	return found ? found->amount_minor : 0;
}

/* ---------------------------------------------------------------- writing */

static const char page_sql[] =
	"select s.id, s.state, s.reason, s.device_id, d.name, d.instance_type, d.region,"
	" s.attempt_id, a.number, " SQL_TIME("lower(s.period)") ", " SQL_TIME(
		"upper(s.period)") ","
						   " " SQL_RANGE_MS(
							   "s.period") ", p.micros_per_hour, i.invoice_id "
										   "from segments s join devices d on d.id = s.device_id "
										   "join attempts a on a.id = s.attempt_id left join "
										   "prices p on p.id = s.price_id "
										   "left join invoice_segments i on i.segment_id = s.id "
										   "where s.job_id = $1 and s.id > $2 order by s.id limit "
										   "$3";

static void write_segment(
	struct json_writer *w, const struct db_result *r, int row, const struct amounts *amounts)
{
	char amount[RATE_TEXT_MAX], price[NUM_F64_MAX];
	rate_format_minor(amount_of(amounts, db_i64(r, row, 0)), amount);
	num_format_micros(db_i64(r, row, 12), price);
	json_begin_object(w);
	json_field_str(w, "object", "segment");
	json_field_i64(w, "id", db_i64(r, row, 0));
	json_field_str(w, "state", db_str(r, row, 1));
	json_field_str(w, "reason", db_str(r, row, 2));
	json_field_str(w, "device_id", db_str(r, row, 3));
	json_field_str(w, "device_name", db_str(r, row, 4));
	json_field_str(w, "instance_type", db_str(r, row, 5));
	json_field_str(w, "region", db_str(r, row, 6));
	json_field_str(w, "attempt_id", db_str(r, row, 7));
	json_field_i64(w, "attempt_number", db_i64(r, row, 8));
	json_field_str(w, "start", db_str(r, row, 9));
	json_field_str(w, "end", db_str(r, row, 10));
	json_field_i64(w, "duration_ms", db_i64(r, row, 11));
	json_field_str(w, "price_per_device_hour", db_is_null(r, row, 12) ? NULL : price);
	json_field_str(w, "amount", amount);
	json_field_str(w, "invoice_id", db_str(r, row, 13));
	json_end_object(w);
}

static int write_page(struct db_conn *conn, const char *job_id, int64_t after, int limit,
	const struct amounts *amounts, struct json_writer *w, struct err *err)
{
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc = db_exec(conn, &r, err, page_sql, DB_TEXT(job_id), DB_I64(after), DB_I64(limit + 1));
	if (rc < 0)
		return rc;
	int count = db_rows(r) > limit ? limit : db_rows(r);
	json_key(w, "segments");
	json_begin_array(w);
	for (int i = 0; i < count; i++)
		write_segment(w, r, i, amounts);
	json_end_array(w);
	json_key(w, "first_id");
	count ? json_put_i64(w, db_i64(r, 0, 0)) : json_put_null(w);
	json_key(w, "last_id");
	count ? json_put_i64(w, db_i64(r, count - 1, 0)) : json_put_null(w);
	json_field_bool(w, "has_more", db_rows(r) > limit);
	return 0;
}

static int write_open(
	struct db_conn *conn, const char *job_id, struct json_writer *w, struct err *err)
{
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc = db_exec(conn, &r, err,
		"select d.open_state, d.id, a.id, " SQL_TIME(
			"d.open_since") ", " USAGE_OPEN_MS " "
							"from devices d join attempts a on a.id = d.open_attempt_id "
							"where a.job_id = $1 and a.status <> 'ended' and d.deregistered_at is "
							"null order by d.id",
		DB_TEXT(job_id));
	if (rc < 0)
		return rc;
	json_key(w, "open");
	json_begin_array(w);
	for (int i = 0; i < db_rows(r); i++) {
		json_begin_object(w);
		json_field_str(w, "object", "segment.open");
		json_field_str(w, "state", db_str(r, i, 0));
		json_field_str(w, "device_id", db_str(r, i, 1));
		json_field_str(w, "attempt_id", db_str(r, i, 2));
		json_field_str(w, "start", db_str(r, i, 3));
		json_field_i64(w, "duration_ms", db_i64(r, i, 4));
		json_end_object(w);
	}
	json_end_array(w);
	return 0;
}

int usage_store_write_job(struct db_conn *conn, const char *tenant_id, const char *job_id,
	int64_t after, int limit, struct json_writer *w, struct err *err)
{
	assert(limit >= 1 && limit <= USAGE_PAGE_MAX);
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc = db_exec(conn, &r, err, "select id from jobs where id = $1 and tenant_id = $2",
		DB_TEXT(job_id), DB_TEXT(tenant_id));
	if (rc < 0)
		return rc;
	if (db_rows(r) == 0)
		return err_set(err, ERR_NOT_FOUND, NULL, "there is no job %s", job_id);
	struct usage_total total;
	rc = usage_store_job_total(conn, job_id, &total, err);
	if (rc < 0)
		return rc;
	struct amounts amounts = { 0 };
	rc = load_amounts(conn, job_id, &amounts, err);
	if (rc < 0)
		return rc;
	cleanup(freep) struct rate_slice *owned = amounts.slices;
	json_begin_object(w);
	json_field_str(w, "object", "job.usage");
	json_field_str(w, "job_id", job_id);
	json_field_str(w, "currency", total.currency);
	json_key(w, "total");
	json_begin_object(w);
	usage_total_write_members(w, &total);
	json_end_object(w);
	rc = write_page(conn, job_id, after, limit, &amounts, w, err);
	if (rc == 0)
		rc = write_open(conn, job_id, w, err);
	json_end_object(w);
	return rc;
}

/* SPDX-License-Identifier: Apache-2.0
 * SQL of a close, and of loading invoices. One connection, one thread. */
#include "core/model/invoice_store.h"

#include "core/base/clock.h"
#include "core/model/rate.h"
#include "core/model/sql_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RATES_JSON_MAX = INVOICE_CONTENT_MAX };

#define SEGMENT_MS SQL_RANGE_MS("s.period")
#define SEGMENT_START SQL_TIME("lower(s.period)")
#define SEGMENT_END SQL_TIME("upper(s.period)")
#define USAGE_START SQL_MICROS("min(lower(s.period))")
#define USAGE_END SQL_MICROS("max(upper(s.period))")

int invoice_store_lock(struct db_conn *conn, const char *tenant_id, struct err *err)
{
	cleanup(db_result_freep) struct db_result *r = NULL;
	/* An advisory lock, not the tenant's row: jobs of the tenant go on meanwhile. */
	int rc = db_exec(conn, &r, err,
		"select pg_advisory_xact_lock(hashtextextended('invoice ' || id, 0)) "
		"from tenants where id = $1",
		DB_TEXT(tenant_id));
	if (rc < 0)
		return rc;
	if (db_rows(r) == 0)
		return err_set(err, ERR_NOT_FOUND, "tenant", "there is no tenant %s", tenant_id);
	/* What follows is about one tenant's rows. Without this, checks of foreign keys that were
	 * planned when the tables were empty read all of them for each row, until the session ends. */
	return db_exec(conn, NULL, err, "select set_config('enable_seqscan', 'off', true)");
}

/* ---------------------------------------------------------------- the period */

static const char *time_or_null(int64_t us, char text[static CLOCK_RFC3339_MAX])
{
	if (us == INVOICE_UNSET)
		return NULL;
	clock_rfc3339(us, text);
	return text;
}

/* From where, to where, and now. */
static int wanted_span(struct db_conn *conn, const char *tenant_id, int64_t from_us, int64_t to_us,
	struct invoice_period *ret, struct err *err)
{
	char from[CLOCK_RFC3339_MAX], to[CLOCK_RFC3339_MAX];
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc = db_exec(conn, &r, err,
		"with t as materialized (select yard_now() as now) "
		"select " SQL_MICROS(
			"coalesce($2::timestamptz, (select max(upper(period)) from invoices"
			" where tenant_id = $1 and status <> 'void'), created_at)") ","
																		" " SQL_MICROS(
																			"coalesce($3::"
																			"timestamptz, "
																			"now)") ","
																					" coale"
																					"sce($"
																					"3::"
																					"timest"
																					"amptz,"
																					" now) "
																					"> "
																					"now,"
																					" " SQL_TIME(
																						"no"
																						"w") " "
																							 "from "
																							 "tenan"
																							 "ts, "
																							 "t "
																							 "where"
																							 " id "
																							 "= $1",
		DB_TEXT(tenant_id), DB_TEXT(time_or_null(from_us, from)), DB_TEXT(time_or_null(to_us, to)));
	if (rc < 0)
		return rc;
	if (db_rows(r) == 0)
		return err_set(err, ERR_NOT_FOUND, "tenant", "there is no tenant %s", tenant_id);
	if (db_bool(r, 0, 2))
		return err_set(err, ERR_INVALID_VALUE, "to",
			"%s has not come yet: it is %s on the database's clock", to, db_str(r, 0, 3));
	*ret = (struct invoice_period){ db_i64(r, 0, 0), db_i64(r, 0, 1) };
	return 0;
}

int invoice_store_next_period(struct db_conn *conn, const char *tenant_id, int64_t from_us,
	int64_t to_us, struct invoice_period *ret, int64_t *ret_to_us, bool *ret_found, struct err *err)
{
	struct invoice_period span = { 0 };
	int rc = wanted_span(conn, tenant_id, from_us, to_us, &span, err);
	if (rc < 0)
		return rc;
	int64_t at = span.from_us;
	while (at < span.to_us) {
		char from[CLOCK_RFC3339_MAX], to[CLOCK_RFC3339_MAX];
		clock_rfc3339(at, from);
		clock_rfc3339(span.to_us, to);
		/* The end of an invoice that covers `from`, or the next bound: month, invoice, span. */
		cleanup(db_result_freep) struct db_result *r = NULL;
		rc = db_exec(conn, &r, err,
			"select " SQL_MICROS(
				"(select upper(period) from invoices where tenant_id = $1"
				" and status <> 'void' and period @> $2::timestamptz)") ","
																		" " SQL_MICROS(
																			"least($3::timestamptz,"
																			" (date_trunc('month', "
																			"$2::timestamptz at "
																			"time zone 'UTC')"
																			"  + interval '1 "
																			"month') at time zone "
																			"'UTC',"
																			" (select "
																			"min(lower(period)) "
																			"from invoices where "
																			"tenant_id = $1"
																			"  and status <> "
																			"'void' and "
																			"lower(period) > "
																			"$2::timestamptz))"),
			DB_TEXT(tenant_id), DB_TEXT(from), DB_TEXT(to));
		if (rc < 0)
			return rc;
		if (!db_is_null(r, 0, 0)) {
			at = db_i64(r, 0, 0);
			continue;
		}
		*ret = (struct invoice_period){ at, db_i64(r, 0, 1) };
		*ret_to_us = span.to_us;
		*ret_found = true;
		return 0;
	}
	*ret_to_us = span.to_us;
	*ret_found = false;
	return 0;
}

/* ---------------------------------------------------------------- the draft */

/* $1 invoice, $2 tenant, $3..$4 period, $5 all earlier. One statement, one snapshot: lines and
 * their segments come from the same set. Amounts follow in rate_lines. */
static const char draft_sql[] =
	"with fresh as materialized (select s.id, s.job_id, s.price_id, " SEGMENT_MS " as ms,"
	"  dense_rank() over (order by s.job_id, s.price_id)::int as line from segments s"
	" where s.tenant_id = $2 and s.state = 'billed' and upper(s.period) <= $4::timestamptz"
	"  and ($5 or upper(s.period) > $3::timestamptz or exists (select from invoices e"
	"   where e.tenant_id = $2 and e.status <> 'void' and e.id <> $1"
	"   and upper(s.period) > lower(e.period) and upper(s.period) <= upper(e.period)))"
	/* counted, so that it is looked up for each: an anti-join reads all that was ever invoiced */
	"  and (select count(*) from invoice_segments i where i.segment_id = s.id) = 0"
	"), written as (insert into invoice_lines"
	"  (invoice_id, line, job_id, instance_type, price_id, quantity_ms, amount_minor, description)"
	" select $1, l.line, l.job_id, p.instance_type, l.price_id, l.ms, 0, ''"
	" from (select f.line, f.job_id, f.price_id, sum(f.ms)::bigint as ms"
	"  from fresh f group by f.line, f.job_id, f.price_id) l join prices p on p.id = l.price_id"
	" returning line) "
	"insert into invoice_segments (segment_id, invoice_id, line)"
	" select f.id, $1, f.line from fresh f";

static int insert_draft(struct db_conn *conn, const char *id, const char *tenant_id,
	const struct invoice_period *period, bool all_earlier, bool *ret_found, struct err *err)
{
	char from[CLOCK_RFC3339_MAX], to[CLOCK_RFC3339_MAX];
	clock_rfc3339(period->from_us, from);
	clock_rfc3339(period->to_us, to);
	int rc = db_exec(conn, NULL, err,
		"insert into invoices (id, tenant_id, status, period, currency, total_minor) "
		"select $1, id, 'draft', tstzrange($3::timestamptz, $4::timestamptz, '[)'), currency, 0 "
		"from tenants where id = $2",
		DB_TEXT(id), DB_TEXT(tenant_id), DB_TEXT(from), DB_TEXT(to));
	if (rc < 0)
		return rc;
	cleanup(db_result_freep) struct db_result *r = NULL;
	rc = db_exec(conn, &r, err, draft_sql, DB_TEXT(id), DB_TEXT(tenant_id), DB_TEXT(from),
		DB_TEXT(to), DB_BOOL(all_earlier));
	if (rc < 0)
		return rc;
	*ret_found = db_affected(r) > 0;
	if (db_affected(r) > 0)
		return 0;
	return db_exec(conn, NULL, err, "delete from invoices where id = $1", DB_TEXT(id));
}

static int rate_one(
	const struct db_result *r, int row, struct json_writer *w, int64_t *total, struct err *err)
{
	int64_t amount;
	if (rate_amount_minor(db_i64(r, row, 1), db_i64(r, row, 2), &amount) < 0 ||
		__builtin_add_overflow(*total, amount, total))
		return err_set(err, ERR_INTERNAL, NULL, "the amount of line %d does not fit", row + 1);
	cleanup(freep) char *text = invoice_describe(db_str(r, row, 4), db_str(r, row, 5),
		db_str(r, row, 6), db_i64(r, row, 2), db_str(r, row, 3));
	if (!text)
		return err_set(err, ERR_NO_MEMORY, NULL, "out of memory");
	json_begin_object(w);
	json_field_i64(w, "line", db_i64(r, row, 0));
	json_field_i64(w, "amount", amount);
	json_field_str(w, "description", text);
	json_end_object(w);
	return 0;
}

/* Amount and description of every line and the invoice's total, in two statements. */
static int rate_lines(struct db_conn *conn, const char *id, struct err *err)
{
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc = db_exec(conn, &r, err,
		"select l.line, l.quantity_ms, p.micros_per_hour, p.currency, j.name, j.id,"
		" l.instance_type from invoice_lines l join prices p on p.id = l.price_id "
		"join jobs j on j.id = l.job_id where l.invoice_id = $1 order by l.line limit $2",
		DB_TEXT(id), DB_I64(INVOICE_LINES_MAX + 1));
	if (rc < 0)
		return rc;
	if (db_rows(r) > INVOICE_LINES_MAX)
		return err_set(err, ERR_TOO_LARGE, "to",
			"the invoice has more than %d lines: close a shorter period", INVOICE_LINES_MAX);
	cleanup(buf_finish) struct buf text;
	buf_init(&text, RATES_JSON_MAX);
	struct json_writer w;
	json_writer_init(&w, &text);
	int64_t total = 0;
	json_begin_array(&w);
	for (int i = 0; i < db_rows(r); i++) {
		rc = rate_one(r, i, &w, &total, err);
		if (rc < 0)
			return rc;
	}
	json_end_array(&w);
	if (text.failed)
		return err_set(err, text.failed, NULL, "the invoice is too large");
	rc = db_exec(conn, NULL, err,
		"update invoice_lines l set amount_minor = x.amount, description = x.description "
		"from jsonb_to_recordset($2::jsonb) as x (line int, amount bigint, description text) "
		"where l.invoice_id = $1 and l.line = x.line",
		DB_TEXT(id), DB_TEXT(buf_cstr(&text)));
	if (rc < 0)
		return rc;
	return db_exec(conn, NULL, err, "update invoices set total_minor = $2::bigint where id = $1",
		DB_TEXT(id), DB_I64(total));
}

int invoice_store_draft(struct db_conn *conn, const char *id, const char *tenant_id,
	const struct invoice_period *period, bool all_earlier, bool *ret_found, struct err *err)
{
	bool found = false;
	int rc = insert_draft(conn, id, tenant_id, period, all_earlier, &found, err);
	if (rc == 0 && found)
		rc = rate_lines(conn, id, err);
	if (rc < 0)
		return rc;
	*ret_found = found;
	return 0;
}

int invoice_store_finalize(struct db_conn *conn, const char *id, struct err *err)
{
	cleanup(invoice_finish) struct invoice invoice = { 0 };
	int rc = invoice_store_load(conn, NULL, id, &invoice, err);
	if (rc < 0)
		return rc;
	cleanup(db_result_freep) struct db_result *now = NULL;
	rc = db_exec(conn, &now, err, "select " SQL_MICROS("yard_now()"));
	if (rc < 0)
		return rc;
	invoice.finalized_us = db_i64(now, 0, 0);
	cleanup(freep) char *content = NULL;
	char sha256[DIGEST_HEX_MAX], finalized[CLOCK_RFC3339_MAX];
	rc = invoice_content(&invoice, &content, sha256);
	if (rc < 0)
		return err_set(err, rc, NULL, "the content of invoice %s cannot be written", id);
	clock_rfc3339(invoice.finalized_us, finalized);
	cleanup(db_result_freep) struct db_result *r = NULL;
	rc = db_exec(conn, &r, err,
		"update invoices set status = 'finalized', content = $2, content_sha256 = $3,"
		" finalized_at = $4::timestamptz where id = $1 and status = 'draft'",
		DB_TEXT(id), DB_TEXT(content), DB_TEXT(sha256), DB_TEXT(finalized));
	if (rc < 0)
		return rc;
	if (db_affected(r) != 1)
		return err_set(err, ERR_CONFLICT, NULL, "invoice %s is not a draft", id);
	return 0;
}

/* ---------------------------------------------------------------- loading */

/* Lines of $1 with what their segments say; all of it in one pass over the invoice's segments. */
static const char lines_sql[] =
	"with g as materialized (select x.line, count(*) as segments, sum(" SEGMENT_MS
	")::bigint as ms,"
	"  count(*) filter (where s.state <> 'billed' or s.job_id <> l.job_id"
	"   or s.price_id <> l.price_id or s.tenant_id <> i.tenant_id) as misplaced,"
	"  " USAGE_START " as first, " USAGE_END " as last,"
	"  string_agg(s.id || ' ' || s.device_id || ' ' || " SEGMENT_START " || ' ' ||"
	"   " SEGMENT_END " || E'\n', '' order by s.id) as list"
	" from invoice_segments x join segments s on s.id = x.segment_id"
	" join invoice_lines l on l.invoice_id = x.invoice_id and l.line = x.line"
	" join invoices i on i.id = x.invoice_id where x.invoice_id = $1 group by x.line) "
	"select l.line, l.job_id, l.instance_type, l.price_id, l.description, p.micros_per_hour,"
	" l.quantity_ms, l.amount_minor, coalesce(g.segments, 0), coalesce(g.ms, 0),"
	" coalesce(g.misplaced, 0), g.first, g.last,"
	" encode(sha256(convert_to(coalesce(g.list, ''), 'UTF8')), 'hex') "
	"from invoice_lines l join prices p on p.id = l.price_id left join g on g.line = l.line "
	"where l.invoice_id = $1 order by l.line";

static int load_lines(struct db_conn *conn, struct invoice *invoice, struct err *err)
{
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc = db_exec(conn, &r, err, lines_sql, DB_TEXT(invoice->id));
	if (rc < 0)
		return rc;
	invoice->lines = calloc((size_t)db_rows(r) + 1, sizeof(*invoice->lines));
	if (!invoice->lines)
		return err_set(err, ERR_NO_MEMORY, NULL, "out of memory");
	for (int i = 0; i < db_rows(r); i++) {
		struct invoice_line *line = &invoice->lines[i];
		invoice->line_count++;
		line->line = (int)db_i64(r, i, 0);
		(void)snprintf(line->job_id, sizeof(line->job_id), "%s", db_str(r, i, 1));
		(void)snprintf(line->instance_type, sizeof(line->instance_type), "%s", db_str(r, i, 2));
		(void)snprintf(line->price_id, sizeof(line->price_id), "%s", db_str(r, i, 3));
		line->description = strdup(db_str(r, i, 4));
		if (!line->description)
			return err_set(err, ERR_NO_MEMORY, NULL, "out of memory");
		line->micros_per_hour = db_i64(r, i, 5);
		line->quantity_ms = db_i64(r, i, 6);
		line->amount_minor = db_i64(r, i, 7);
		line->segment_count = db_i64(r, i, 8);
		line->segments_ms = db_i64(r, i, 9);
		line->foreign_segments = db_i64(r, i, 10);
		line->usage_start_us = db_i64(r, i, 11);
		line->usage_end_us = db_i64(r, i, 12);
		(void)snprintf(
			line->segments_sha256, sizeof(line->segments_sha256), "%s", db_str(r, i, 13));
	}
	return 0;
}

int invoice_store_load(struct db_conn *conn, const char *tenant_id, const char *id,
	struct invoice *ret, struct err *err)
{
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc = db_exec(conn, &r, err,
		"select id, tenant_id, status, currency, " SQL_MICROS(
			"lower(period)") ","
							 " " SQL_MICROS(
								 "upper(period)") ", total_minor, content, content_sha256,"
												  " " SQL_MICROS(
													  "finalized_at") " "
																	  "from invoices where id = $1 "
																	  "and tenant_id = "
																	  "coalesce($2, tenant_id)",
		DB_TEXT(id), DB_TEXT(tenant_id));
	if (rc < 0)
		return rc;
	if (db_rows(r) == 0)
		return err_set(err, ERR_NOT_FOUND, NULL, "there is no invoice %s", id);
	cleanup(invoice_finish) struct invoice invoice = {
		.from_us = db_i64(r, 0, 4),
		.to_us = db_i64(r, 0, 5),
		.total_minor = db_i64(r, 0, 6),
		.finalized_us = db_i64(r, 0, 9),
	};
	(void)snprintf(invoice.id, sizeof(invoice.id), "%s", db_str(r, 0, 0));
	(void)snprintf(invoice.tenant_id, sizeof(invoice.tenant_id), "%s", db_str(r, 0, 1));
	(void)snprintf(invoice.status, sizeof(invoice.status), "%s", db_str(r, 0, 2));
	(void)snprintf(invoice.currency, sizeof(invoice.currency), "%s", db_str(r, 0, 3));
	if (!db_is_null(r, 0, 7)) {
		invoice.content = strdup(db_str(r, 0, 7));
		if (!invoice.content)
			return err_set(err, ERR_NO_MEMORY, NULL, "out of memory");
		(void)snprintf(
			invoice.content_sha256, sizeof(invoice.content_sha256), "%s", db_str(r, 0, 8));
	}
	rc = load_lines(conn, &invoice, err);
	if (rc < 0)
		return rc;
	*ret = invoice;
	invoice = (struct invoice){ 0 };
	return 0;
}

int invoice_store_ids(
	struct db_conn *conn, const char *after, struct db_result **ret, struct err *err)
{
	return db_exec(conn, ret, err, "select id from invoices where id > $1 order by id limit $2",
		DB_TEXT(after), DB_I64(INVOICE_IDS_PAGE));
}

int invoice_store_tenants(
	struct db_conn *conn, const char *after, struct db_result **ret, struct err *err)
{
	return db_exec(conn, ret, err, "select id from tenants where id > $1 order by id limit $2",
		DB_TEXT(after), DB_I64(INVOICE_IDS_PAGE));
}

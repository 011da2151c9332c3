/* SPDX-License-Identifier: Apache-2.0
 * Invoices as the API shows them. One connection, one thread. */
#include "core/base/clock.h"
#include "core/base/num.h"
#include "core/model/invoice_store.h"
#include "core/model/rate.h"
#include "core/model/sql_text.h"

#include <string.h>

enum { PROBLEMS_MAX = 64 * 1024 };

#define INVOICE_COLUMNS                                                                        \
	"i.id, i.status, " SQL_TIME("lower(i.period)") ", " SQL_TIME(                              \
		"upper(i.period)") ","                                                                 \
						   " i.currency, i.total_minor, (select count(*) from invoice_lines l" \
						   "  where l.invoice_id = i.id), i.content_sha256, " SQL_TIME(        \
							   "i.created_at") ","                                             \
											   " " SQL_TIME("i.finalized_at")

static void write_amount(struct json_writer *w, const char *key, int64_t minor)
{
	char text[RATE_TEXT_MAX];
	rate_format_minor(minor, text);
	json_field_str(w, key, text);
}

/* The members of a list's item, into an object that is open. */
static void write_members(struct json_writer *w, const struct db_result *r, int row)
{
	json_field_str(w, "object", "invoice");
	json_field_str(w, "id", db_str(r, row, 0));
	json_field_str(w, "status", db_str(r, row, 1));
	json_key(w, "period");
	json_begin_object(w);
	json_field_str(w, "start", db_str(r, row, 2));
	json_field_str(w, "end", db_str(r, row, 3));
	json_end_object(w);
	json_field_str(w, "currency", db_str(r, row, 4));
	write_amount(w, "total", db_i64(r, row, 5));
	json_field_i64(w, "line_count", db_i64(r, row, 6));
	json_field_str(w, "content_sha256", db_str(r, row, 7));
	json_field_str(w, "created_at", db_str(r, row, 8));
	json_field_str(w, "finalized_at", db_str(r, row, 9));
}

#define LIST_WHERE \
	" from invoices i where i.tenant_id = $1 and i.status <> 'draft' and i.id < $2 and i.id > $3 "

int invoice_store_list(struct db_conn *conn, const char *tenant_id, const struct page *page,
	struct json_writer *w, struct err *err)
{
	struct page_bounds b;
	page_bounds(page, "inv", &b);
	const char *sql = b.ascending
		? "select " INVOICE_COLUMNS LIST_WHERE "order by i.id asc limit $4"
		: "select " INVOICE_COLUMNS LIST_WHERE "order by i.id desc limit $4";
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc = db_exec(conn, &r, err, sql, DB_TEXT(tenant_id), DB_TEXT(b.below), DB_TEXT(b.above),
		DB_I64(b.fetch));
	if (rc < 0)
		return rc;
	page_begin(w);
	for (int i = 0; i < page_count(page, r); i++) {
		json_begin_object(w);
		write_members(w, r, page_row(page, r, i));
		json_end_object(w);
	}
	page_end(w, page, r, 0);
	return 0;
}

/* ---------------------------------------------------------------- one invoice */

static void write_line(
	struct json_writer *w, const struct invoice_line *line, const char *segment_ids)
{
	char price[NUM_F64_MAX], start[CLOCK_RFC3339_MAX], end[CLOCK_RFC3339_MAX];
	num_format_micros(line->micros_per_hour, price);
	clock_rfc3339(line->usage_start_us, start);
	clock_rfc3339(line->usage_end_us, end);
	json_begin_object(w);
	json_field_str(w, "object", "invoice.line");
	json_field_i64(w, "line", line->line);
	json_field_str(w, "description", line->description);
	json_field_str(w, "job_id", line->job_id);
	json_field_str(w, "instance_type", line->instance_type);
	json_field_i64(w, "quantity_ms", line->quantity_ms);
	json_field_str(w, "price_per_device_hour", price);
	write_amount(w, "amount", line->amount_minor);
	json_field_str(w, "usage_start", start);
	json_field_str(w, "usage_end", end);
	json_field_i64(w, "segment_count", line->segment_count);
	json_field_raw(w, "segment_ids", segment_ids);
	json_field_str(w, "segments_sha256", line->segments_sha256);
	json_end_object(w);
}

static int write_lines(
	struct db_conn *conn, const struct invoice *invoice, struct json_writer *w, struct err *err)
{
	cleanup(db_result_freep) struct db_result *ids = NULL;
	int rc = db_exec(conn, &ids, err,
		"select coalesce(array_to_json((select array_agg(x.segment_id order by x.segment_id)"
		" from (select segment_id from invoice_segments where invoice_id = l.invoice_id"
		"  and line = l.line order by segment_id limit $2) x)), '[]')::text "
		"from invoice_lines l where l.invoice_id = $1 order by l.line",
		DB_TEXT(invoice->id), DB_I64(INVOICE_SEGMENT_IDS_MAX));
	if (rc < 0)
		return rc;
	if ((size_t)db_rows(ids) != invoice->line_count)
		return err_set(err, ERR_DB_CONFLICT, NULL, "invoice %s is changing", invoice->id);
	json_key(w, "lines");
	json_begin_array(w);
	for (size_t i = 0; i < invoice->line_count; i++)
		write_line(w, &invoice->lines[i], db_str(ids, (int)i, 0));
	json_end_array(w);
	return 0;
}

static int write_check(const struct invoice *invoice, struct json_writer *w, struct err *err)
{
	cleanup(buf_finish) struct buf problems;
	buf_init(&problems, PROBLEMS_MAX);
	int count = 0;
	int rc = invoice_check(invoice, &problems, &count);
	if (rc == ERR_TOO_LARGE)
		count = 1; /* too many to list: not in order, in any case */
	else if (rc < 0)
		return err_set(err, rc, NULL, "invoice %s cannot be checked", invoice->id);
	int64_t lines_minor = 0, segments_ms = 0, quantity_ms = 0;
	for (size_t i = 0; i < invoice->line_count; i++) {
		lines_minor += invoice->lines[i].amount_minor;
		segments_ms += invoice->lines[i].segments_ms;
		quantity_ms += invoice->lines[i].quantity_ms;
	}
	char sha256[DIGEST_HEX_MAX];
	rc = digest_hex_of(invoice->content, strlen(invoice->content), sha256);
	if (rc < 0)
		return err_set(err, rc, NULL, "a check sum cannot be computed");
	json_key(w, "check");
	json_begin_object(w);
	write_amount(w, "lines_total", lines_minor);
	json_field_i64(w, "segments_ms", segments_ms);
	json_field_i64(w, "quantity_ms", quantity_ms);
	json_field_str(w, "content_sha256", sha256);
	json_field_bool(w, "ok", count == 0);
	json_end_object(w);
	return 0;
}

int invoice_store_write(struct db_conn *conn, const char *tenant_id, const char *id,
	struct json_writer *w, struct err *err)
{
	cleanup(invoice_finish) struct invoice invoice = { 0 };
	int rc = invoice_store_load(conn, tenant_id, id, &invoice, err);
	if (rc < 0)
		return rc;
	cleanup(db_result_freep) struct db_result *r = NULL;
	rc = db_exec(
		conn, &r, err, "select " INVOICE_COLUMNS " from invoices i where i.id = $1", DB_TEXT(id));
	if (rc < 0)
		return rc;
	if (db_rows(r) == 0 || !invoice.content)
		return err_set(err, ERR_NOT_FOUND, NULL, "there is no invoice %s", id);
	json_begin_object(w);
	write_members(w, r, 0);
	rc = write_lines(conn, &invoice, w, err);
	if (rc == 0)
		rc = write_check(&invoice, w, err);
	json_field_str(w, "content", invoice.content);
	json_end_object(w);
	return rc;
}

/* SPDX-License-Identifier: Apache-2.0
 * close: invoices what is not invoiced yet, one transaction for each tenant and month. Any number
 * may run at once. */
#include "billing/command.h"

#include "core/base/buf.h"
#include "core/base/clock.h"
#include "core/json/writer.h"
#include "core/model/invoice_store.h"
#include "core/model/rate.h"
#include "core/model/reconcile_store.h"

#include <stdlib.h>

enum {
	CLOSE_PERIODS_MAX = 12 * 100,
	CLOSE_PROBLEMS_MAX = 64 * 1024,
	CLOSE_OUTPUT_MAX = 64 * 1024,
};

/* One period of one tenant; filled anew by each try of the transaction. */
struct close {
	const char *tenant_id;
	int64_t from_us, to_us;
	bool all_earlier;
	/* results */
	bool period_found, usage_found;
	struct invoice_period period;
	int64_t end_us; /* the end that `to` meant at first */
	struct invoice invoice;
};

/* The first sentences of what is wrong, as one error. */
static int refuse(const struct buf *problems, const char *what, struct err *err)
{
	return err_set(
		err, ERR_CONFLICT, NULL, "%s: nothing was finalized. %.600s", what, buf_cstr(problems));
}

/* invoice_id NULL: every device of the yard. */
static int check_devices(struct db_conn *conn, const char *invoice_id, struct err *err)
{
	cleanup(reconcile_store_finish) struct reconcile all = { 0 };
	int rc = reconcile_store_devices(conn, invoice_id, true, &all, err);
	if (rc < 0 || all.bad == 0)
		return rc;
	cleanup(buf_finish) struct buf text;
	buf_init(&text, CLOSE_PROBLEMS_MAX);
	for (size_t i = 0; i < all.count; i++)
		reconcile_store_explain(&all.devices[i], &text);
	return refuse(&text, "device time does not add up", err);
}

static int check_invoice(const struct invoice *invoice, struct err *err)
{
	cleanup(buf_finish) struct buf text;
	buf_init(&text, CLOSE_PROBLEMS_MAX);
	int count = 0;
	int rc = invoice_check(invoice, &text, &count);
	if (rc < 0)
		return err_set(err, rc, NULL, "invoice %s cannot be checked", invoice->id);
	return count ? refuse(&text, "the invoice does not add up", err) : 0;
}

static int close_period(struct db_conn *conn, void *ctx, struct err *err)
{
	struct close *c = ctx;
	c->period_found = c->usage_found = false;
	invoice_finish(&c->invoice);
	int rc = invoice_store_lock(conn, c->tenant_id, err);
	if (rc == 0)
		rc = invoice_store_next_period(conn, c->tenant_id, c->from_us, c->to_us, &c->period,
			&c->end_us, &c->period_found, err);
	if (rc < 0 || !c->period_found)
		return rc;
	char id[IDENT_MAX];
	ident_new(clock_system(), "inv", id);
	rc = invoice_store_draft(
		conn, id, c->tenant_id, &c->period, c->all_earlier, &c->usage_found, err);
	if (rc < 0 || !c->usage_found)
		return rc;
	rc = check_devices(conn, id, err);
	if (rc == 0)
		rc = invoice_store_finalize(conn, id, err);
	if (rc == 0)
		rc = invoice_store_load(conn, c->tenant_id, id, &c->invoice, err);
	return rc < 0 ? rc : check_invoice(&c->invoice, err);
}

/* ---------------------------------------------------------------- saying it */

static void say_text(FILE *out, const struct close *c)
{
	char from[CLOCK_RFC3339_MAX], to[CLOCK_RFC3339_MAX], total[RATE_TEXT_MAX];
	clock_rfc3339(c->period.from_us, from);
	clock_rfc3339(c->period.to_us, to);
	rate_format_minor(c->invoice.total_minor, total);
	(void)fprintf(out, "%s: %s from %s to %s: %zu line%s, %s %s, sha256 %s\n", c->tenant_id,
		c->invoice.id, from, to, c->invoice.line_count, c->invoice.line_count == 1 ? "" : "s",
		total, c->invoice.currency, c->invoice.content_sha256);
}

/* One object a line; without an invoice, null; without a span, nulls. */
static void say_object(FILE *out, const char *tenant_id, const char *from, const char *to,
	const struct invoice *invoice)
{
	cleanup(buf_finish) struct buf text;
	buf_init(&text, CLOSE_OUTPUT_MAX);
	struct json_writer w;
	json_writer_init(&w, &text);
	json_begin_object(&w);
	json_field_str(&w, "tenant_id", tenant_id);
	json_field_str(&w, "from", from);
	json_field_str(&w, "to", to);
	json_field_str(&w, "invoice_id", invoice ? invoice->id : NULL);
	if (invoice) {
		char total[RATE_TEXT_MAX];
		rate_format_minor(invoice->total_minor, total);
		json_field_i64(&w, "line_count", (int64_t)invoice->line_count);
		json_field_str(&w, "total", total);
		json_field_str(&w, "currency", invoice->currency);
		json_field_str(&w, "content_sha256", invoice->content_sha256);
	}
	json_end_object(&w);
	(void)fprintf(out, "%s\n", buf_cstr(&text));
}

static void say_json(FILE *out, const struct close *c)
{
	char from[CLOCK_RFC3339_MAX], to[CLOCK_RFC3339_MAX];
	clock_rfc3339(c->period.from_us, from);
	clock_rfc3339(c->period.to_us, to);
	say_object(out, c->tenant_id, from, to, &c->invoice);
}

/* A span without usage, or (unset) no span at all. */
static void say_quiet(FILE *out, bool json, const char *tenant_id, int64_t from_us, int64_t to_us)
{
	bool span = from_us != INVOICE_UNSET;
	char from[CLOCK_RFC3339_MAX], to[CLOCK_RFC3339_MAX];
	clock_rfc3339(from_us, from);
	clock_rfc3339(to_us, to);
	if (json)
		say_object(out, tenant_id, span ? from : NULL, span ? to : NULL, NULL);
	else if (span)
		(void)fprintf(out, "%s: no usage to invoice from %s to %s\n", tenant_id, from, to);
	else
		(void)fprintf(out, "%s: nothing is left to invoice\n", tenant_id);
}

static void say_refused(FILE *out, bool json, const char *tenant_id, const struct err *err)
{
	if (!json) {
		(void)fprintf(out, "%s: refused: %s\n", tenant_id, err->message);
		return;
	}
	cleanup(buf_finish) struct buf text;
	buf_init(&text, CLOSE_OUTPUT_MAX);
	struct json_writer w;
	json_writer_init(&w, &text);
	json_begin_object(&w);
	json_field_str(&w, "tenant_id", tenant_id);
	json_field_str(&w, "refused", err->message);
	json_end_object(&w);
	(void)fprintf(out, "%s\n", buf_cstr(&text));
}

static void finish_close(struct close *c)
{
	invoice_finish(&c->invoice);
}

static int close_tenant(struct db_pool *pool, const char *tenant_id,
	const struct command_options *options, FILE *out, struct err *err)
{
	cleanup(finish_close) struct close c = {
		.tenant_id = tenant_id,
		.from_us = options->from_us == COMMAND_UNSET ? INVOICE_UNSET : options->from_us,
		.to_us = options->to_us == COMMAND_UNSET ? INVOICE_UNSET : options->to_us,
		.all_earlier = options->from_us == COMMAND_UNSET,
	};
	int64_t quiet_since_us = INVOICE_UNSET; /* months without usage are said once */
	for (int i = 0; i < CLOSE_PERIODS_MAX; i++) {
		int rc = db_tx(pool, COMMAND_DB_WAIT_MS, close_period, &c, err);
		if (rc < 0)
			return rc;
		bool quiet = c.period_found && !c.usage_found;
		if (quiet && quiet_since_us == INVOICE_UNSET)
			quiet_since_us = c.period.from_us;
		if (!quiet && quiet_since_us != INVOICE_UNSET) {
			say_quiet(out, options->json, tenant_id, quiet_since_us, c.from_us);
			quiet_since_us = INVOICE_UNSET;
		}
		if (c.usage_found)
			options->json ? say_json(out, &c) : say_text(out, &c);
		if (!c.period_found && i == 0)
			say_quiet(out, options->json, tenant_id, INVOICE_UNSET, INVOICE_UNSET);
		if (!c.period_found)
			return 0;
		c.from_us = c.period.to_us;
		c.to_us = c.end_us;
	}
	return err_set(
		err, ERR_TOO_LARGE, "--from", "the span has more than %d periods", CLOSE_PERIODS_MAX);
}

/* A tenant whose books do not add up does not hold up the others: it is said, and *ok is false. */
static int close_all(struct db_pool *pool, const struct command_options *options, FILE *out,
	bool *ok, struct err *err)
{
	char after[IDENT_MAX] = "";
	for (;;) {
		cleanup(db_result_freep) struct db_result *page = NULL;
		struct db_conn *conn = NULL;
		int rc = db_pool_get(pool, COMMAND_DB_WAIT_MS, &conn, err);
		if (rc < 0)
			return rc;
		rc = invoice_store_tenants(conn, after, &page, err);
		db_pool_put(pool, conn);
		if (rc < 0)
			return rc;
		for (int i = 0; i < db_rows(page); i++) {
			rc = close_tenant(pool, db_str(page, i, 0), options, out, err);
			if (rc == ERR_CONFLICT)
				say_refused(out, options->json, db_str(page, i, 0), err);
			else if (rc < 0)
				return rc;
			*ok = *ok && rc == 0;
		}
		if (db_rows(page) < INVOICE_IDS_PAGE)
			return 0;
		(void)snprintf(after, sizeof(after), "%s", db_str(page, db_rows(page) - 1, 0));
	}
}

int command_close(struct db_pool *pool, const struct command_options *options, FILE *out,
	bool *ret_ok, struct err *err)
{
	if (!options->tenant == !options->all)
		return err_set(err, ERR_MISSING_FIELD, "--tenant", "give --tenant=ID or --all");
	struct db_conn *conn = NULL;
	int rc = db_pool_get(pool, COMMAND_DB_WAIT_MS, &conn, err);
	if (rc < 0)
		return rc;
	/* The whole yard once; each invoice checks its own devices again in its transaction. */
	rc = check_devices(conn, NULL, err);
	db_pool_put(pool, conn);
	bool ok = true;
	if (rc == 0)
		rc = options->all ? close_all(pool, options, out, &ok, err)
						  : close_tenant(pool, options->tenant, options, out, err);
	if (rc < 0)
		return rc; /* CONFLICT is a difference, which err describes */
	*ret_ok = ok;
	return 0;
}

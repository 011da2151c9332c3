/* SPDX-License-Identifier: Apache-2.0
 * show: an invoice for people, or its canonical content. */
#include "billing/command.h"

#include "core/base/clock.h"
#include "core/base/num.h"
#include "core/model/invoice_store.h"
#include "core/model/rate.h"

#include <inttypes.h>

static void show_line(FILE *out, const struct invoice_line *line)
{
	char amount[RATE_TEXT_MAX];
	rate_format_minor(line->amount_minor, amount);
	(void)fprintf(out, "%4d  %-58s %10" PRId64 ".%03d s %12s\n", line->line, line->description,
		line->quantity_ms / 1000, (int)(line->quantity_ms % 1000), amount);
	(void)fprintf(out, "      %s, %" PRId64 " segment%s, sha256 %s\n", line->job_id,
		line->segment_count, line->segment_count == 1 ? "" : "s", line->segments_sha256);
}

static void show_text(FILE *out, const struct invoice *invoice)
{
	char from[CLOCK_RFC3339_MAX], to[CLOCK_RFC3339_MAX], total[RATE_TEXT_MAX];
	clock_rfc3339(invoice->from_us, from);
	clock_rfc3339(invoice->to_us, to);
	rate_format_minor(invoice->total_minor, total);
	(void)fprintf(out, "Invoice %s (%s)\nTenant  %s\nPeriod  %s to %s\n\n", invoice->id,
		invoice->status, invoice->tenant_id, from, to);
	for (size_t i = 0; i < invoice->line_count; i++)
		show_line(out, &invoice->lines[i]);
	(void)fprintf(out, "\nTotal   %s %s\nSHA-256 %s\n", total, invoice->currency,
		invoice->content ? invoice->content_sha256 : "(draft)");
}

int command_show(struct db_pool *pool, const struct command_options *options, FILE *out,
	bool *ret_ok, struct err *err)
{
	if (!options->argument)
		return err_set(err, ERR_MISSING_FIELD, NULL, "give an invoice");
	struct db_conn *conn = NULL;
	int rc = db_pool_get(pool, COMMAND_DB_WAIT_MS, &conn, err);
	if (rc < 0)
		return rc;
	cleanup(invoice_finish) struct invoice invoice = { 0 };
	rc = invoice_store_load(conn, options->tenant, options->argument, &invoice, err);
	db_pool_put(pool, conn);
	if (rc < 0)
		return rc;
	if (!options->json)
		show_text(out, &invoice);
	else if (invoice.content)
		(void)fputs(invoice.content, out); /* no newline: sha256sum gives the check sum */
	else
		return err_set(err, ERR_CONFLICT, NULL, "invoice %s is a draft", invoice.id);
	*ret_ok = true;
	return 0;
}

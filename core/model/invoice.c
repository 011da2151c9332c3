/* SPDX-License-Identifier: Apache-2.0
 * Canonical content of invoices and their comparison with the segments. */
#include "core/model/invoice.h"

#include "core/base/clock.h"
#include "core/base/num.h"
#include "core/json/writer.h"
#include "core/model/rate.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DESCRIPTION_MAX = 2048 };

void invoice_finish(struct invoice *invoice)
{
	for (size_t i = 0; i < invoice->line_count; i++)
		free(invoice->lines[i].description);
	free(invoice->lines);
	free(invoice->content);
	*invoice = (struct invoice){ 0 };
}

char *invoice_describe(const char *job_name, const char *job_id, const char *instance_type,
	int64_t micros_per_hour, const char *currency)
{
	char price[NUM_F64_MAX];
	num_format_micros(micros_per_hour, price);
	struct buf text;
	buf_init(&text, DESCRIPTION_MAX);
	(void)buf_printf(&text, "%s: training on %s at %s %s per device-hour",
		job_name && job_name[0] ? job_name : job_id, instance_type, price, currency);
	return buf_take(&text, NULL);
}

/* ---------------------------------------------------------------- content */

static void put_time(struct json_writer *w, const char *key, int64_t us)
{
	char text[CLOCK_RFC3339_MAX];
	clock_rfc3339(us, text);
	json_field_str(w, key, text);
}

static void put_amount(struct json_writer *w, const char *key, int64_t minor)
{
	char text[RATE_TEXT_MAX];
	rate_format_minor(minor, text);
	json_field_str(w, key, text);
}

static void put_line(struct json_writer *w, const struct invoice_line *line)
{
	char price[NUM_F64_MAX];
	num_format_micros(line->micros_per_hour, price);
	json_begin_object(w);
	put_amount(w, "amount", line->amount_minor);
	json_field_str(w, "description", line->description);
	json_field_str(w, "instance_type", line->instance_type);
	json_field_str(w, "job_id", line->job_id);
	json_field_i64(w, "line", line->line);
	json_field_str(w, "price_id", line->price_id);
	json_field_str(w, "price_per_device_hour", price);
	json_field_i64(w, "quantity_ms", line->quantity_ms);
	json_field_i64(w, "segment_count", line->segment_count);
	json_field_str(w, "segments_sha256", line->segments_sha256);
	put_time(w, "usage_end", line->usage_end_us);
	put_time(w, "usage_start", line->usage_start_us);
	json_end_object(w);
}

int invoice_content(
	const struct invoice *invoice, char **ret_text, char ret_sha256[static DIGEST_HEX_MAX])
{
	cleanup(buf_finish) struct buf text;
	buf_init(&text, INVOICE_CONTENT_MAX);
	struct json_writer w;
	json_writer_init(&w, &text);
	json_begin_object(&w);
	json_field_str(&w, "currency", invoice->currency);
	put_time(&w, "finalized_at", invoice->finalized_us);
	json_field_i64(&w, "format", INVOICE_FORMAT);
	json_field_str(&w, "id", invoice->id);
	json_key(&w, "lines");
	json_begin_array(&w);
	for (size_t i = 0; i < invoice->line_count; i++)
		put_line(&w, &invoice->lines[i]);
	json_end_array(&w);
	put_time(&w, "period_end", invoice->to_us);
	put_time(&w, "period_start", invoice->from_us);
	json_field_str(&w, "tenant_id", invoice->tenant_id);
	put_amount(&w, "total", invoice->total_minor);
	json_end_object(&w);
	if (text.failed)
		return text.failed;
	char sha256[DIGEST_HEX_MAX];
	int rc = digest_hex_of(text.data, text.len, sha256);
	if (rc < 0)
		return rc;
	char *taken = buf_take(&text, NULL);
	if (!taken)
		return ERR_NO_MEMORY;
	memcpy(ret_sha256, sha256, sizeof(sha256));
	*ret_text = taken;
	return 0;
}

/* ---------------------------------------------------------------- check */

struct check {
	const struct invoice *invoice;
	struct buf *problems;
	int count;
};

static void problem(struct check *c, const char *fmt, ...) printf_like(2, 3);
static void problem(struct check *c, const char *fmt, ...)
{
	char text[512];
	va_list args;
	va_start(args, fmt);
	(void)vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	(void)buf_printf(c->problems, "%s: %s\n", c->invoice->id, text);
	c->count++;
}

static void check_line(struct check *c, const struct invoice_line *line)
{
	if (line->segment_count == 0)
		problem(c, "line %d has no segments", line->line);
	if (line->foreign_segments > 0)
		problem(c, "line %d has %" PRId64 " segments that are not billed to its job at its price",
			line->line, line->foreign_segments);
	if (line->segments_ms != line->quantity_ms)
		problem(c, "line %d says %" PRId64 " ms, its segments have %" PRId64, line->line,
			line->quantity_ms, line->segments_ms);
	if (line->usage_end_us > c->invoice->to_us)
		problem(c, "line %d has time after the invoice's period", line->line);
	int64_t amount;
	if (rate_amount_minor(line->segments_ms, line->micros_per_hour, &amount) < 0)
		problem(c, "line %d: its amount does not fit", line->line);
	else if (amount != line->amount_minor)
		problem(c, "line %d says %" PRId64 " minor units, its segments cost %" PRId64, line->line,
			line->amount_minor, amount);
}

static int check_content(struct check *c)
{
	const struct invoice *invoice = c->invoice;
	if (!invoice->content) {
		problem(c, "it is %s and has no content", invoice->status);
		return 0;
	}
	char sha256[DIGEST_HEX_MAX];
	int rc = digest_hex_of(invoice->content, strlen(invoice->content), sha256);
	if (rc < 0)
		return rc;
	if (strcmp(sha256, invoice->content_sha256) != 0)
		problem(c, "its content has the check sum %s, not %s", sha256, invoice->content_sha256);
	if (strcmp(invoice->status, "void") == 0)
		return 0;
	cleanup(freep) char *rebuilt = NULL;
	rc = invoice_content(invoice, &rebuilt, sha256);
	if (rc < 0)
		return rc;
	if (strcmp(rebuilt, invoice->content) != 0)
		problem(c, "its content is not what lines and segments give (check sum %s)", sha256);
	return 0;
}

int invoice_check(const struct invoice *invoice, struct buf *problems, int *ret_count)
{
	struct check c = { .invoice = invoice, .problems = problems };
	bool is_void = strcmp(invoice->status, "void") == 0;
	int64_t total = 0;
	for (size_t i = 0; i < invoice->line_count; i++) {
		if (!is_void)
			check_line(&c, &invoice->lines[i]);
		if (__builtin_add_overflow(total, invoice->lines[i].amount_minor, &total))
			problem(&c, "the sum of its lines does not fit");
	}
	if (total != invoice->total_minor)
		problem(&c, "its total is %" PRId64 " minor units, its lines add up to %" PRId64,
			invoice->total_minor, total);
	if (strcmp(invoice->status, "draft") != 0) {
		int rc = check_content(&c);
		if (rc < 0)
			return rc;
	}
	if (problems->failed)
		return problems->failed;
	*ret_count = c.count;
	return 0;
}

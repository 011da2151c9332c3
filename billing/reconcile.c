/* SPDX-License-Identifier: Apache-2.0
 * reconcile: conservation of every device, and every invoice against its segments. */
#include "billing/command.h"

#include "core/base/buf.h"
#include "core/json/writer.h"
#include "core/model/reconcile_store.h"

#include <inttypes.h>
#include <string.h>

enum { RECONCILE_LINE_MAX = 64 * 1024 };

/* Milliseconds with as many digits behind the point as it needs: none when all is well. */
static const char *ms_text(int64_t us, char text[static 32])
{
	if (us % 1000 == 0)
		(void)snprintf(text, 32, "%" PRId64, us / 1000);
	else
		(void)snprintf(text, 32, "%s%" PRId64 ".%03" PRId64, us < 0 ? "-" : "",
			(us < 0 ? -us : us) / 1000, (us < 0 ? -us : us) % 1000);
	return text;
}

static void row(FILE *out, const char *name, const struct reconcile_device *d, const char *verdict)
{
	const int64_t columns[] = { d->in_service_us, d->billed_us, d->unbilled_us, d->idle_us,
		d->lost_us, d->open_us, d->difference_us };
	(void)fprintf(out, "%-31s", name);
	for (size_t i = 0; i < ARRAY_LEN(columns); i++) {
		char text[32];
		(void)fprintf(out, " %13s", ms_text(columns[i], text));
	}
	(void)fprintf(out, "  %s\n", verdict);
}

static void add(struct reconcile_device *total, const struct reconcile_device *d)
{
	total->in_service_us += d->in_service_us;
	total->billed_us += d->billed_us;
	total->unbilled_us += d->unbilled_us;
	total->idle_us += d->idle_us;
	total->lost_us += d->lost_us;
	total->open_us += d->open_us;
	total->difference_us += d->difference_us;
}

static void print_table(FILE *out, const struct reconcile *all)
{
	(void)fprintf(out, "%-31s %13s %13s %13s %13s %13s %13s %13s\n", "device (ms)", "in service",
		"billed", "unbilled", "idle", "lost", "open", "difference");
	struct reconcile_device total = { 0 };
	for (size_t i = 0; i < all->count; i++) {
		const struct reconcile_device *d = &all->devices[i];
		row(out, d->id, d, reconcile_store_is_bad(d) ? "WRONG" : "ok");
		add(&total, d);
	}
	row(out, "total", &total, all->bad ? "WRONG" : "ok");
	for (size_t i = 0; i < all->count; i++) {
		if (!reconcile_store_is_bad(&all->devices[i]))
			continue;
		cleanup(buf_finish) struct buf text;
		buf_init(&text, RECONCILE_LINE_MAX);
		reconcile_store_explain(&all->devices[i], &text);
		(void)fputs(buf_cstr(&text), out);
	}
}

static void put_ms(struct json_writer *w, const char *key, int64_t us)
{
	char text[32];
	json_field_raw(w, key, ms_text(us, text));
}

/* One object a line: devices, then a summary. */
static void print_json_device(FILE *out, const struct reconcile_device *d)
{
	cleanup(buf_finish) struct buf text;
	buf_init(&text, RECONCILE_LINE_MAX);
	struct json_writer w;
	json_writer_init(&w, &text);
	json_begin_object(&w);
	json_field_str(&w, "device_id", d->id);
	json_field_str(&w, "instance_type", d->instance_type);
	json_field_bool(&w, "in_service_now", d->in_service_now);
	put_ms(&w, "in_service_ms", d->in_service_us);
	put_ms(&w, "billed_ms", d->billed_us);
	put_ms(&w, "unbilled_ms", d->unbilled_us);
	put_ms(&w, "idle_ms", d->idle_us);
	put_ms(&w, "lost_ms", d->lost_us);
	put_ms(&w, "open_ms", d->open_us);
	put_ms(&w, "difference_ms", d->difference_us);
	json_field_i64(&w, "gaps", d->gaps);
	json_field_i64(&w, "overlaps", d->overlaps);
	json_field_i64(&w, "fractions", d->fractions);
	json_field_i64(&w, "mispriced", d->mispriced);
	json_field_i64(&w, "over_month", d->over_month);
	json_field_i64(&w, "unattested", d->unattested);
	json_field_bool(&w, "ok", !reconcile_store_is_bad(d));
	json_end_object(&w);
	(void)fprintf(out, "%s\n", buf_cstr(&text));
}

static int reconcile(struct db_conn *conn, bool json, FILE *out, bool *ret_ok, struct err *err)
{
	cleanup(reconcile_store_finish) struct reconcile all = { 0 };
	int rc = reconcile_store_devices(conn, NULL, false, &all, err);
	if (rc < 0)
		return rc;
	int64_t invoices = 0, differences = 0;
	if (json) {
		for (size_t i = 0; i < all.count; i++)
			print_json_device(out, &all.devices[i]);
	} else {
		print_table(out, &all);
	}
	/* With --json the sentences about invoices would break the lines: `verify --all` says them. */
	cleanup(freep) char *said = NULL;
	size_t said_bytes = 0;
	FILE *problems = open_memstream(&said, &said_bytes);
	if (!problems)
		return err_set(err, ERR_NO_MEMORY, NULL, "out of memory");
	rc = command_verify_invoices(conn, NULL, problems, &invoices, &differences, err);
	(void)fclose(problems);
	if (rc < 0)
		return rc;
	bool ok = all.bad == 0 && differences == 0;
	if (json)
		(void)fprintf(out,
			"{\"devices\":%zu,\"bad_devices\":%" PRId64 ",\"invoices\":%" PRId64
			",\"invoice_differences\":%" PRId64 ",\"ok\":%s}\n",
			all.count, all.bad, invoices, differences, ok ? "true" : "false");
	else
		(void)fprintf(out,
			"%s%zu devices, %" PRId64 " wrong; %" PRId64 " invoices, %" PRId64 " differences\n",
			said, all.count, all.bad, invoices, differences);
	*ret_ok = ok;
	return 0;
}

int command_reconcile(struct db_pool *pool, const struct command_options *options, FILE *out,
	bool *ret_ok, struct err *err)
{
	struct db_conn *conn = NULL;
	int rc = db_pool_get(pool, COMMAND_DB_WAIT_MS, &conn, err);
	if (rc < 0)
		return rc;
	rc = reconcile(conn, options->json, out, ret_ok, err);
	db_pool_put(pool, conn);
	return rc;
}

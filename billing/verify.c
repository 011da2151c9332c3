/* SPDX-License-Identifier: Apache-2.0
 * verify: recomputes invoices from their segments and compares. */
#include "billing/command.h"

#include "core/base/buf.h"
#include "core/base/ident.h"
#include "core/model/invoice_store.h"

#include <inttypes.h>

enum { VERIFY_PROBLEMS_MAX = 4 * 1024 * 1024 };

static int verify_one(
	struct db_conn *conn, const char *id, FILE *out, int64_t *differences, struct err *err)
{
	cleanup(invoice_finish) struct invoice invoice = { 0 };
	int rc = invoice_store_load(conn, NULL, id, &invoice, err);
	if (rc < 0)
		return rc;
	cleanup(buf_finish) struct buf problems;
	buf_init(&problems, VERIFY_PROBLEMS_MAX);
	int count = 0;
	rc = invoice_check(&invoice, &problems, &count);
	if (rc < 0)
		return err_set(err, rc, NULL, "invoice %s cannot be checked", id);
	(void)fputs(buf_cstr(&problems), out);
	*differences += count;
	return 0;
}

int command_verify_invoices(struct db_conn *conn, const char *id, FILE *out, int64_t *ret_checked,
	int64_t *ret_differences, struct err *err)
{
	int64_t checked = 0, differences = 0;
	char after[IDENT_MAX] = "";
	int rows;
	do {
		cleanup(db_result_freep) struct db_result *page = NULL;
		int rc = id ? verify_one(conn, id, out, &differences, err)
					: invoice_store_ids(conn, after, &page, err);
		if (rc < 0)
			return rc;
		rows = page ? db_rows(page) : 0;
		checked += id ? 1 : rows;
		for (int i = 0; i < rows; i++) {
			rc = verify_one(conn, db_str(page, i, 0), out, &differences, err);
			if (rc < 0)
				return rc;
			(void)snprintf(after, sizeof(after), "%s", db_str(page, i, 0));
		}
	} while (rows == INVOICE_IDS_PAGE);
	*ret_checked = checked;
	*ret_differences = differences;
	return 0;
}

int command_verify(struct db_pool *pool, const struct command_options *options, FILE *out,
	bool *ret_ok, struct err *err)
{
	if (!options->argument == !options->all)
		return err_set(err, ERR_MISSING_FIELD, NULL, "give an invoice or --all");
	struct db_conn *conn = NULL;
	int rc = db_pool_get(pool, COMMAND_DB_WAIT_MS, &conn, err);
	if (rc < 0)
		return rc;
	int64_t checked = 0, differences = 0;
	rc = command_verify_invoices(conn, options->argument, out, &checked, &differences, err);
	db_pool_put(pool, conn);
	if (rc < 0)
		return rc;
	(void)fprintf(out, "%" PRId64 " invoice%s checked, %" PRId64 " difference%s\n", checked,
		checked == 1 ? "" : "s", differences, differences == 1 ? "" : "s");
	*ret_ok = differences == 0;
	return 0;
}

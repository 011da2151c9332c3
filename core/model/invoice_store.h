/* SPDX-License-Identifier: Apache-2.0
 * Invoices in the database: the steps of a close (inside the caller's transaction), loading one for
 * a check, and what the API's handlers write. A connection belongs to one thread. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "core/base/ident.h"
#include "core/db/db.h"
#include "core/json/writer.h"
#include "core/model/invoice.h"
#include "core/model/page.h"

#include <stdbool.h>
#include <stdint.h>

enum {
	INVOICE_SEGMENT_IDS_MAX = 1000, /* of one line in the API's answer */
	INVOICE_IDS_PAGE = 500,
};

/* ---------------------------------------------------------------- a close */

/* Until the transaction ends, nobody else closes for this tenant. NOT_FOUND: no such tenant. */
int invoice_store_lock(struct db_conn *conn, const char *tenant_id, struct err *err) must_check;

enum { INVOICE_UNSET = -1 };
struct invoice_period {
	int64_t from_us;
	int64_t to_us;
};
/* The next period to invoice inside [from, to): within one UTC month and outside every invoice
 * there is. from unset: the end of the tenant's last invoice, or its creation. to unset: now on the
 * database's clock; a later one is INVALID_VALUE. *ret_to_us is the end that was meant, for the
 * next call. *ret_found is false when nothing is left. */
int invoice_store_next_period(struct db_conn *conn, const char *tenant_id, int64_t from_us,
	int64_t to_us, struct invoice_period *ret, int64_t *ret_to_us, bool *ret_found,
	struct err *err) must_check;

/* Makes the draft with its lines and segments: billed ones that ended in the period, and ones that
 * ended in a period invoiced before but were decided only afterwards; with `all_earlier` every one
 * that ended before. Amounts are rated. *ret_found is false, and nothing is written, when there is
 * no usage. */
int invoice_store_draft(struct db_conn *conn, const char *id, const char *tenant_id,
	const struct invoice_period *period, bool all_earlier, bool *ret_found,
	struct err *err) must_check;

/* Gives the draft its content and check sum. It never changes again. */
int invoice_store_finalize(struct db_conn *conn, const char *id, struct err *err) must_check;

/* ---------------------------------------------------------------- reading */

/* Everything about one invoice, with what its segments say. tenant_id NULL: of any tenant.
 * NOT_FOUND. */
int invoice_store_load(struct db_conn *conn, const char *tenant_id, const char *id,
	struct invoice *ret, struct err *err) must_check;

/* Ids in ascending order after `after` ("" = from the first), up to the page size, as a result of
 * one column. */
int invoice_store_ids(
	struct db_conn *conn, const char *after, struct db_result **ret, struct err *err) must_check;
/* The same for tenants. */
int invoice_store_tenants(
	struct db_conn *conn, const char *after, struct db_result **ret, struct err *err) must_check;

/* Writes the list object of a tenant's invoices, drafts left out. */
int invoice_store_list(struct db_conn *conn, const char *tenant_id, const struct page *page,
	struct json_writer *w, struct err *err) must_check;
/* Writes one invoice with its lines and the recomputed check. NOT_FOUND. */
int invoice_store_write(struct db_conn *conn, const char *tenant_id, const char *id,
	struct json_writer *w, struct err *err) must_check;

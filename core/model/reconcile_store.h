/* SPDX-License-Identifier: Apache-2.0
 * Conservation: for every device, in service = billed + unbilled + idle + lost + open, with no gap
 * and no overlap, and every billed segment at its price and in one month. Asked by a close, before
 * it finalizes, and by `reconcile`. A connection belongs to one thread. */
#pragma once

#include "core/base/attr.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/base/ident.h"
#include "core/db/db.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct reconcile_device {
	char id[IDENT_MAX];
	char instance_type[64];
	bool in_service_now;
	/* Microseconds, so that a fraction of a millisecond would show. */
	int64_t in_service_us;
	int64_t billed_us;
	int64_t unbilled_us;
	int64_t idle_us;
	int64_t lost_us;
	int64_t open_us;
	int64_t difference_us; /* in_service less all others */
	int64_t gaps;
	int64_t overlaps;
	int64_t fractions;  /* bounds that are not whole milliseconds */
	int64_t mispriced;  /* billed at a price that was not in force throughout */
	int64_t over_month; /* billed across a month's end */
	int64_t unattested; /* segment and attempt, or device and holder, do not belong together */
};

struct reconcile {
	struct reconcile_device *devices; /* owned */
	size_t count;
	int64_t bad; /* devices with any difference */
};

void reconcile_store_finish(struct reconcile *r);
/* True when anything about the device is not as it must be. */
bool reconcile_store_is_bad(const struct reconcile_device *d);

/* Every device, at one instant (a single statement); with an invoice, those that its segments ran
 * on. With only_bad, only those with a difference. */
int reconcile_store_devices(struct db_conn *conn, const char *invoice_id, bool only_bad,
	struct reconcile *ret, struct err *err) must_check;

/* "dev_…: 5 ms are in no segment; 1 gap": a sentence about a bad device. */
void reconcile_store_explain(const struct reconcile_device *d, struct buf *out);

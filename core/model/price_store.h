/* SPDX-License-Identifier: Apache-2.0
 * Prices: versioned rows, each in force from an instant until the next one of its type. Never
 * changed once written. A connection belongs to one thread. Writers of segments split an interval
 * with the SQL function price_slices(type, since, until), which cuts at prices and month ends. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "core/base/ident.h"
#include "core/db/db.h"

#include <stdint.h>

enum {
	PRICE_ID_MAX = 64,
	PRICE_CURRENCY_MAX = 4,
};

struct price {
	char id[PRICE_ID_MAX];
	char currency[PRICE_CURRENCY_MAX];
	int64_t micros_per_hour; /* per device-hour */
	int64_t effective_from_us;
};

/* The price in force at an instant (microseconds since 1970), or now on the database's clock when
 * at_us is PRICE_NOW. NOT_FOUND when the type has none. */
enum { PRICE_NOW = -1 };
int price_store_at(struct db_conn *conn, const char *instance_type, int64_t at_us,
	struct price *ret, struct err *err) must_check;

/* A new price. CONFLICT when time after effective_from is billed already or there is one from that
 * instant; NOT_FOUND when the type does not exist. */
int price_store_insert(struct db_conn *conn, const char *instance_type, const struct price *price,
	struct err *err) must_check;

/* SPDX-License-Identifier: Apache-2.0
 * SQL of prices. One connection, one thread. */
#include "core/model/price_store.h"

#include "core/base/clock.h"
#include "core/model/sql_text.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

int price_store_at(struct db_conn *conn, const char *instance_type, int64_t at_us,
	struct price *ret, struct err *err)
{
	char at[CLOCK_RFC3339_MAX];
	clock_rfc3339(at_us, at);
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc = db_exec(conn, &r, err,
		"select id, currency, micros_per_hour, " SQL_MICROS(
			"effective_from") " from prices "
							  "where instance_type = $1 and effective_from <= "
							  "coalesce($2::timestamptz, yard_now()) "
							  "order by effective_from desc limit 1",
		DB_TEXT(instance_type), DB_TEXT(at_us == PRICE_NOW ? NULL : at));
	if (rc < 0)
		return rc;
	if (db_rows(r) == 0)
		return err_set(
			err, ERR_NOT_FOUND, NULL, "instance type %s has no price then", instance_type);
	struct price price = {
		.micros_per_hour = db_i64(r, 0, 2),
		.effective_from_us = db_i64(r, 0, 3),
	};
	(void)snprintf(price.id, sizeof(price.id), "%s", db_str(r, 0, 0));
	(void)snprintf(price.currency, sizeof(price.currency), "%s", db_str(r, 0, 1));
	*ret = price;
	return 0;
}

int price_store_insert(
	struct db_conn *conn, const char *instance_type, const struct price *price, struct err *err)
{
	assert(price->micros_per_hour >= 0);
	char from[CLOCK_RFC3339_MAX];
	clock_rfc3339(price->effective_from_us, from);
	struct err detail = { 0 };
	int rc = db_exec(conn, NULL, &detail,
		"insert into prices (id, instance_type, currency, micros_per_hour, effective_from) "
		"values ($1, $2, $3, $4::bigint, $5::timestamptz)",
		DB_TEXT(price->id), DB_TEXT(instance_type), DB_TEXT(price->currency),
		DB_I64(price->micros_per_hour), DB_TEXT(from));
	if (rc == 0)
		return 0;
	if (strcmp(detail.sqlstate, "23503") == 0)
		return err_set(
			err, ERR_NOT_FOUND, NULL, "the catalogue has no instance type %s", instance_type);
	if (strcmp(detail.sqlstate, "23514") == 0)
		return err_set(err, ERR_CONFLICT, "effective_from", "%s", detail.message);
	if (rc == ERR_DB_UNIQUE)
		return err_set(err, ERR_CONFLICT, "effective_from",
			"instance type %s has a price from %s already", instance_type, from);
	if (err)
		*err = detail;
	return rc;
}

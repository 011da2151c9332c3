/* SPDX-License-Identifier: Apache-2.0
 * Prices and the slices of an interval, on a real database. Run by with_pg.sh. */
#include "core/model/price_store.h"
#include "tests/support/check.h"
#include "tests/unit/core/model/money_fixture.h"

static int64_t at(const char *text)
{
	int64_t us = 0;
	assert_int_equal(clock_parse_rfc3339(text, &us), 0);
	return us;
}

static struct price price(const char *id, int64_t micros, const char *from)
{
	struct price p = {
		.currency = "USD", .micros_per_hour = micros, .effective_from_us = at(from)
	};
	(void)snprintf(p.id, sizeof(p.id), "%s", id);
	return p;
}

static void a_price_holds_until_the_next(void **state)
{
	struct store_fixture *fx = *state;
	struct err err = { 0 };
	struct price found, next = price("price_2", 500000, "2025-03-01T00:00:00Z");
	assert_ok(price_store_insert(fx->conn, "cpu-dev", &next, &err));
	assert_int_equal(
		price_store_at(fx->conn, "cpu-dev", at("2024-12-31T23:59:59.999Z"), &found, &err),
		ERR_NOT_FOUND);
	assert_ok(price_store_at(fx->conn, "cpu-dev", at("2025-01-01T00:00:00Z"), &found, &err));
	assert_int_equal(found.micros_per_hour, 360000);
	assert_ok(price_store_at(fx->conn, "cpu-dev", at("2025-02-28T23:59:59.999Z"), &found, &err));
	assert_int_equal(found.micros_per_hour, 360000);
	assert_ok(price_store_at(fx->conn, "cpu-dev", at("2025-03-01T00:00:00Z"), &found, &err));
	assert_string_equal(found.id, "price_2");
	assert_int_equal(found.effective_from_us, at("2025-03-01T00:00:00Z"));
	assert_ok(price_store_at(fx->conn, "h100-80gb", PRICE_NOW, &found, &err));
	assert_int_equal(found.micros_per_hour, 3000000);
	assert_string_equal(found.currency, "USD");
}

static void bad_prices_are_refused(void **state)
{
	struct store_fixture *fx = *state;
	struct err err = { 0 };
	money_yard(fx->conn);
	money_tile(fx->conn, "dev_0", "billed", "att_1", "2025-01-16T00:00:00Z");
	const struct {
		const char *type;
		struct price price;
		int code;
	} cases[] = {
		{ "cpu-dev", price("price_2", 1, "2025-01-15T23:59:59.999Z"), ERR_CONFLICT },
		{ "cpu-dev", price("price_2", 1, "2025-01-16T00:00:00Z"), 0 },
		{ "cpu-dev", price("price_3", 2, "2025-01-16T00:00:00Z"), ERR_CONFLICT },
		{ "h100-80gb", price("price_4", 1, "2025-01-15T00:00:00Z"), 0 },
		{ "tpu", price("price_5", 1, "2025-01-15T00:00:00Z"), ERR_NOT_FOUND },
	};
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		money_sql(fx->conn, "savepoint try");
		assert_int_equal(
			price_store_insert(fx->conn, cases[i].type, &cases[i].price, &err), cases[i].code);
		if (cases[i].code < 0)
			money_sql(fx->conn, "rollback to savepoint try");
	}
	assert_refused(fx->conn, "update prices set micros_per_hour = 0", "P0001");
	assert_refused(fx->conn, "delete from prices where id = 'price_4'", "P0001");
}

/* Slices tile the interval, none crosses a month or a price, each has the price of its start. */
static void slices_tile(void **state)
{
	struct store_fixture *fx = *state;
	struct err err = { 0 };
	struct check_random random = check_random_start();
	for (int i = 0; i < 6; i++) {
		char from[CLOCK_RFC3339_MAX], id[32];
		clock_rfc3339(at("2025-01-02T00:00:00Z") +
				check_random_range(&random, 0, INT64_C(80) * 86400000) * 1000,
			from);
		(void)snprintf(id, sizeof(id), "price_r%d", i);
		struct price p = price(id, i, from);
		assert_ok(price_store_insert(fx->conn, "cpu-dev", &p, &err));
	}
	for (int round = 0; round < 200; round++) {
		int64_t lo = at("2024-12-20T00:00:00Z") +
			check_random_range(&random, 0, INT64_C(100) * 86400000) * 1000;
		int64_t hi =
			lo + check_random_range(&random, 1, round % 2 ? 5000 : INT64_C(40) * 86400000) * 1000;
		char from[CLOCK_RFC3339_MAX], to[CLOCK_RFC3339_MAX];
		clock_rfc3339(lo, from);
		clock_rfc3339(hi, to);
		cleanup(db_result_freep) struct db_result *r = NULL;
		assert_ok(db_exec(fx->conn, &r, &err,
			"select (extract(epoch from lower(slice)) * 1000000)::bigint,"
			" (extract(epoch from upper(slice)) * 1000000)::bigint,"
			" date_trunc('month', lower(slice) at time zone 'UTC') ="
			"  date_trunc('month', (upper(slice) - interval '1 us') at time zone 'UTC'),"
			" exists (select from prices p where p.instance_type = 'cpu-dev' and p.effective_from >"
			"  lower(slice) and p.effective_from < upper(slice)), price_id"
			" from price_slices('cpu-dev', $1::timestamptz, $2::timestamptz)",
			DB_TEXT(from), DB_TEXT(to)));
		int64_t next = lo;
		for (int i = 0; i < db_rows(r); i++) {
			assert_int_equal(db_i64(r, i, 0), next);
			next = db_i64(r, i, 1);
			assert_true(db_bool(r, i, 2));
			assert_false(db_bool(r, i, 3));
			struct price p;
			int rc = price_store_at(fx->conn, "cpu-dev", db_i64(r, i, 0), &p, &err);
			assert_string_equal(
				rc == 0 ? p.id : "none", db_is_null(r, i, 4) ? "none" : db_str(r, i, 4));
		}
		assert_int_equal(next, hi);
	}
	assert_int_equal(
		money_i64(fx->conn, "select count(*) from price_slices('cpu-dev', now(), now())"), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		store_test(a_price_holds_until_the_next),
		store_test(bad_prices_are_refused),
		store_test(slices_tile),
	};
	return cmocka_run_group_tests(tests, store_group_setup, store_group_teardown);
}

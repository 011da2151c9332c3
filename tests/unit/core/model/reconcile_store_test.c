/* SPDX-License-Identifier: Apache-2.0
 * Conservation on a real database: random tilings add up, planted faults do not. Run by with_pg.sh.
 */
#include "core/model/reconcile_store.h"
#include "tests/support/check.h"
#include "tests/unit/core/model/money_fixture.h"

static void fill(struct db_conn *conn)
{
	money_yard(conn);
	money_tile(conn, "dev_0", "idle", NULL, "2025-01-31T23:00:00Z");
	money_tile(conn, "dev_0", "unbilled", "att_1", "2025-01-31T23:00:00.007Z");
	money_tile(conn, "dev_0", "billed", "att_1", "2025-02-01T00:03:00.123Z");
	money_tile(conn, "dev_0", "lost", "att_1", "2025-02-01T00:04:00Z");
	money_tile(conn, "dev_1", "billed", "att_2", "2025-01-16T00:00:00Z");
	money_tile(conn, "dev_1", "idle", NULL, "2025-01-17T00:00:00Z");
}

static void expect_bad(struct db_conn *conn, int64_t bad, const char *must_say)
{
	struct err err = { 0 };
	cleanup(reconcile_store_finish) struct reconcile all = { 0 };
	assert_ok(reconcile_store_devices(conn, NULL, true, &all, &err));
	cleanup(buf_finish) struct buf text;
	buf_init(&text, 65536);
	for (size_t i = 0; i < all.count; i++) {
		assert_true(reconcile_store_is_bad(&all.devices[i]));
		reconcile_store_explain(&all.devices[i], &text);
	}
	if (all.bad != bad || (must_say && !strstr(buf_cstr(&text), must_say)))
		fail_msg("%lld bad, \"%s\" expected in: %s", (long long)all.bad, must_say, buf_cstr(&text));
}

static void a_tiled_yard_adds_up(void **state)
{
	struct store_fixture *fx = *state;
	struct err err = { 0 };
	fill(fx->conn);
	money_sql(fx->conn, "update devices set deregistered_at = open_since where id = 'dev_1'");
	cleanup(reconcile_store_finish) struct reconcile all = { 0 };
	assert_ok(reconcile_store_devices(fx->conn, NULL, false, &all, &err));
	assert_int_equal(all.count, 2);
	assert_int_equal(all.bad, 0);
	const struct reconcile_device *d = &all.devices[0];
	assert_string_equal(d->id, "dev_0");
	assert_int_equal(d->billed_us, INT64_C(1000) * (3600000 + 180123 - 7));
	assert_int_equal(d->unbilled_us, 7000);
	assert_int_equal(d->lost_us, 59877000);
	assert_true(d->open_us > 0 && d->in_service_now);
	assert_int_equal(
		d->in_service_us, d->billed_us + d->unbilled_us + d->idle_us + d->lost_us + d->open_us);
	d = &all.devices[1];
	assert_int_equal(d->open_us, 0);
	assert_false(d->in_service_now);
	assert_int_equal(d->in_service_us, INT64_C(2) * 86400 * 1000000);
}

/* A gap, and everything else that the database's own constraints cannot hold. */
static void planted_faults_are_found(void **state)
{
	struct store_fixture *fx = *state;
	struct db_conn *c = fx->conn;
	fill(c);
	expect_bad(c, 0, NULL);
	money_sql(c,
		"alter table segments disable trigger user;"
		"alter table prices disable trigger user");
	static const struct {
		const char *sql;
		const char *says;
	} faults[] = {
		{ "delete from segments where state = 'lost'", "dev_0: 59877.000 ms of service are in no" },
		{ "delete from segments where state = 'unbilled'", "1 gaps" },
		{ "delete from segments where device_id = 'dev_1' and state = 'billed'", "1 gaps" },
		{ "delete from segments where device_id = 'dev_1'", "in no segment; 1 gaps" },
		{ "update devices set open_since = open_since + interval '1 ms' where id = 'dev_0'",
			"dev_0: 1.000 ms of service are in no segment" },
		{ "update devices set open_since = open_since - interval '1 ms' where id = 'dev_0'",
			"dev_0: 1.000 ms of service are counted twice; 1 overlaps" },
		{ "update devices set registered_at = registered_at + interval '1 ms' where id = 'dev_0'",
			"counted twice; 1 overlaps" },
		{ "update devices set registered_at = registered_at - interval '1 h' where id = 'dev_0'",
			"dev_0: 3600000.000 ms of service are in no segment; 1 gaps" },
		/* The sum is right, the places are not. */
		{ "update segments set period = tstzrange(lower(period), upper(period) - interval '1 ms')"
		  " where state = 'unbilled'; update segments set period ="
		  " tstzrange(lower(period), upper(period) + interval '1 ms') where state = 'lost'",
			"dev_0: 1 gaps between segments; 1 overlaps" },
		{ "update segments set period = tstzrange('2025-01-31 23:00:00.0075Z', upper(period))"
		  " where state = 'billed' and device_id = 'dev_0' and upper(period) = '2025-02-01Z';"
		  "update segments set period = tstzrange(lower(period), '2025-01-31 23:00:00.0075Z')"
		  " where state = 'unbilled'",
			"2 bounds that are not whole milliseconds" },
		{ "alter table segments drop constraint segments_device_id_period_excl;"
		  "insert into segments (device_id, period, state, reason) values"
		  " ('dev_0', '[2025-01-20Z,2025-01-20 00:00:01Z)', 'idle', 'idle')",
			"1000.000 ms of service are counted twice" },
		{ "insert into prices (id, instance_type, micros_per_hour, effective_from) values"
		  " ('p2', 'cpu-dev', 1, '2025-01-15 12:00Z')",
			"1 billed segments at a price that was not in force" },
		{ "update segments set price_id = 'price_h100-80gb_2025-01-01' where device_id = 'dev_1'"
		  " and state = 'billed'",
			"dev_1: 1 billed segments at a price" },
		{ "delete from segments where lower(period) = '2025-02-01Z'; update segments set period ="
		  " tstzrange(lower(period), '2025-02-01 00:03:00.123Z') where upper(period) ="
		  " '2025-02-01Z'",
			"dev_0: 1 billed segments across a month's end" },
		{ "update segments set job_id = 'job_3' where state = 'lost'", "without their attempt" },
		{ "delete from attempt_devices where attempt_id = 'att_2'",
			"dev_1: 1 segments or holders without their attempt" },
		{ "update devices set open_state = 'training' where id = 'dev_1'", "dev_1: 1 segments or" },
	};
	for (size_t i = 0; i < ARRAY_LEN(faults); i++) {
		money_sql(c, "savepoint fault");
		money_sql(c, "%s", faults[i].sql);
		struct err err = { 0 };
		cleanup(reconcile_store_finish) struct reconcile all = { 0 };
		assert_ok(reconcile_store_devices(c, NULL, true, &all, &err));
		expect_bad(c, (int64_t)all.count, faults[i].says);
		assert_true(all.bad > 0);
		money_sql(c, "rollback to savepoint fault");
	}
	expect_bad(c, 0, NULL);
}

static void an_overlap_is_refused(void **state)
{
	struct store_fixture *fx = *state;
	fill(fx->conn);
	assert_refused(fx->conn,
		"insert into segments (device_id, period, state, reason) values"
		" ('dev_1', '[2025-01-16 23:59:59.999Z,2025-01-17Z)', 'idle', 'idle')",
		"23P01");
	assert_refused(fx->conn,
		"insert into segments (device_id, period, state, reason) values"
		" ('dev_1', '[2025-01-17Z,2025-01-17Z)', 'idle', 'idle')",
		"23514");
	assert_refused(fx->conn,
		"insert into segments (device_id, period, state, reason) values"
		" ('dev_1', '[2025-01-17Z,2025-01-18Z)', 'idle', 'idle')",
		"");
}

static void random_tilings_add_up(void **state)
{
	struct store_fixture *fx = *state;
	struct check_random random = check_random_start();
	money_yard(fx->conn);
	static const char *const states[] = { "billed", "unbilled", "lost", "idle" };
	int64_t now = 0;
	assert_int_equal(clock_parse_rfc3339("2025-01-15T00:00:00Z", &now), 0);
	for (int i = 0; i < 200; i++) {
		now += check_random_range(&random, 1, i % 5 ? 5000 : 86400000) * 1000;
		char until[CLOCK_RFC3339_MAX];
		clock_rfc3339(now, until);
		const char *word = states[check_random_range(&random, 0, 3)];
		money_tile(fx->conn, "dev_0", word, strcmp(word, "idle") == 0 ? NULL : "att_1", until);
	}
	expect_bad(fx->conn, 0, NULL);
	/* Any one segment less is seen. */
	money_sql(fx->conn,
		"alter table segments disable trigger user; delete from segments where id ="
		" (select id from segments where device_id = 'dev_0' order by random()"
		" limit 1)");
	expect_bad(fx->conn, 1, "1 gaps");
}

static void only_an_invoice_s_devices(void **state)
{
	struct store_fixture *fx = *state;
	struct err err = { 0 };
	fill(fx->conn);
	money_sql(fx->conn,
		"insert into invoices (id, tenant_id, status, period, currency, total_minor) values"
		" ('inv_1', 'tenant_a', 'draft', '[2025-01-01Z,2025-02-01Z)', 'USD', 0);"
		"insert into invoice_lines select 'inv_1', 1, 'job_2', 'cpu-dev', price_id, 1, 0, ''"
		" from segments where job_id = 'job_2';"
		"insert into invoice_segments select id, 'inv_1', 1 from segments where job_id = 'job_2';"
		"update devices set open_since = open_since + interval '1 ms' where id = 'dev_0'");
	cleanup(reconcile_store_finish) struct reconcile all = { 0 };
	assert_ok(reconcile_store_devices(fx->conn, "inv_1", false, &all, &err));
	assert_int_equal(all.count, 1);
	assert_string_equal(all.devices[0].id, "dev_1");
	assert_int_equal(all.bad, 0);
	expect_bad(fx->conn, 1, "dev_0");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		store_test(a_tiled_yard_adds_up),
		store_test(planted_faults_are_found),
		store_test(an_overlap_is_refused),
		store_test(random_tilings_add_up),
		store_test(only_an_invoice_s_devices),
	};
	return cmocka_run_group_tests(tests, store_group_setup, store_group_teardown);
}

/* SPDX-License-Identifier: Apache-2.0
 * Usage on a real database: windows, groups, price changes, open time. Run by with_pg.sh. */
#include "core/base/num.h"
#include "core/model/usage_store.h"
#include "tests/support/check.h"
#include "tests/unit/core/model/money_fixture.h"

static int64_t at(const char *text)
{
	int64_t us = 0;
	assert_int_equal(clock_parse_rfc3339(text, &us), 0);
	return us;
}

static int64_t member(const struct json_val *object, const char *key)
{
	int64_t v = json_i64_or(json_get(object, key), -1);
	assert_true(v >= 0);
	return v;
}

static int64_t cents(const struct json_val *object)
{
	int64_t micros = -1;
	assert_int_equal(num_parse_micros(json_str_or(json_get(object, "amount"), ""), &micros), 0);
	return micros / RATE_MICROS_PER_MINOR;
}

static const struct json_val *usage(struct store_json *j, struct db_conn *conn, const char *from,
	const char *to, enum usage_group group)
{
	struct err err = { 0 };
	struct usage_window window = { at(from), at(to) };
	store_json_init(j);
	assert_ok(usage_store_write(conn, "tenant_a", &window, group, &j->w, &err));
	return store_json_root(j);
}

/* A day of two devices with every state, another tenant beside it, and a price change. */
static void fill(struct db_conn *conn)
{
	money_yard(conn);
	money_sql(conn,
		"insert into prices (id, instance_type, micros_per_hour, effective_from)"
		" values ('price_new', 'cpu-dev', 720000, '2025-01-20T12:00:00Z')");
	money_tile(conn, "dev_0", "idle", NULL, "2025-01-20T11:58:30Z");
	money_tile(conn, "dev_0", "unbilled", "att_1", "2025-01-20T11:59:00Z");
	money_tile(conn, "dev_0", "billed", "att_1", "2025-01-20T12:01:00Z");
	money_tile(conn, "dev_0", "lost", "att_1", "2025-01-20T12:01:07.001Z");
	money_tile(conn, "dev_0", "billed", "att_2", "2025-01-20T13:00:00.5Z");
	money_tile(conn, "dev_1", "idle", NULL, "2025-01-31T23:00:00Z");
	money_tile(conn, "dev_1", "billed", "att_2", "2025-02-01T01:00:00Z");
	money_tile(conn, "dev_1", "billed", "att_3", "2025-02-01T02:00:00Z");
}

static void a_price_change_splits_the_job(void **state)
{
	struct store_fixture *fx = *state;
	struct err err = { 0 };
	fill(fx->conn);
	struct usage_total total;
	assert_ok(usage_store_job_total(fx->conn, "job_1", &total, &err));
	assert_int_equal(total.billed_ms, 120000);
	assert_int_equal(total.unbilled_ms, 30000);
	assert_int_equal(total.lost_ms, 7001);
	assert_int_equal(total.provisional_ms, 0);
	/* 60 s at 0.36 are 0.6 cents, 60 s at 0.72 are 1.2: each line is rounded once. */
	assert_int_equal(total.amount_minor, 2);
	assert_string_equal(total.amount, "0.02");
	assert_string_equal(total.currency, "USD");
	assert_ok(usage_store_job_total(fx->conn, "job_none", &total, &err));
	assert_int_equal(total.billed_ms + total.unbilled_ms + total.amount_minor, 0);
	assert_string_equal(total.amount, "0.00");
}

static void groups_agree(void **state)
{
	struct store_fixture *fx = *state;
	fill(fx->conn);
	static const int64_t rows[] = {
		[USAGE_BY_JOB] = 2, [USAGE_BY_INSTANCE_TYPE] = 1, [USAGE_BY_DAY] = 3
	};
	for (int group = USAGE_BY_JOB; group <= USAGE_BY_DAY; group++) {
		struct store_json j;
		const struct json_val *u = usage(
			&j, fx->conn, "2025-01-01T00:00:00Z", "2025-03-01T00:00:00Z", (enum usage_group)group);
		const struct json_val *total = json_get(u, "total"), *data = json_get(u, "data");
		assert_int_equal(json_array_len(data), rows[group]);
		assert_int_equal(member(total, "billed_ms"), 120000 + 3533499 + 7200000);
		assert_int_equal(member(total, "unbilled_ms"), 30000);
		assert_int_equal(member(total, "lost_ms"), 7001);
		/* job_1: 1 + 1; job_2: 10,733,499 ms at 0.72 in one line of 214.66998 cents. */
		assert_int_equal(cents(total), 217);
		int64_t ms = 0, amount = 0;
		for (size_t i = 0; i < json_array_len(data); i++) {
			ms += member(json_array_at(data, i), "billed_ms");
			amount += cents(json_array_at(data, i));
		}
		assert_int_equal(ms, member(total, "billed_ms"));
		assert_int_equal(amount, cents(total));
		store_json_finish(&j);
	}
}

static void days_split_at_midnight(void **state)
{
	struct store_fixture *fx = *state;
	fill(fx->conn);
	struct store_json j;
	const struct json_val *u =
		usage(&j, fx->conn, "2025-01-31T00:00:00Z", "2025-02-02T00:00:00Z", USAGE_BY_DAY);
	const struct json_val *data = json_get(u, "data");
	assert_int_equal(json_array_len(data), 2);
	assert_string_equal(json_str_or(json_get(json_array_at(data, 0), "day"), ""), "2025-01-31");
	assert_string_equal(json_str_or(json_get(json_array_at(data, 1), "day"), ""), "2025-02-01");
	assert_int_equal(member(json_array_at(data, 0), "billed_ms"), 3600000);
	assert_int_equal(member(json_array_at(data, 1), "billed_ms"), 3600000);
	assert_int_equal(cents(json_array_at(data, 0)), 72);
	store_json_finish(&j);
}

/* Windows are half-open: windows that touch neither lose nor repeat a millisecond. */
static void windows_tile(void **state)
{
	struct store_fixture *fx = *state;
	struct check_random random = check_random_start();
	fill(fx->conn);
	const int64_t from = at("2025-01-20T11:00:00Z"), to = at("2025-02-01T03:00:00Z");
	int64_t ms = 0;
	for (int64_t lo = from; lo < to;) {
		int64_t hi = lo + check_random_range(&random, 1, 40000000) * 1000;
		hi = hi > to ? to : hi;
		struct store_json j;
		struct err err = { 0 };
		struct usage_window window = { lo, hi };
		store_json_init(&j);
		assert_ok(
			usage_store_write(fx->conn, "tenant_a", &window, USAGE_BY_INSTANCE_TYPE, &j.w, &err));
		ms += member(json_get(store_json_root(&j), "total"), "billed_ms");
		store_json_finish(&j);
		lo = hi;
	}
	assert_int_equal(ms, 120000 + 3533499 + 7200000);
}

static void bad_windows_are_refused(void **state)
{
	struct store_fixture *fx = *state;
	struct err err = { 0 };
	money_yard(fx->conn);
	struct store_json j;
	store_json_init(&j);
	const int64_t jan = at("2025-01-01T00:00:00Z");
	const struct usage_window windows[] = { { jan, jan }, { jan + 1, jan },
		{ jan, jan + (int64_t)USAGE_WINDOW_DAYS_MAX * 86400 * 1000000 },
		{ at("9000-01-01T00:00:00Z"), USAGE_UNSET } };
	for (size_t i = 0; i < ARRAY_LEN(windows); i++)
		assert_int_equal(
			usage_store_write(fx->conn, "tenant_a", &windows[i], USAGE_BY_JOB, &j.w, &err),
			ERR_INVALID_VALUE);
	struct usage_window unset = { USAGE_UNSET, USAGE_UNSET };
	assert_ok(usage_store_write(fx->conn, "tenant_a", &unset, USAGE_BY_JOB, &j.w, &err));
	store_json_finish(&j);
}

static void running_time_is_provisional(void **state)
{
	struct store_fixture *fx = *state;
	struct err err = { 0 };
	money_yard(fx->conn);
	money_sql(fx->conn,
		"update devices set open_state = 'training', open_attempt_id = 'att_1',"
		" open_since = yard_now() - interval '5 s' where id = 'dev_0';"
		"update devices set open_state = 'starting', open_attempt_id = 'att_1',"
		" open_since = yard_now() - interval '5 s' where id = 'dev_1'");
	struct usage_total total;
	assert_ok(usage_store_job_total(fx->conn, "job_1", &total, &err));
	assert_in_range(total.provisional_ms, 5000, 60000);
	assert_int_equal(total.amount_minor, 0);
	struct store_json j;
	store_json_init(&j);
	struct usage_window unset = { at("2025-12-01T00:00:00Z"), USAGE_UNSET };
	unset.from_us = money_i64(
		fx->conn, "select (extract(epoch from yard_now() - interval '1 s') * 1000000)::bigint");
	assert_ok(usage_store_write(fx->conn, "tenant_a", &unset, USAGE_BY_DAY, &j.w, &err));
	const struct json_val *u = store_json_root(&j);
	assert_in_range(member(json_get(u, "total"), "provisional_ms"), 1000, 60000);
	assert_string_equal(json_str_or(json_get(json_get(u, "total"), "amount"), ""), "0.00");
	store_json_finish(&j);
	store_json_init(&j);
	assert_ok(usage_store_write_job(fx->conn, "tenant_a", "job_1", 0, 10, &j.w, &err));
	u = store_json_root(&j);
	assert_int_equal(json_array_len(json_get(u, "open")), 2);
	assert_int_equal(json_array_len(json_get(u, "segments")), 0);
	assert_null(json_get(u, "last_id"));
	store_json_finish(&j);
}

static void a_job_shows_every_segment(void **state)
{
	struct store_fixture *fx = *state;
	struct err err = { 0 };
	fill(fx->conn);
	int64_t after = 0, amount = 0, ms = 0;
	int segments = 0;
	bool more = true;
	while (more) {
		struct store_json j;
		store_json_init(&j);
		assert_ok(usage_store_write_job(fx->conn, "tenant_a", "job_1", after, 2, &j.w, &err));
		const struct json_val *u = store_json_root(&j), *page = json_get(u, "segments");
		for (size_t i = 0; i < json_array_len(page); i++) {
			const struct json_val *s = json_array_at(page, i);
			bool billed = strcmp(json_str_or(json_get(s, "state"), ""), "billed") == 0;
			assert_int_equal(billed, json_get(s, "price_per_device_hour") != NULL);
			assert_true(member(s, "id") > after);
			after = member(s, "id");
			amount += cents(s);
			ms += member(s, "duration_ms");
			segments++;
		}
		more = json_bool_or(json_get(u, "has_more"), false);
		assert_int_equal(member(u, "last_id"), after);
		store_json_finish(&j);
	}
	assert_int_equal(segments, 4);
	assert_int_equal(ms, 157001);
	assert_int_equal(amount, 2);
	struct store_json j;
	store_json_init(&j);
	assert_int_equal(
		usage_store_write_job(fx->conn, "tenant_b", "job_1", 0, 10, &j.w, &err), ERR_NOT_FOUND);
	store_json_finish(&j);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		store_test(a_price_change_splits_the_job),
		store_test(groups_agree),
		store_test(days_split_at_midnight),
		store_test(windows_tile),
		store_test(bad_windows_are_refused),
		store_test(running_time_is_provisional),
		store_test(a_job_shows_every_segment),
	};
	return cmocka_run_group_tests(tests, store_group_setup, store_group_teardown);
}

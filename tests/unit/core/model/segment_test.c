/* SPDX-License-Identifier: Apache-2.0
 * Device time: exact splits at prices and months, and exact tiling under random lives of a small
 * yard (TRAINYARD_TEST_SEED repeats one). Run by with_pg.sh. */
#include "tests/unit/core/model/yard_fixture.h"

enum { AGENTS = 3, JOBS = 4, MOVES = 300 };

/* As if the training at hand had begun then (an SQL expression) and nothing had been before. */
static void began(struct db_conn *conn, const char *agent, const char *then)
{
	struct err err = { 0 };
	char sql[300];
	assert_ok(db_exec(conn, NULL, &err, "alter table segments disable trigger segments_immutable"));
	assert_ok(db_exec(conn, NULL, &err, "delete from segments"));
	assert_ok(db_exec(conn, NULL, &err, "alter table segments enable trigger segments_immutable"));
	snprintf(sql, sizeof(sql),
		"update devices set open_since = t, registered_at = t from (select %s as t) x"
		" where agent_id = $1",
		then);
	assert_ok(db_exec(conn, NULL, &err, sql, DB_TEXT(agent)));
}

static void prices_and_months_split_what_is_billed(void **state)
{
	struct db_conn *conn = ((struct store_fixture *)*state)->conn;
	struct err err = { 0 };
	char tenant[IDENT_MAX], file[IDENT_MAX], job[IDENT_MAX];
	struct yard_agent agent;
	struct yard_attempt a;
	store_tenant(conn, "us", tenant);
	store_file(conn, tenant, 'a', file);
	yard_agent(conn, "us-east-1", 2, &agent);
	yard_job(conn, tenant, file, 2, job);
	yard_place(conn, job, agent.id, &a);
	yard_train(conn, &a);
	assert_ok(db_exec(conn, NULL, &err,
		"insert into prices (id, instance_type, micros_per_hour, effective_from) values"
		" ('price_new', 'cpu-dev', 720000, date_trunc('month', now() at time zone 'UTC')"
		"  at time zone 'UTC' - interval '10 days')"));
	began(conn, agent.id,
		"date_trunc('month', now() at time zone 'UTC') at time zone 'UTC' - interval '40 days'");
	yard_checkpoint(conn, tenant, &a, 10);
	yard_check_tiling(conn);
	cleanup(db_result_freep) struct db_result *r = NULL;
	assert_ok(db_exec(conn, &r, &err,
		"select lower(period) = lag(upper(period)) over w, price_id,"
		" date_trunc('month', lower(period) at time zone 'UTC') ="
		"  date_trunc('month', (upper(period) - interval '1 ms') at time zone 'UTC'),"
		" upper(period) = (select open_since from devices where id = device_id)"
		" from segments where state = 'billed' and attempt_id = $1"
		" window w as (partition by device_id order by period) order by device_id, period",
		DB_TEXT(a.id)));
	/* month before last | last month, old price | last month, new price | this month */
	assert_true(db_rows(r) == 8 || db_rows(r) == 6);
	int each = db_rows(r) / 2;
	for (int i = 0; i < db_rows(r); i++) {
		if (i % each > 0)
			assert_true(db_bool(r, i, 0));
		bool is_new = i % each >= each - 2;
		assert_string_equal(db_str(r, i, 1), is_new ? "price_new" : "price_cpu-dev_2025-01-01");
		assert_true(db_bool(r, i, 2));
		assert_int_equal(db_bool(r, i, 3), i % each == each - 1);
	}
}

static void time_without_a_price_is_not_billed(void **state)
{
	struct db_conn *conn = ((struct store_fixture *)*state)->conn;
	char tenant[IDENT_MAX], file[IDENT_MAX], job[IDENT_MAX];
	struct yard_agent agent;
	struct yard_attempt a;
	store_tenant(conn, "us", tenant);
	store_file(conn, tenant, 'a', file);
	yard_agent(conn, "us-east-1", 1, &agent);
	yard_job(conn, tenant, file, 1, job);
	yard_place(conn, job, agent.id, &a);
	yard_train(conn, &a);
	began(conn, agent.id, "'2024-12-31T23:00:00Z'::timestamptz");
	yard_checkpoint(conn, tenant, &a, 10);
	yard_check_tiling(conn);
	assert_text(conn, a.id, "unbilled no_price 2024-12-31 23:00:00+00 2025-01-01 00:00:00+00",
		"select state || ' ' || reason || ' ' || (lower(period) at time zone 'UTC') || '+00 '"
		" || (upper(period) at time zone 'UTC') || '+00' from segments where attempt_id = $1"
		" and period @> '2024-12-31T23:30:00Z'::timestamptz");
}

/* The database's clock was set back by an hour: time stands still for the device until then. */
static void time_never_runs_backwards(void **state)
{
	struct db_conn *conn = ((struct store_fixture *)*state)->conn;
	char tenant[IDENT_MAX], file[IDENT_MAX], job[IDENT_MAX];
	struct yard_agent agent;
	struct yard_attempt a;
	store_tenant(conn, "us", tenant);
	store_file(conn, tenant, 'a', file);
	yard_agent(conn, "us-east-1", 2, &agent);
	yard_job(conn, tenant, file, 2, job);
	yard_place(conn, job, agent.id, &a);
	yard_train(conn, &a);
	began(conn, agent.id, "yard_now() + interval '1 hour'");
	yard_checkpoint(conn, tenant, &a, 10);
	yard_expire(conn, &a);
	yard_check_tiling(conn);
	assert_text(conn, agent.id, "true",
		"select bool_and(open_since > yard_now() + interval '50 min')::text from devices"
		" where agent_id = $1");
	assert_text(conn, a.id, "0", "select count(*)::text from segments where $1 <> ''");
}

static void segments_are_written_once(void **state)
{
	struct db_conn *conn = ((struct store_fixture *)*state)->conn;
	struct err err = { 0 };
	struct yard_agent agent;
	yard_agent(conn, "us-east-1", 1, &agent);
	assert_ok(db_exec(conn, NULL, &err,
		"update devices set registered_at = registered_at - interval '1 hour',"
		" open_since = open_since - interval '1 hour' where agent_id = $1",
		DB_TEXT(agent.id)));
	assert_ok(segment_deregister(conn, agent.devices[0].id, &err));
	assert_int_equal(segment_deregister(conn, agent.devices[0].id, &err), ERR_CONFLICT);
	yard_check_tiling(conn);
	assert_int_equal(
		db_exec(conn, NULL, &err, "update segments set reason = 'other'"), ERR_INTERNAL);
}

/* ---------------------------------------------------------------- random lives */

struct life {
	struct db_conn *conn;
	struct check_random *random;
	char tenant[IDENT_MAX], file[IDENT_MAX];
	struct yard_agent agents[AGENTS];
	struct {
		char id[IDENT_MAX];
		struct yard_attempt a;
		bool live, training;
		int64_t step;
	} jobs[JOBS];
};

static int pick(struct life *l, int n)
{
	return (int)check_random_range(l->random, 0, n - 1);
}

static void new_job(struct life *l, int i)
{
	yard_job(l->conn, l->tenant, l->file, 1 + pick(l, 2), l->jobs[i].id);
	l->jobs[i].live = false;
	l->jobs[i].step = 0;
}

static void try_place(struct life *l, int i)
{
	struct err err = { 0 };
	struct attempt_placed placed;
	const struct yard_agent *g = &l->agents[pick(l, AGENTS)];
	assert_ok(db_exec(l->conn, NULL, &err, "savepoint place"));
	int rc = attempt_store_place(l->conn, l->jobs[i].id, g->id, &placed, &err);
	assert_true(rc == 0 || rc == ERR_DB_CONFLICT);
	assert_ok(db_exec(l->conn, NULL, &err, "rollback to place"));
	if (rc < 0)
		return;
	yard_place(l->conn, l->jobs[i].id, g->id, &l->jobs[i].a);
	l->jobs[i].live = true;
	l->jobs[i].training = false;
}

static void end(struct life *l, int i)
{
	static const char *const ends[] = { "\"failed\",\"reason\":\"stalled\"",
		"\"failed\",\"reason\":\"user_error\"", "\"paused\"",
		"\"failed\",\"reason\":\"residency\"" };
	char json[200];
	if (pick(l, 4) == 0) {
		yard_expire(l->conn, &l->jobs[i].a);
	} else if (l->jobs[i].training && pick(l, 3) == 0) {
		yard_succeed(l->conn, l->tenant, &l->jobs[i].a);
	} else {
		snprintf(json, sizeof(json), "{\"t\":\"end\",\"outcome\":%s}", ends[pick(l, 4)]);
		yard_say(l->conn, &l->jobs[i].a, json);
	}
	l->jobs[i].live = false;
	char status[400];
	yard_text(l->conn, "select status from jobs where id = $1", l->jobs[i].id, status);
	if (strcmp(status, "queued") != 0)
		new_job(l, i);
}

static void act(struct life *l, int i)
{
	if (!l->jobs[i].live) {
		try_place(l, i);
	} else if (pick(l, 5) == 0) {
		end(l, i);
	} else if (!l->jobs[i].training) {
		yard_train(l->conn, &l->jobs[i].a);
		l->jobs[i].training = true;
	} else {
		l->jobs[i].step += 10;
		yard_checkpoint(l->conn, l->tenant, &l->jobs[i].a, l->jobs[i].step);
	}
}

/* Machines come back with more, fewer or other devices. */
static void reregister(struct life *l)
{
	struct err err = { 0 };
	struct yard_agent *g = &l->agents[pick(l, AGENTS)];
	g->count = pick(l, 4);
	for (int i = 0; i < g->count; i++)
		g->devices[i] = (struct device_listed){
			.index = i, .name = "cpu", .memory_bytes = pick(l, 3) == 0 ? 1 << 20 : 1 << 30
		};
	assert_ok(yard_register(l->conn, g, "us-east-1", &err));
}

static void check_holders(struct life *l)
{
	for (int i = 0; i < JOBS; i++)
		if (l->jobs[i].live)
			assert_text(l->conn, l->jobs[i].a.id, "true",
				"select (count(*) = (select a.device_count from jobs j join attempts a"
				"  on a.job_id = j.id where a.id = $1))::text"
				" from devices where open_attempt_id = $1");
}

static void random_lives_tile_exactly(void **state)
{
	struct check_random random = check_random_start();
	struct life l = { .conn = ((struct store_fixture *)*state)->conn, .random = &random };
	store_tenant(l.conn, "us", l.tenant);
	store_file(l.conn, l.tenant, 'a', l.file);
	for (int i = 0; i < AGENTS; i++)
		yard_agent(l.conn, "us-east-1", 2, &l.agents[i]);
	for (int i = 0; i < JOBS; i++)
		new_job(&l, i);
	for (int move = 0; move < MOVES; move++) {
		if (pick(&l, 12) == 0)
			reregister(&l);
		else
			act(&l, pick(&l, JOBS));
		yard_check_tiling(l.conn);
		check_holders(&l);
	}
	/* In service = billed + unbilled + idle + lost + what is open, in milliseconds, per device. */
	struct err err = { 0 };
	struct page page = { .limit = PAGE_LIMIT_MAX };
	struct store_json j;
	store_json_init(&j);
	assert_ok(device_store_list(l.conn, &page, true, &j.w, &err));
	const struct json_val *data = json_get(store_json_root(&j), "data");
	assert_true(json_array_len(data) >= AGENTS);
	for (size_t i = 0; i < json_array_len(data); i++) {
		const struct json_val *t = json_get(json_array_at(data, i), "time");
		int64_t parts = 0;
		static const char *const names[] = { "billed_ms", "unbilled_ms", "idle_ms", "lost_ms",
			"open_ms" };
		for (size_t k = 0; k < ARRAY_LEN(names); k++)
			parts += json_i64_or(json_get(t, names[k]), -1);
		assert_int_equal(parts, json_i64_or(json_get(t, "in_service_ms"), -2));
	}
	store_json_finish(&j);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		store_test(prices_and_months_split_what_is_billed),
		store_test(time_without_a_price_is_not_billed),
		store_test(time_never_runs_backwards),
		store_test(segments_are_written_once),
		store_test(random_lives_tile_exactly),
	};
	return cmocka_run_group_tests(tests, store_group_setup, store_group_teardown);
}

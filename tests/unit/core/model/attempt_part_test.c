/* SPDX-License-Identifier: Apache-2.0
 * Attempts on several machines, on a real database: ranks from one to the next, a lease and
 * messages of each machine's own, one end for all; and what their ranks say to each other. Run by
 * with_pg.sh. */
#include "tests/unit/core/model/yard_fixture.h"

#include "core/model/attempt_leave.h"
#include "core/model/attempt_part.h"
#include "core/model/job_queue.h"
#include "core/model/rendezvous_store.h"

struct world {
	char tenant[IDENT_MAX], file[IDENT_MAX], job[IDENT_MAX];
	struct yard_agent first, further, stranger;
	struct yard_attempt a, b; /* as the two machines see it */
};

#define JOB_SQL(column) "select " column "::text from jobs where id = $1"
#define ATTEMPT_SQL(column) "select " column "::text from attempts where id = $1"
/* Of the devices that an attempt has or had, and of all. */
#define OPEN_SQL                                                                           \
	"select string_agg(open_state, ',' order by device_index) from devices where agent_id" \
	" = $1 and exists (select from attempt_devices where device_id = devices.id)"
#define ALL_OPEN_SQL \
	"select string_agg(open_state, ',' order by device_index) from devices where agent_id = $1"
#define VERSION_SQL "select version::text from agents where id = $1"

/* Three ranks: two on the first machine, one on the further one. */
static void make(struct db_conn *conn, struct world *w)
{
	struct err err = { 0 };
	struct attempt_placed placed;
	store_tenant(conn, "us", w->tenant);
	store_file(conn, w->tenant, 'a', w->file);
	yard_agent(conn, "us-east-1", 2, &w->first);
	yard_agent(conn, "us-east-1", 2, &w->further);
	yard_agent(conn, "us-east-1", 1, &w->stranger);
	yard_job(conn, w->tenant, w->file, 3, w->job);
	const struct attempt_place places[] = { { w->first.id, 2 }, { w->further.id, 1 } };
	assert_ok(attempt_store_place_parts(conn, w->job, places, 2, &placed, &err));
	cleanup(db_result_freep) struct db_result *r = NULL;
	assert_ok(db_exec(
		conn, &r, &err, "select epoch from attempts where id = $1", DB_TEXT(placed.attempt_id)));
	w->a = (struct yard_attempt){ .epoch = db_i64(r, 0, 0) };
	snprintf(w->a.id, IDENT_MAX, "%s", placed.attempt_id);
	snprintf(w->a.job, IDENT_MAX, "%s", w->job);
	w->b = w->a;
	snprintf(w->a.agent, IDENT_MAX, "%s", w->first.id);
	snprintf(w->b.agent, IDENT_MAX, "%s", w->further.id);
}

static void expect_poll(struct db_conn *conn, const char *agent, const char *attempt,
	const char *rank, const char *part, size_t devices)
{
	struct err err = { 0 };
	struct store_json j;
	store_json_init(&j);
	assert_ok(attempt_store_write_poll(conn, agent, &j.w, &err));
	const struct json_val *list = json_get(store_json_root(&j), "attempts");
	assert_int_equal(json_array_len(list), attempt != NULL);
	if (attempt != NULL) {
		const struct json_val *v = json_array_at(list, 0);
		assert_string_equal(json_str_or(json_get(v, "attempt_id"), ""), attempt);
		assert_int_equal(json_array_len(json_get(v, "devices")), devices);
		assert_int_equal(json_i64_or(json_get(v, "rank"), -1), rank[0] - '0');
		assert_int_equal(json_i64_or(json_get(v, "ranks"), -1), 3);
		assert_int_equal(json_i64_or(json_get(v, "part"), -1), part[0] - '0');
		assert_int_equal(json_i64_or(json_get(v, "parts"), -1), 2);
	}
	store_json_finish(&j);
}

static void each_machine_gets_its_ranks(void **state)
{
	struct db_conn *conn = ((struct store_fixture *)*state)->conn;
	struct world w;
	make(conn, &w);
	expect_poll(conn, w.first.id, w.a.id, "0", "0", 2);
	expect_poll(conn, w.further.id, w.a.id, "2", "1", 1);
	expect_poll(conn, w.stranger.id, NULL, "", "", 0);
	assert_text(conn, w.a.id, "3",
		"select count(*)::text from devices where open_attempt_id = $1 and open_state ="
		" 'starting'");
	yard_check_tiling(conn);
}

static bool beat(struct db_conn *conn, const struct yard_attempt *y, int64_t *ret_seq)
{
	struct err err = { 0 };
	struct attempt_beat b = { .epoch = y->epoch };
	snprintf(b.attempt_id, sizeof(b.attempt_id), "%s", y->id);
	assert_ok(attempt_store_beat(conn, y->agent, &b, 1, &err));
	*ret_seq = b.acked_seq;
	return b.alive;
}

static void messages_are_the_machine_s_own(void **state)
{
	struct db_conn *conn = ((struct store_fixture *)*state)->conn;
	struct err err = { 0 };
	struct world w;
	int64_t seq = -1;
	make(conn, &w);
	yard_say(conn, &w.b, "{\"t\":\"starting\"}"); /* says nothing of the attempt */
	assert_text(conn, w.a.id, "assigned", ATTEMPT_SQL("status"));
	yard_train(conn, &w.a);
	yard_say(conn, &w.a, "{\"t\":\"step\",\"step\":7}");
	assert_true(beat(conn, &w.a, &seq));
	assert_int_equal(seq, 3);
	assert_true(beat(conn, &w.b, &seq));
	assert_int_equal(seq, 1);
	assert_int_equal(
		yard_send(conn, &w.b, 2, "{\"t\":\"step\",\"step\":9}", &err), ERR_INVALID_VALUE);
	assert_int_equal(
		yard_send(conn, &w.b, 2, "{\"t\":\"end\",\"outcome\":\"succeeded\",\"files\":[]}", &err),
		ERR_INVALID_VALUE);
	yard_say(conn, &w.b, "{\"t\":\"log\",\"lines\":[\"hello\"]}");
	assert_text(conn, w.a.id, "7", ATTEMPT_SQL("last_step"));
	assert_text(conn, w.a.id, "3", ATTEMPT_SQL("report_seq"));
	struct yard_attempt strange = w.a;
	snprintf(strange.agent, IDENT_MAX, "%s", w.stranger.id);
	assert_false(beat(conn, &strange, &seq));
	assert_int_equal(yard_send(conn, &strange, 1, "{\"t\":\"starting\"}", &err), ERR_LEASE_LOST);
}

static void a_further_machine_s_end_is_everybody_s(void **state)
{
	struct db_conn *conn = ((struct store_fixture *)*state)->conn;
	struct world w;
	char before[2][400];
	int64_t seq;
	make(conn, &w);
	yard_train(conn, &w.a);
	yard_text(conn, VERSION_SQL, w.first.id, before[0]);
	yard_text(conn, VERSION_SQL, w.further.id, before[1]);
	yard_say(conn, &w.b, "{\"t\":\"starting\"}");
	yard_say(conn, &w.b,
		"{\"t\":\"end\",\"outcome\":\"failed\",\"reason\":\"trainer_died\",\"rank\":2,"
		"\"signal\":9,\"message\":\"killed\"}");
	assert_text(conn, w.a.id, "failed trainer_died 2 9",
		"select outcome || ' ' || reason || ' ' || rank || ' ' || signal from attempts where id ="
		" $1");
	assert_text(conn, w.a.id, "2", ATTEMPT_SQL("report_seq")); /* the first machine's */
	assert_text(conn, w.job, "queued", JOB_SQL("status"));
	for (int i = 0; i < 2; i++) {
		char now[400];
		yard_text(conn, VERSION_SQL, i == 0 ? w.first.id : w.further.id, now);
		assert_string_not_equal(now, before[i]);
		expect_poll(conn, i == 0 ? w.first.id : w.further.id, NULL, "", "", 0);
	}
	assert_false(beat(conn, &w.a, &seq));
	assert_false(beat(conn, &w.b, &seq));
	/* Who told it is through with it; the others' devices are not free while trainers may run. */
	assert_text(conn, w.further.id, "idle", OPEN_SQL);
	assert_text(conn, w.first.id, "stopping,stopping", OPEN_SQL);
	yard_check_tiling(conn);
}

static void told(struct db_conn *conn, const char *agent, const char *still_has, int freed)
{
	struct err err = { 0 };
	int got = -1;
	assert_ok(attempt_leave_told(conn, agent, still_has, &got, &err));
	assert_int_equal(got, freed);
}

static void machines_leave_when_they_say_so(void **state)
{
	struct db_conn *conn = ((struct store_fixture *)*state)->conn;
	struct err err = { 0 };
	struct world w;
	char list[IDENT_MAX + 8];
	int freed = -1;
	make(conn, &w);
	yard_train(conn, &w.a);
	told(conn, w.further.id, "{}", 0); /* it lives: not a matter of lists */
	yard_succeed(conn, w.tenant, &w.a);
	assert_text(conn, w.first.id, "idle,idle", OPEN_SQL);
	assert_text(conn, w.further.id, "stopping", OPEN_SQL);
	assert_text(conn, w.a.id, "t",
		"select bool_and(state = 'unbilled')::text::char from segments"
		" where attempt_id = $1 and reason = 'stopping'");
	/* Nobody else gets them meanwhile. */
	char job[IDENT_MAX];
	struct attempt_placed placed;
	yard_job(conn, w.tenant, w.file, 2, job);
	const struct attempt_place places[] = { { w.further.id, 2 } };
	assert_ok(db_exec(conn, NULL, &err, "savepoint before"));
	assert_int_equal(
		attempt_store_place_parts(conn, job, places, 1, &placed, &err), ERR_DB_CONFLICT);
	assert_ok(db_exec(conn, NULL, &err, "rollback to savepoint before"));
	snprintf(list, sizeof(list), "{%s}", w.a.id);
	told(conn, w.further.id, list, 0);
	assert_ok(attempt_leave_lapsed(conn, &freed, &err));
	assert_int_equal(freed, 0);
	told(conn, w.further.id, "{}", 1);
	assert_text(conn, w.further.id, "idle,idle", ALL_OPEN_SQL);
	told(conn, w.further.id, "{}", 0);
	assert_ok(attempt_store_place_parts(conn, job, places, 1, &placed, &err));
	yard_check_tiling(conn);
}

/* A machine that is silent is free of it when its lease is over, and is the one to be avoided. */
static void a_silent_machine_is_known(void **state)
{
	struct db_conn *conn = ((struct store_fixture *)*state)->conn;
	struct err err = { 0 };
	struct world w;
	struct attempt a;
	int64_t rank = -2;
	int freed = -1, count = 0;
	struct attempt_end end = { .outcome = ATTEMPT_LOST,
		.reason = "agent_lost",
		.exit_code = ATTEMPT_NO_NUMBER,
		.signal = ATTEMPT_NO_NUMBER };
	make(conn, &w);
	yard_train(conn, &w.a);
	assert_ok(db_exec(conn, NULL, &err,
		"update attempt_parts set lease_until = yard_now() - interval '1 ms' where attempt_id ="
		" $1",
		DB_TEXT(w.a.id)));
	assert_ok(attempt_store_lock_expired(conn, w.a.id, &a, &err));
	assert_ok(attempt_leave_lost_rank(conn, &a, &rank, &err));
	assert_int_equal(rank, 2);
	end.rank = rank;
	assert_ok(attempt_end(conn, &a, &end, &err));
	assert_text(conn, w.further.id, "idle", OPEN_SQL);
	assert_text(conn, w.first.id, "stopping,stopping", OPEN_SQL);
	cleanup(freep) struct job_queue_job *jobs = calloc(JOB_QUEUE_SCAN_MAX, sizeof(*jobs));
	assert_ok(job_queue_read(conn, jobs, &count, &err));
	assert_int_equal(count, 1);
	assert_string_equal(jobs[0].last_agent_id, w.further.id);
	assert_ok(db_exec(conn, NULL, &err,
		"update attempts set lease_until = yard_now() - interval '1 ms' where id = $1",
		DB_TEXT(w.a.id)));
	assert_ok(attempt_leave_lapsed(conn, &freed, &err));
	assert_int_equal(freed, 1);
	assert_text(conn, w.first.id, "idle,idle", OPEN_SQL);
	yard_check_tiling(conn);
}

static void any_lease_that_runs_out_is_the_attempt_s(void **state)
{
	struct db_conn *conn = ((struct store_fixture *)*state)->conn;
	struct err err = { 0 };
	struct world w;
	struct attempt a;
	int64_t seq;
	make(conn, &w);
	assert_int_equal(attempt_store_lock_expired(conn, w.a.id, &a, &err), ERR_LEASE_LOST);
	assert_ok(db_exec(conn, NULL, &err,
		"update attempt_parts set lease_until = yard_now() - interval '1 ms' where attempt_id ="
		" $1",
		DB_TEXT(w.a.id)));
	cleanup(db_result_freep) struct db_result *r = NULL;
	assert_ok(attempt_store_expired(conn, &r, &err));
	assert_int_equal(db_rows(r), 1);
	assert_ok(attempt_store_lock_expired(conn, w.a.id, &a, &err));
	assert_true(beat(conn, &w.b, &seq)); /* it was in time after all */
	assert_int_equal(attempt_store_lock_expired(conn, w.a.id, &a, &err), ERR_LEASE_LOST);
}

static void a_gang_needs_all_its_devices(void **state)
{
	struct db_conn *conn = ((struct store_fixture *)*state)->conn;
	struct err err = { 0 };
	struct attempt_placed placed;
	struct world w;
	char job[IDENT_MAX];
	make(conn, &w);
	yard_job(conn, w.tenant, w.file, 2, job);
	const struct attempt_place busy[] = { { w.further.id, 1 }, { w.first.id, 1 } };
	assert_ok(db_exec(conn, NULL, &err, "savepoint before"));
	assert_int_equal(attempt_store_place_parts(conn, job, busy, 2, &placed, &err), ERR_DB_CONFLICT);
	assert_ok(db_exec(conn, NULL, &err, "rollback to savepoint before"));
	const struct attempt_place few[] = { { w.further.id, 1 } };
	assert_int_equal(attempt_store_place_parts(conn, job, few, 1, &placed, &err), ERR_DB_CONFLICT);
	assert_ok(db_exec(conn, NULL, &err, "rollback to savepoint before"));
	const struct attempt_place free[] = { { w.further.id, 1 }, { w.stranger.id, 1 } };
	assert_ok(attempt_store_place_parts(conn, job, free, 2, &placed, &err));
}

static void an_elastic_job_takes_a_divisor(void **state)
{
	struct db_conn *conn = ((struct store_fixture *)*state)->conn;
	struct err err = { 0 };
	struct attempt_placed placed;
	struct yard_agent large;
	struct world w;
	char job[IDENT_MAX];
	make(conn, &w);
	yard_agent(conn, "us-east-1", 5, &large);
	yard_job(conn, w.tenant, w.file, 6, job);
	assert_ok(db_exec(conn, NULL, &err,
		"update jobs set spec = spec || '{\"parallelism\":{\"data\":6,\"min_data\":3}}'"
		" where id = $1",
		DB_TEXT(job)));
	static const int64_t never[] = { 1, 2, 4, 5 };
	assert_ok(db_exec(conn, NULL, &err, "savepoint before"));
	for (size_t i = 0; i < ARRAY_LEN(never); i++) {
		const struct attempt_place place = { large.id, never[i] };
		assert_int_equal(
			attempt_store_place_parts(conn, job, &place, 1, &placed, &err), ERR_DB_CONFLICT);
		assert_ok(db_exec(conn, NULL, &err, "rollback to savepoint before"));
	}
	const struct attempt_place place = { large.id, 3 };
	assert_ok(attempt_store_place_parts(conn, job, &place, 1, &placed, &err));
	assert_text(conn, placed.attempt_id, "3", ATTEMPT_SQL("device_count"));
	assert_text(conn, placed.attempt_id, "3", ATTEMPT_SQL("data_ways"));
	/* What it has is what is metered: three devices, and no more. */
	assert_text(conn, large.id, "starting,starting,starting,idle,idle", ALL_OPEN_SQL);
	assert_text(conn, job, "3 3",
		"select (data->>'count') || ' ' || (data->>'data') from job_events where job_id = $1"
		" and type = 'job.assigned'");
	yard_check_tiling(conn);
}

/* ---------------------------------------------------------------- rendezvous */

static void expect_news(
	struct db_conn *conn, const struct yard_attempt *y, int64_t *have, const char *keys)
{
	struct err err = { 0 };
	struct store_json j;
	char got[200] = "";
	int count = 0;
	const struct attempt_fence fence = {
		.attempt_id = y->id, .epoch = y->epoch, .agent_id = y->agent
	};
	store_json_init(&j);
	assert_ok(rendezvous_store_write(conn, &fence, *have, &j.w, &count, &err));
	const struct json_val *root = store_json_root(&j);
	const struct json_val *list = json_get(root, "entries");
	assert_int_equal(json_array_len(list), count);
	for (int i = 0; i < count; i++) {
		size_t used = strlen(got);
		const struct json_val *v = json_array_at(list, (size_t)i);
		snprintf(got + used, sizeof(got) - used, "%s=%s ", json_str_or(json_get(v, "key"), ""),
			json_str_or(json_get(v, "value"), ""));
	}
	*have = json_i64_or(json_get(root, "have"), -1);
	assert_string_equal(got, keys);
	store_json_finish(&j);
}

static int put(struct db_conn *conn, const struct yard_attempt *y, const char *key,
	const char *value, struct err *err)
{
	int added = -1;
	const struct rendezvous_entry e = { key, value };
	const struct attempt_fence fence = {
		.attempt_id = y->id, .epoch = y->epoch, .agent_id = y->agent
	};
	int rc = rendezvous_store_put(conn, &fence, &e, 1, &added, err);
	return rc < 0 ? rc : added;
}

static void ranks_hear_of_the_other_machines(void **state)
{
	struct db_conn *conn = ((struct store_fixture *)*state)->conn;
	struct err err = { 0 };
	struct world w;
	char before[400], after[400];
	int64_t a = 0, b = 0;
	make(conn, &w);
	yard_text(conn, VERSION_SQL, w.further.id, before);
	assert_int_equal(put(conn, &w.a, "world.0", "QQ==", &err), 1);
	yard_text(conn, VERSION_SQL, w.further.id, after);
	assert_string_not_equal(before, after);                        /* who waits looks again */
	assert_int_equal(put(conn, &w.a, "world.0", "Qg==", &err), 0); /* again, or somebody else's */
	assert_int_equal(put(conn, &w.b, "world.2", "Qw==", &err), 1);
	assert_int_equal(put(conn, &w.a, "world.1", "RA==", &err), 1);
	expect_news(conn, &w.b, &b, "world.0=QQ== world.1=RA== ");
	expect_news(conn, &w.b, &b, "");
	expect_news(conn, &w.a, &a, "world.2=Qw== ");
	assert_int_equal(put(conn, &w.a, "data.0", "RQ==", &err), 1);
	expect_news(conn, &w.b, &b, "data.0=RQ== ");
	yard_train(conn, &w.a);
	yard_say(conn, &w.a, "{\"t\":\"end\",\"outcome\":\"failed\",\"reason\":\"platform_error\"}");
	assert_text(
		conn, w.a.id, "0", "select count(*)::text from attempt_rendezvous where attempt_id = $1");
}

static void a_rendezvous_is_bounded(void **state)
{
	struct db_conn *conn = ((struct store_fixture *)*state)->conn;
	struct err err = { 0 };
	struct world w;
	make(conn, &w);
	assert_ok(db_exec(conn, NULL, &err,
		"insert into attempt_rendezvous (attempt_id, agent_id, key, value)"
		" select $1, $2, 'k' || i, '' from generate_series(1, $3) i",
		DB_TEXT(w.a.id), DB_TEXT(w.a.agent), DB_I64(RENDEZVOUS_KEYS_MAX)));
	assert_int_equal(put(conn, &w.a, "one-more", "", &err), ERR_QUOTA);
}

static void keys_and_values_are_checked(void **state)
{
	char key[RENDEZVOUS_KEY_MAX + 2];
	memset(key, 'a', sizeof(key));
	key[sizeof(key) - 1] = '\0';
	assert_false(rendezvous_key_is_valid(key));
	key[sizeof(key) - 2] = '\0';
	assert_true(rendezvous_key_is_valid(key));
	assert_true(rendezvous_key_is_valid("world.address.0"));
	assert_false(rendezvous_key_is_valid(""));
	assert_false(rendezvous_key_is_valid(".new"));
	assert_false(rendezvous_key_is_valid("../x"));
	assert_false(rendezvous_key_is_valid("A"));
	assert_true(rendezvous_value_is_valid("") && rendezvous_value_is_valid("QQ=="));
	assert_false(rendezvous_value_is_valid("QQ="));
	assert_false(rendezvous_value_is_valid("QQ=\n"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(keys_and_values_are_checked),
		store_test(each_machine_gets_its_ranks),
		store_test(messages_are_the_machine_s_own),
		store_test(a_further_machine_s_end_is_everybody_s),
		store_test(machines_leave_when_they_say_so),
		store_test(a_silent_machine_is_known),
		store_test(any_lease_that_runs_out_is_the_attempt_s),
		store_test(a_gang_needs_all_its_devices),
		store_test(an_elastic_job_takes_a_divisor),
		store_test(ranks_hear_of_the_other_machines),
		store_test(a_rendezvous_is_bounded),
	};
	return cmocka_run_group_tests(tests, store_group_setup, store_group_teardown);
}

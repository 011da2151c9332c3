/* SPDX-License-Identifier: Apache-2.0
 * Scheduler passes on a real database, alone and several at once (threads). Run by with_pg.sh. */
#include "tests/unit/core/model/yard_fixture.h"

#include "server/scheduler/pass.h"

#include <pthread.h>
#include <stdatomic.h>

enum {
	SCHEDULERS = 3,
	/* the fixture has four connections */ RACE_JOBS = 40,
	RACE_AGENTS = 5,
	RACE_ROUNDS = 30,
	ELASTIC_WAIT_MS = 60000
};

struct world {
	char tenant[IDENT_MAX], file[IDENT_MAX];
};

static void touch(void *ctx, const char *topic)
{
	atomic_int *touched = ctx;
	atomic_fetch_add(touched, 1);
}

static int remove_content(void *ctx, const char *tenant_id, const char *sha256, struct err *err)
{
	return ERR_NOT_FOUND;
}

static struct pass_hooks hooks_of(atomic_int *touched, struct pass_failures *failures)
{
	return (struct pass_hooks){ .clock = clock_system(),
		.failures = failures,
		.elastic_wait_ms = ELASTIC_WAIT_MS,
		.ctx = touched,
		.touch = touch,
		.remove = remove_content };
}

/* Tests here commit; each starts with an empty yard. */
static void make(struct db_conn *conn, struct world *w)
{
	struct err err = { 0 };
	assert_ok(db_exec(conn, NULL, &err,
		"truncate segments, attempt_devices, attempts, devices, agents, job_events, job_files,"
		" jobs, files, blobs, checkpoints, checkpoint_files, models, model_files,"
		" residency_decisions, invoices, invoice_lines, invoice_segments cascade"));
	store_tenant(conn, "any", w->tenant);
	store_file(conn, w->tenant, 'a', w->file);
}

/* Of each placed job, itself and its machines are touched. */
static int place_on(struct db_conn *conn, int machines)
{
	struct err err = { 0 };
	atomic_int touched = 0;
	int placed = -1;
	struct pass_failures failures = { 0 };
	struct pass_hooks hooks = hooks_of(&touched, &failures);
	assert_ok(pass_place(conn, &hooks, &placed, &err));
	assert_int_equal(atomic_load(&touched), (1 + machines) * placed);
	return placed;
}

static int place(struct db_conn *conn)
{
	return place_on(conn, 1);
}

#define COUNT_SQL(from) "select count(*)::text from " from " and $1 <> ''"

static void places_by_priority_and_time(void **state)
{
	struct db_conn *conn = ((struct store_fixture *)*state)->conn;
	struct err err = { 0 };
	struct world w;
	struct yard_agent g;
	char jobs[3][IDENT_MAX];
	make(conn, &w);
	for (int i = 0; i < 3; i++)
		yard_job(conn, w.tenant, w.file, 1, jobs[i]);
	assert_ok(
		db_exec(conn, NULL, &err, "update jobs set priority = 1 where id = $1", DB_TEXT(jobs[2])));
	assert_int_equal(place(conn), 0);
	assert_text(conn, jobs[0], "no_machine", "select blocked_code from jobs where id = $1");
	yard_agent(conn, "us-east-1", 2, &g);
	assert_int_equal(place(conn), 2);
	assert_text(conn, "x", jobs[2],
		"select job_id from attempts where $1 <> '' order by assigned_at limit 1");
	assert_text(conn, jobs[1], "no_capacity", "select blocked_code from jobs where id = $1");
	assert_int_equal(place(conn), 0);
	yard_check_tiling(conn);
}

static void a_small_job_passes_a_large_one(void **state)
{
	struct db_conn *conn = ((struct store_fixture *)*state)->conn;
	struct world w;
	struct yard_agent g;
	char large[IDENT_MAX], small[IDENT_MAX];
	make(conn, &w);
	yard_agent(conn, "us-east-1", 2, &g);
	yard_job(conn, w.tenant, w.file, 4, large);
	yard_job(conn, w.tenant, w.file, 1, small);
	assert_int_equal(place(conn), 1);
	assert_text(conn, large, "no_machine", "select blocked_code from jobs where id = $1");
	assert_text(conn, small, "1",
		"select count(*)::text from attempts where job_id = $1 and status = 'assigned'");
}

static void residency_waits_says_why_and_goes_on(void **state)
{
	struct db_conn *conn = ((struct store_fixture *)*state)->conn;
	struct world w;
	struct yard_agent eu, us;
	char job[IDENT_MAX];
	make(conn, &w);
	yard_agent(conn, "eu-west-1", 2, &eu);
	yard_job(conn, w.tenant, w.file, 1, job); /* may run in us only */
	for (int i = 0; i < 3; i++)
		assert_int_equal(place(conn), 0);
	assert_text(conn, job,
		"residency The only free cpu-dev devices are in eu-west-1, where the job's residency {us}"
		" does not let it run.",
		"select blocked_code || ' ' || blocked_message from jobs where id = $1");
	/* one decision, not one a pass */
	assert_text(conn, job, "dispatch eu-west-1 false",
		"select string_agg(question || ' ' || place || ' ' || allowed, ',')"
		" from residency_decisions where subject = $1");
	yard_agent(conn, "us-east-1", 2, &us);
	assert_int_equal(place(conn), 1);
	assert_text(conn, job, us.id, "select agent_id from attempts where job_id = $1");
	assert_text(conn, job, "eu-west-1 false,us-east-1 true",
		"select string_agg(place || ' ' || allowed, ',' order by id)"
		" from residency_decisions where subject = $1");
	assert_text(conn, job, "true", "select (blocked_code is null)::text from jobs where id = $1");
}

/* Topics that were touched, in a text. */
static void note_touch(void *ctx, const char *topic)
{
	char *text = ctx;
	size_t used = strlen(text);
	snprintf(text + used, 1000 - used, "%s ", topic);
}

static void all_machines_of_a_gang_are_woken(void **state)
{
	struct db_conn *conn = ((struct store_fixture *)*state)->conn;
	struct err err = { 0 };
	struct world w;
	struct yard_agent g[2];
	char job[IDENT_MAX], touched[1000] = "", topic[IDENT_MAX + 8];
	int expired = 0;
	make(conn, &w);
	for (int i = 0; i < 2; i++)
		yard_agent(conn, "us-east-1", 1, &g[i]);
	yard_job(conn, w.tenant, w.file, 2, job);
	struct pass_failures failures = { 0 };
	struct pass_hooks hooks = { .clock = clock_system(),
		.failures = &failures,
		.ctx = touched,
		.touch = note_touch,
		.remove = remove_content };
	int placed = 0;
	assert_ok(pass_place(conn, &hooks, &placed, &err));
	assert_int_equal(placed, 1);
	touched[0] = '\0';
	assert_ok(db_exec(
		conn, NULL, &err, "update attempt_parts set lease_until = yard_now() - interval '1 ms'"));
	assert_ok(pass_expire(conn, &hooks, &expired, &err));
	assert_int_equal(expired, 1);
	for (int i = 0; i < 2; i++) {
		snprintf(topic, sizeof(topic), "agent:%s ", g[i].id);
		assert_non_null(strstr(touched, topic));
	}
	/* The other machine's devices are not given away before its lease is over, too. */
	assert_text(conn, job, "idle,stopping",
		"select string_agg(open_state, ',' order by open_state) from devices where $1 <> ''");
	assert_ok(db_exec(
		conn, NULL, &err, "update attempts set lease_until = yard_now() - interval '1 ms'"));
	assert_ok(pass_expire(conn, &hooks, &expired, &err));
	assert_text(conn, job, "idle,idle",
		"select string_agg(open_state, ',' order by open_state) from devices where $1 <> ''");
	yard_check_tiling(conn);
}

#define LAST_SQL                                                                        \
	"select a.data_ways || ' of ' || a.device_count || ': ' || (select count(*) from"   \
	" attempt_devices ad where ad.attempt_id = a.id) from attempts a where job_id = $1" \
	" order by number desc limit 1"

static void end_last(struct db_conn *conn, const char *job, const char *lost_agent)
{
	struct err err = { 0 };
	atomic_int touched = 0;
	struct pass_failures failures = { 0 };
	struct pass_hooks hooks = hooks_of(&touched, &failures);
	int expired;
	assert_ok(db_exec(conn, NULL, &err,
		"update attempts set lease_until = yard_now() - interval '1 ms' where status <> 'ended'"));
	assert_ok(db_exec(
		conn, NULL, &err, "update attempt_parts set lease_until = yard_now() - interval '1 ms'"));
	if (lost_agent != NULL)
		assert_ok(db_exec(conn, NULL, &err,
			"update agents set last_seen_at = last_seen_at - interval '1 minute' where id = $1",
			DB_TEXT(lost_agent)));
	assert_ok(pass_expire(conn, &hooks, &expired, &err));
	assert_text(conn, job, "queued",
		"select status from jobs where id = $1 and cancel_requested_at is null");
}

/* Of two machines one is lost: the next attempt has what is left, at once; when a machine is there
 * again, the next after that has all. */
static void an_elastic_job_goes_on_with_what_is_left(void **state)
{
	struct db_conn *conn = ((struct store_fixture *)*state)->conn;
	struct err err = { 0 };
	struct world w;
	struct yard_agent g[2], third;
	char job[IDENT_MAX];
	make(conn, &w);
	yard_agent(conn, "us-east-1", 3, &g[0]);
	yard_job(conn, w.tenant, w.file, 4, job);
	assert_ok(db_exec(conn, NULL, &err,
		"update jobs set spec = spec || '{\"parallelism\":{\"data\":4,\"tensor\":1,"
		"\"pipeline\":1,\"min_data\":2},\"resources\":{\"count\":4}}' where id = $1",
		DB_TEXT(job)));
	assert_int_equal(place(conn), 0); /* it is new: it waits for all of them */
	yard_agent(conn, "us-east-1", 2, &g[1]);
	assert_int_equal(place_on(conn, 2), 1);
	assert_text(conn, job, "4 of 4: 4", LAST_SQL);
	end_last(conn, job, g[1].id);
	assert_text(conn, g[1].id, "lost", "select status from agents where id = $1");
	assert_int_equal(place(conn), 1);
	assert_text(conn, job, "2 of 2: 2", LAST_SQL);
	struct store_json j;
	store_json_init(&j);
	assert_ok(attempt_store_write_poll(conn, g[0].id, &j.w, &err));
	const struct json_val *one = json_array_at(json_get(store_json_root(&j), "attempts"), 0);
	const struct json_val *spec = json_get(one, "spec");
	const struct json_val *mesh = json_get(spec, "parallelism");
	assert_int_equal(json_i64_or(json_get(one, "ranks"), -1), 2);
	assert_int_equal(json_i64_or(json_get(mesh, "data"), -1), 2);
	assert_int_equal(json_i64_or(json_get(mesh, "tensor"), -1), 1);
	assert_null(json_get(mesh, "min_data"));
	assert_int_equal(json_i64_or(json_get(json_get(spec, "resources"), "count"), -1), 2);
	store_json_finish(&j);
	yard_agent(conn, "us-east-1", 2, &third);
	end_last(conn, job, NULL);
	assert_int_equal(place_on(conn, 2), 1);
	assert_text(conn, job, "4 of 4: 4", LAST_SQL);
	assert_text(conn, job, "4", "select (spec->'parallelism'->>'data') from jobs where id = $1");
	yard_check_tiling(conn);
}

/* Without a lost machine it waits first: since it was queued, or since its last attempt ended. */
static void an_elastic_job_shrinks_when_it_has_waited(void **state)
{
	struct db_conn *conn = ((struct store_fixture *)*state)->conn;
	struct err err = { 0 };
	struct world w;
	struct yard_agent g;
	char job[IDENT_MAX];
	make(conn, &w);
	yard_agent(conn, "us-east-1", 3, &g);
	yard_job(conn, w.tenant, w.file, 4, job);
	assert_ok(db_exec(conn, NULL, &err,
		"update jobs set spec = spec || '{\"parallelism\":{\"data\":4,\"min_data\":1}}',"
		" queued_at = queued_at - interval '59 s' where id = $1",
		DB_TEXT(job)));
	assert_int_equal(place(conn), 0);
	assert_ok(db_exec(conn, NULL, &err,
		"update jobs set queued_at = queued_at - interval '1 s' where id = $1", DB_TEXT(job)));
	assert_int_equal(place(conn), 1);
	assert_text(conn, job, "2 of 2: 2", LAST_SQL);
	/* An end that no lost machine had: what it has waited before does not count. */
	end_last(conn, job, NULL);
	assert_ok(db_exec(conn, NULL, &err, "update attempts set outcome = 'failed' where job_id = $1",
		DB_TEXT(job)));
	assert_int_equal(place(conn), 0);
	assert_ok(db_exec(conn, NULL, &err,
		"update attempts set ended_at = ended_at - interval '61 s' where job_id = $1",
		DB_TEXT(job)));
	assert_int_equal(place(conn), 1);
	assert_text(conn, job, "2 of 2: 2", LAST_SQL);
	yard_check_tiling(conn);
}

static void silent_machines_and_cancelled_jobs_are_left_alone(void **state)
{
	struct db_conn *conn = ((struct store_fixture *)*state)->conn;
	struct err err = { 0 };
	struct world w;
	struct yard_agent g;
	struct job_cancelled done;
	atomic_int touched = 0;
	struct pass_failures failures = { 0 };
	struct pass_hooks hooks = hooks_of(&touched, &failures);
	char job[IDENT_MAX], cancelled[IDENT_MAX];
	int expired;
	make(conn, &w);
	yard_agent(conn, "us-east-1", 2, &g);
	yard_job(conn, w.tenant, w.file, 1, cancelled);
	assert_ok(job_cancel(conn, w.tenant, cancelled, &done, &err));
	assert_ok(db_exec(
		conn, NULL, &err, "update agents set last_seen_at = last_seen_at - interval '1 minute'"));
	assert_ok(pass_expire(conn, &hooks, &expired, &err));
	yard_job(conn, w.tenant, w.file, 1, job);
	assert_int_equal(place(conn), 0);
	assert_text(conn, job, "no_machine", "select blocked_code from jobs where id = $1");
}

static void leases_run_out_once(void **state)
{
	struct db_conn *conn = ((struct store_fixture *)*state)->conn;
	struct err err = { 0 };
	struct world w;
	struct yard_agent g;
	atomic_int touched = 0;
	struct pass_failures failures = { 0 };
	struct pass_hooks hooks = hooks_of(&touched, &failures);
	char job[IDENT_MAX];
	int expired = -1;
	make(conn, &w);
	yard_agent(conn, "us-east-1", 2, &g);
	yard_job(conn, w.tenant, w.file, 2, job);
	assert_int_equal(place(conn), 1);
	assert_ok(pass_expire(conn, &hooks, &expired, &err));
	assert_int_equal(expired, 0);
	assert_ok(db_exec(
		conn, NULL, &err, "update attempts set lease_until = yard_now() - interval '1 ms'"));
	assert_ok(pass_expire(conn, &hooks, &expired, &err));
	assert_int_equal(expired, 1);
	assert_int_equal(atomic_load(&touched), 2);
	assert_ok(pass_expire(conn, &hooks, &expired, &err));
	assert_int_equal(expired, 0);
	assert_int_equal(place(conn), 1);
	assert_text(conn, job, "2", "select attempt_count::text from jobs where id = $1");
	yard_check_tiling(conn);
}

/* An attempt that cannot be ended: the pass goes on with the others, and the log hears of it once,
 * not in each pass. */
static void what_fails_in_each_pass_is_logged_seldom(void **state)
{
	enum { PASSES = 5 };
	struct db_conn *conn = ((struct store_fixture *)*state)->conn;
	struct err err = { 0 };
	struct world w;
	struct yard_agent g;
	atomic_int touched = 0;
	struct pass_failures failures = { 0 };
	struct pass_hooks hooks = hooks_of(&touched, &failures);
	char stuck[IDENT_MAX], job[IDENT_MAX];
	int expired = -1;
	make(conn, &w);
	yard_agent(conn, "us-east-1", 2, &g);
	yard_job(conn, w.tenant, w.file, 1, stuck);
	yard_job(conn, w.tenant, w.file, 1, job);
	assert_int_equal(place(conn), 2);
	assert_ok(db_exec(
		conn, NULL, &err, "update attempts set lease_until = yard_now() - interval '1 ms'"));
	assert_ok(db_exec(conn, NULL, &err,
		"update jobs set spec = '{\"checkpoint\":{\"keep\":\"many\"}}' where id = $1",
		DB_TEXT(stuck)));
	for (int i = 0; i < PASSES; i++) {
		assert_ok(pass_expire(conn, &hooks, &expired, &err));
		assert_int_equal(expired, i == 0);
	}
	assert_int_equal(failures.logged, 1);
	assert_int_equal(failures.unlogged, PASSES - 1);
	failures.next_us[PASS_EXPIRE] = clock_mono_us(clock_system());
	assert_ok(pass_expire(conn, &hooks, &expired, &err));
	assert_int_equal(failures.logged, 2);
}

/* ---------------------------------------------------------------- races */

/* The test may stand still for longer than a machine may be silent. */
static void agents_stay_fresh(struct db_conn *conn)
{
	struct err err = { 0 };
	assert_ok(db_exec(
		conn, NULL, &err, "update agents set last_seen_at = last_seen_at + interval '1 day'"));
}

struct race {
	struct db_pool *pool;
	pthread_barrier_t start;
	atomic_int placed, expired, failures, touched;
};

static void *run_passes(void *arg)
{
	struct race *race = arg;
	struct err err = { 0 };
	struct db_conn *conn = NULL;
	struct pass_failures failures = { 0 };
	struct pass_hooks hooks = hooks_of(&race->touched, &failures);
	if (db_pool_get(race->pool, 5000, &conn, &err) < 0) {
		atomic_fetch_add(&race->failures, 1);
		conn = NULL;
	}
	pthread_barrier_wait(&race->start);
	for (int i = 0; conn != NULL && i < RACE_ROUNDS; i++) {
		int placed = 0, expired = 0;
		int rc = pass_expire(conn, &hooks, &expired, &err);
		if (rc == 0)
			rc = pass_place(conn, &hooks, &placed, &err);
		if (rc < 0) {
			fprintf(stderr, "pass: %s\n", err.message);
			atomic_fetch_add(&race->failures, 1);
		}
		atomic_fetch_add(&race->placed, placed);
		atomic_fetch_add(&race->expired, expired);
	}
	db_pool_put(race->pool, conn);
	return NULL;
}

static void many_schedulers_never_assign_twice(void **state)
{
	struct store_fixture *fx = *state;
	struct db_conn *conn = fx->conn;
	struct err err = { 0 };
	struct world w;
	make(conn, &w);
	for (int i = 0; i < RACE_AGENTS; i++) {
		struct yard_agent g;
		yard_agent(conn, "us-east-1", 3, &g);
	}
	agents_stay_fresh(conn);
	for (int i = 0; i < RACE_JOBS; i++) {
		char id[IDENT_MAX];
		yard_job(conn, w.tenant, w.file, 1 + i % 3, id);
	}
	/* Every lease is over as soon as it is given: all of them place and expire at once. */
	assert_ok(db_exec(conn, NULL, &err,
		"create function lease_is_short() returns trigger language plpgsql as"
		" $$ begin new.lease_until = yard_now() + interval '3 ms'; return new; end $$"));
	assert_ok(db_exec(conn, NULL, &err,
		"create trigger short_lease before insert on attempt_parts for each row"
		" execute function lease_is_short()"));
	assert_ok(db_exec(conn, NULL, &err,
		"create trigger short_lease before insert on attempts for each row"
		" execute function lease_is_short()"));
	struct race race = { .pool = fx->pool };
	pthread_t threads[SCHEDULERS];
	pthread_barrier_init(&race.start, NULL, SCHEDULERS);
	for (int i = 0; i < SCHEDULERS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, run_passes, &race), 0);
	for (int i = 0; i < SCHEDULERS; i++)
		pthread_join(threads[i], NULL);
	pthread_barrier_destroy(&race.start);
	assert_ok(db_exec(conn, NULL, &err, "drop trigger short_lease on attempts"));
	assert_ok(db_exec(conn, NULL, &err, "drop trigger short_lease on attempt_parts"));
	assert_int_equal(atomic_load(&race.failures), 0);
	assert_true(atomic_load(&race.placed) > RACE_JOBS);
	char placed[20];
	snprintf(placed, sizeof(placed), "%d", atomic_load(&race.placed));
	assert_text(conn, "x", placed, COUNT_SQL("attempts where true"));
	/* Each attempt holds exactly what its job wants; no job counts an attempt that is not there. */
	assert_text(conn, "x", "0",
		COUNT_SQL("attempts a join jobs j on j.id = a.job_id where j.device_count <>"
				  " (select count(*) from attempt_devices d where d.attempt_id = a.id)"));
	assert_text(conn, "x", "0",
		COUNT_SQL("jobs j where j.attempt_count <>"
				  " (select count(*) from attempts a where a.job_id = j.id)"));
	assert_text(conn, "x", "0",
		COUNT_SQL("jobs j where j.seq <> (select count(*) from job_events e where"
				  " e.job_id = j.id)"));
	yard_check_tiling(conn);
}

struct cancel_race {
	struct db_pool *pool;
	pthread_barrier_t start;
	const char *tenant;
	char jobs[RACE_JOBS][IDENT_MAX];
	atomic_int failures;
};

static int cancel_in_tx(struct db_conn *conn, void *ctx, struct err *err)
{
	const char *const *ids = ctx;
	struct job_cancelled done;
	return job_cancel(conn, ids[0], ids[1], &done, err);
}

static void *run_cancels(void *arg)
{
	struct cancel_race *race = arg;
	pthread_barrier_wait(&race->start);
	for (int i = 0; i < RACE_JOBS; i++) {
		struct err err = { 0 };
		const char *ids[] = { race->tenant, race->jobs[i] };
		if (db_tx(race->pool, 5000, cancel_in_tx, ids, &err) < 0) {
			fprintf(stderr, "cancel: %s\n", err.message);
			atomic_fetch_add(&race->failures, 1);
		}
	}
	return NULL;
}

static void cancelling_races_with_placing(void **state)
{
	struct store_fixture *fx = *state;
	struct db_conn *conn = fx->conn;
	struct world w;
	make(conn, &w);
	struct cancel_race cancels = { .pool = fx->pool, .tenant = w.tenant };
	for (int i = 0; i < RACE_AGENTS; i++) {
		struct yard_agent g;
		yard_agent(conn, "us-east-1", 4, &g);
	}
	agents_stay_fresh(conn);
	for (int i = 0; i < RACE_JOBS; i++)
		yard_job(conn, w.tenant, w.file, 1, cancels.jobs[i]);
	pthread_t cancel;
	pthread_barrier_init(&cancels.start, NULL, 2);
	assert_int_equal(pthread_create(&cancel, NULL, run_cancels, &cancels), 0);
	pthread_barrier_wait(&cancels.start);
	for (int i = 0; i < 5; i++)
		(void)place(conn);
	pthread_join(cancel, NULL);
	pthread_barrier_destroy(&cancels.start);
	assert_int_equal(atomic_load(&cancels.failures), 0);
	assert_int_equal(place(conn), 0);
	/* Cancelled at once, or told to leave: nothing in between. */
	assert_text(conn, "x", "0",
		COUNT_SQL("jobs j where not (j.status = 'cancelled' and not exists (select from attempts a"
				  " where a.job_id = j.id)) and not (j.status = 'queued' and exists (select from"
				  " attempts a where a.job_id = j.id and a.desired = 'cancel'))"));
	yard_check_tiling(conn);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(places_by_priority_and_time),
		cmocka_unit_test(a_small_job_passes_a_large_one),
		cmocka_unit_test(residency_waits_says_why_and_goes_on),
		cmocka_unit_test(all_machines_of_a_gang_are_woken),
		cmocka_unit_test(an_elastic_job_goes_on_with_what_is_left),
		cmocka_unit_test(an_elastic_job_shrinks_when_it_has_waited),
		cmocka_unit_test(silent_machines_and_cancelled_jobs_are_left_alone),
		cmocka_unit_test(leases_run_out_once),
		cmocka_unit_test(what_fails_in_each_pass_is_logged_seldom),
		cmocka_unit_test(many_schedulers_never_assign_twice),
		cmocka_unit_test(cancelling_races_with_placing),
	};
	return cmocka_run_group_tests(tests, store_group_setup, store_group_teardown);
}

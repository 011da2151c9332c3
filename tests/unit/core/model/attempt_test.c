/* SPDX-License-Identifier: Apache-2.0
 * Attempts on a real database: the table, the fence, replay, what an end means for the job, the
 * money and the devices. Run by with_pg.sh. */
#include "tests/unit/core/model/yard_fixture.h"

struct world {
	char tenant[IDENT_MAX], file[IDENT_MAX], job[IDENT_MAX];
	struct yard_agent agent;
	struct yard_attempt a;
};

static void make(struct db_conn *conn, int devices, struct world *w)
{
	store_tenant(conn, "us", w->tenant);
	store_file(conn, w->tenant, 'a', w->file);
	yard_agent(conn, "us-east-1", devices, &w->agent);
	yard_job(conn, w->tenant, w->file, devices, w->job);
	yard_place(conn, w->job, w->agent.id, &w->a);
}

#define JOB_SQL(column) "select " column "::text from jobs where id = $1"
#define ATTEMPT_SQL(column) "select " column "::text from attempts where id = $1"
static void table_refuses_what_it_lacks(void **state)
{
	static const char *const legal[] = { "assigned starting", "assigned ended", "starting training",
		"starting ended", "training stopping", "training ended", "stopping ended" };
	int found = 0;
	for (int from = 0; from < ATTEMPT_STATUS_COUNT; from++)
		for (int to = 0; to < ATTEMPT_STATUS_COUNT; to++) {
			char pair[64];
			bool ok = false;
			snprintf(pair, sizeof(pair), "%s %s", attempt_status_word((enum attempt_status)from),
				attempt_status_word((enum attempt_status)to));
			for (size_t i = 0; i < ARRAY_LEN(legal); i++)
				ok = ok || strcmp(legal[i], pair) == 0;
			assert_int_equal(
				attempt_move_allowed((enum attempt_status)from, (enum attempt_status)to), ok);
			found += ok;
		}
	assert_int_equal(found, ARRAY_LEN(legal));
}

static void a_run_to_success(void **state)
{
	struct db_conn *conn = ((struct store_fixture *)*state)->conn;
	struct world w;
	make(conn, 2, &w);
	assert_text(conn, w.job, "queued", JOB_SQL("status"));
	yard_train(conn, &w.a);
	assert_text(conn, w.job, "running", JOB_SQL("status"));
	yard_say(conn, &w.a,
		"{\"t\":\"step\",\"step\":10,\"steps\":1000,\"epoch\":9,\"data_epoch\":0.1,\"loss\":2.5,"
		"\"later\":[1]}");
	assert_text(conn, w.a.id, "10", ATTEMPT_SQL("last_step"));
	assert_text(conn, w.job, "2.5", JOB_SQL("(progress->>'loss')"));
	assert_text(conn, w.job, "0.1", JOB_SQL("(progress->>'epoch')"));
	yard_checkpoint(conn, w.tenant, &w.a, 500);
	assert_text(conn, w.a.id, "training", ATTEMPT_SQL("status"));
	yard_say(conn, &w.a, "{\"t\":\"evaluation\",\"step\":500,\"accuracy\":0.99}");
	yard_say(conn, &w.a, "{\"t\":\"log\",\"lines\":[\"hello\"]}");
	yard_checkpoint(conn, w.tenant, &w.a, 1000);
	assert_text(conn, w.a.id, "stopping", ATTEMPT_SQL("status"));
	yard_succeed(conn, w.tenant, &w.a);
	assert_text(conn, w.job, "succeeded", JOB_SQL("status"));
	assert_text(conn, w.a.id, "succeeded", ATTEMPT_SQL("outcome"));
	assert_text(conn, w.job, "1",
		"select count(*)::text from models m join model_files f on f.model_id = m.id"
		" where m.job_id = $1");
	assert_text(conn, w.job,
		"job.queued job.assigned job.starting job.training step checkpoint evaluation log "
		"checkpoint job.succeeded",
		"select string_agg(type, ' ' order by seq) from job_events where job_id = $1");
	assert_text(conn, w.a.id, "true",
		"select (count(*) > 0 and bool_and((state = 'billed') = (price_id is not null)))::text"
		" from segments where attempt_id = $1");
	assert_text(conn, w.agent.id, "2",
		"select count(*)::text from devices where agent_id = $1 and open_state = 'idle'");
	yard_check_tiling(conn);
}

/* Everything that a write could change, as one text. */
#define STATE_SQL                                                                                 \
	"select md5((select row(j.*)::text from jobs j where j.id = a.job_id)"                        \
	" || (select row(b.*)::text from attempts b where b.id = a.id)"                               \
	" || (select coalesce(string_agg(row(e.*)::text, '' order by seq), '') from job_events e"     \
	"   where e.job_id = a.job_id)"                                                               \
	" || (select coalesce(string_agg(row(s.*)::text, '' order by s.id), '') from segments s)"     \
	" || (select string_agg(row(d.*)::text, '' order by d.id) from devices d)"                    \
	" || (select coalesce(string_agg(row(c.*)::text, '' order by c.id), '') from checkpoints c))" \
	" from attempts a where a.id = $1"

static const char *const script[] = {
	"{\"t\":\"starting\"}",
	"{\"t\":\"training\",\"steps\":1000}",
	"{\"t\":\"step\",\"step\":10,\"loss\":2.5}",
	"{\"t\":\"evaluation\",\"step\":10,\"accuracy\":0.5}",
	"{\"t\":\"log\",\"lines\":[\"x\"]}",
	"{\"t\":\"checkpoint\",\"step\":20,\"files\":[{\"name\":\"w\",\"sha256\":\"" SHA_A
	"\",\"bytes\":7}]}",
	"{\"t\":\"end\",\"outcome\":\"succeeded\",\"files\":[{\"name\":\"w\",\"sha256\":\"" SHA_A
	"\",\"bytes\":7}]}",
};

static void replayed_messages_change_nothing(void **state)
{
	struct db_conn *conn = ((struct store_fixture *)*state)->conn;
	struct world w;
	struct err err = { 0 };
	char before[400], after[400];
	make(conn, 1, &w); /* its input file's content is SHA_A of 7 bytes */
	for (size_t i = 0; i < ARRAY_LEN(script); i++) {
		yard_say(conn, &w.a, script[i]);
		yard_text(conn, STATE_SQL, w.a.id, before);
		for (size_t again = 0; again <= i; again++) {
			int rc = yard_send(conn, &w.a, (int64_t)again + 1, script[again], &err);
			assert_int_equal(rc, i + 1 == ARRAY_LEN(script) ? ERR_LEASE_LOST : 0);
		}
		yard_text(conn, STATE_SQL, w.a.id, after);
		assert_string_equal(before, after);
	}
}

static void old_fences_write_nothing(void **state)
{
	struct db_conn *conn = ((struct store_fixture *)*state)->conn;
	struct world w;
	struct err err = { 0 };
	char before[400], after[400];
	struct yard_agent other;
	make(conn, 1, &w);
	yard_agent(conn, "us-east-1", 1, &other);
	yard_text(conn, STATE_SQL, w.a.id, before);
	struct yard_attempt wrong_epoch = w.a, wrong_agent = w.a, wrong_id = w.a;
	wrong_epoch.epoch--;
	snprintf(wrong_agent.agent, IDENT_MAX, "%s", other.id);
	ident_new(clock_system(), "att", wrong_id.id);
	const struct yard_attempt *wrong[] = { &wrong_epoch, &wrong_agent, &wrong_id };
	for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
		for (size_t k = 0; k < ARRAY_LEN(script); k++)
			assert_int_equal(
				yard_send(conn, wrong[i], (int64_t)k + 1, script[k], &err), ERR_LEASE_LOST);
		struct attempt_beat beat = { .epoch = wrong[i]->epoch };
		snprintf(beat.attempt_id, IDENT_MAX, "%s", wrong[i]->id);
		assert_ok(attempt_store_beat(conn, wrong[i]->agent, &beat, 1, &err));
		assert_false(beat.alive);
		struct attempt_capability c;
		struct attempt_fence f = { wrong[i]->id, wrong[i]->epoch, wrong[i]->agent };
		assert_int_equal(
			attempt_store_capability(conn, &f, "token", SHA_A, &c, &err), ERR_LEASE_LOST);
	}
	yard_text(conn, STATE_SQL, w.a.id, after);
	assert_string_equal(before, after);
}

static void a_lost_lease_requeues_from_the_last_checkpoint(void **state)
{
	struct db_conn *conn = ((struct store_fixture *)*state)->conn;
	struct world w;
	struct err err = { 0 };
	make(conn, 1, &w);
	struct attempt locked;
	assert_int_equal(attempt_store_lock_expired(conn, w.a.id, &locked, &err), ERR_LEASE_LOST);
	yard_train(conn, &w.a);
	yard_checkpoint(conn, w.tenant, &w.a, 100);
	yard_checkpoint(conn, w.tenant, &w.a, 200);
	assert_ok(db_exec(conn, NULL, &err, "select pg_sleep(0.005)"));
	yard_expire(conn, &w.a);
	assert_text(conn, w.a.id, "lost agent_lost", ATTEMPT_SQL("outcome || ' ' || reason"));
	assert_text(conn, w.job, "queued 1", JOB_SQL("status || ' ' || barren_failures"));
	assert_text(conn, w.a.id, "lost/agent_lost",
		"select state || '/' || reason from segments where attempt_id = $1"
		" order by id desc limit 1");
	yard_check_tiling(conn);
	/* Whoever held it is late now. */
	assert_int_equal(yard_send(conn, &w.a, w.a.seq + 1, script[2], &err), ERR_LEASE_LOST);
	struct yard_attempt next;
	yard_place(conn, w.job, w.agent.id, &next);
	assert_true(next.epoch > w.a.epoch);
	assert_text(conn, next.id, "200",
		"select c.step::text from attempts a join checkpoints c on c.id = a.resume_checkpoint_id"
		" where a.id = $1");
	assert_text(conn, next.id, "2", ATTEMPT_SQL("number"));
}

static void die(struct db_conn *conn, struct yard_attempt *a)
{
	yard_say(conn, a,
		"{\"t\":\"end\",\"outcome\":\"failed\",\"reason\":\"trainer_died\",\"message\":\"killed\","
		"\"rank\":0,\"exit_code\":null,\"signal\":9,\"last_lines\":[\"one\",\"two\"]}");
}

static void three_barren_failures_fail_the_job(void **state)
{
	struct db_conn *conn = ((struct store_fixture *)*state)->conn;
	struct world w;
	make(conn, 1, &w);
	/* Progress between failures starts the count anew. */
	for (int i = 1; i <= 5; i++) {
		if (i > 1)
			yard_place(conn, w.job, w.agent.id, &w.a);
		yard_train(conn, &w.a);
		if (i == 3)
			yard_checkpoint(conn, w.tenant, &w.a, 100);
		die(conn, &w.a);
		assert_text(conn, w.job, i < 5 ? "queued" : "failed", JOB_SQL("status"));
	}
	assert_text(conn, w.job,
		"{\"code\": \"trainer_died\", \"rank\": 0, \"param\": null, \"signal\": 9,"
		" \"message\": \"killed\", \"exit_code\": null, \"last_lines\": [\"one\", \"two\"]}",
		JOB_SQL("error"));
	assert_text(conn, w.job, "9",
		"select data->'error'->>'signal' from job_events where job_id = $1"
		" and type = 'job.failed'");
	yard_check_tiling(conn);
}

#define RESUMED_SQL                                                                           \
	"select c.step::text from attempts a join checkpoints c on c.id = a.resume_checkpoint_id" \
	" where a.id = $1"

/* An attempt that cannot begin to train. */
static void fail_to_begin(struct db_conn *conn, struct yard_attempt *a)
{
	yard_say(conn, a, "{\"t\":\"starting\"}");
	yard_say(conn, a,
		"{\"t\":\"end\",\"outcome\":\"failed\",\"reason\":\"platform_error\",\"message\":\"bad\"}");
}

static void a_broken_checkpoint_is_passed_over_at_last(void **state)
{
	struct db_conn *conn = ((struct store_fixture *)*state)->conn;
	struct world w;
	make(conn, 1, &w);
	yard_train(conn, &w.a);
	yard_checkpoint(conn, w.tenant, &w.a, 100);
	yard_checkpoint(conn, w.tenant, &w.a, 200);
	die(conn, &w.a);
	yard_place(conn, w.job, w.agent.id, &w.a);
	assert_text(conn, w.a.id, "200", RESUMED_SQL);
	fail_to_begin(conn, &w.a);
	assert_text(conn, w.job, "queued 2", JOB_SQL("status || ' ' || barren_failures"));
	yard_place(conn, w.job, w.agent.id, &w.a);
	assert_text(conn, w.a.id, "100", RESUMED_SQL);
	yard_train(conn, &w.a);
	yard_checkpoint(conn, w.tenant, &w.a, 150);
	yard_checkpoint(conn, w.tenant, &w.a, 250);
	assert_text(conn, w.job, "0", JOB_SQL("barren_failures"));
	die(conn, &w.a);
	yard_place(conn, w.job, w.agent.id, &w.a);
	assert_text(conn, w.a.id, "250", RESUMED_SQL);
}

static void a_good_checkpoint_is_not_passed_over(void **state)
{
	struct db_conn *conn = ((struct store_fixture *)*state)->conn;
	struct world w;
	make(conn, 1, &w);
	yard_train(conn, &w.a);
	yard_checkpoint(conn, w.tenant, &w.a, 100);
	yard_checkpoint(conn, w.tenant, &w.a, 200);
	die(conn, &w.a);
	yard_place(conn, w.job, w.agent.id, &w.a);
	yard_train(conn, &w.a); /* so it could be read */
	die(conn, &w.a);
	yard_place(conn, w.job, w.agent.id, &w.a);
	assert_text(conn, w.a.id, "200", RESUMED_SQL);
}

static void the_only_checkpoint_is_not_passed_over(void **state)
{
	struct db_conn *conn = ((struct store_fixture *)*state)->conn;
	struct world w;
	make(conn, 1, &w);
	yard_train(conn, &w.a);
	yard_checkpoint(conn, w.tenant, &w.a, 100);
	die(conn, &w.a);
	yard_place(conn, w.job, w.agent.id, &w.a);
	fail_to_begin(conn, &w.a);
	yard_place(conn, w.job, w.agent.id, &w.a);
	assert_text(conn, w.a.id, "100", RESUMED_SQL);
}

static void unstarted_attempts_say_nothing_about_the_job(void **state)
{
	struct db_conn *conn = ((struct store_fixture *)*state)->conn;
	struct world w;
	make(conn, 1, &w);
	for (int i = 0; i < 5; i++) {
		yard_expire(conn, &w.a);
		assert_text(conn, w.job, "queued 0", JOB_SQL("status || ' ' || barren_failures"));
		yard_place(conn, w.job, w.agent.id, &w.a);
	}
	assert_text(conn, w.job, "5",
		"select count(*)::text from job_events where job_id = $1 and type = 'job.requeued'");
}

static void no_progress_keeps_a_lease_from_running_out(void **state)
{
	static const char *const progress[] = { "{\"steps\":1.5}", "{\"steps\":1e300}",
		"{\"steps\":\"many\"}", "{\"steps\":null}", "{\"steps\":-1}" };
	struct db_conn *conn = ((struct store_fixture *)*state)->conn;
	struct err err = { 0 };
	for (size_t i = 0; i < ARRAY_LEN(progress); i++) {
		struct world w;
		make(conn, 1, &w);
		yard_train(conn, &w.a);
		assert_ok(db_exec(conn, NULL, &err, "update jobs set progress = $2::jsonb where id = $1",
			DB_TEXT(w.job), DB_TEXT(progress[i])));
		yard_expire(conn, &w.a);
		assert_text(conn, w.job, "queued", JOB_SQL("status"));
	}
}

/* A machine that can never begin must not be asked for ever. */
static void refusals_to_start_fail_the_job(void **state)
{
	struct db_conn *conn = ((struct store_fixture *)*state)->conn;
	struct world w;
	make(conn, 1, &w);
	for (int i = 1; i <= 3; i++) {
		yard_say(
			conn, &w.a, "{\"t\":\"end\",\"outcome\":\"failed\",\"reason\":\"platform_error\"}");
		assert_text(conn, w.job, i < 3 ? "queued" : "failed", JOB_SQL("status"));
		if (i < 3)
			yard_place(conn, w.job, w.agent.id, &w.a);
	}
	yard_check_tiling(conn);
}

/* What the time after the last checkpoint becomes. */
static void ends_are_paid_by_who_caused_them(void **state)
{
	static const struct {
		const char *end, *job, *segment;
	} cases[] = {
		{ "\"failed\",\"reason\":\"user_error\"", "failed", "billed/training" },
		{ "\"failed\",\"reason\":\"out_of_memory\"", "failed", "billed/training" },
		{ "\"failed\",\"reason\":\"nan_loss\"", "failed", "billed/training" },
		{ "\"failed\",\"reason\":\"loss_spike\"", "failed", "billed/training" },
		{ "\"failed\",\"reason\":\"max_runtime\"", "failed", "billed/training" },
		{ "\"failed\",\"reason\":\"stalled\"", "queued", "lost/stalled" },
		{ "\"failed\",\"reason\":\"trainer_died\"", "queued", "lost/trainer_died" },
		{ "\"failed\",\"reason\":\"platform_error\"", "queued", "lost/platform_error" },
		{ "\"failed\",\"reason\":\"residency\"", "failed", "unbilled/residency" },
		{ "\"cancelled\"", "queued", "lost/preempted" },
		{ "\"paused\"", "queued", "lost/preempted" },
	};
	struct db_conn *conn = ((struct store_fixture *)*state)->conn;
	struct err err = { 0 };
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct world w;
		char json[200];
		make(conn, 1, &w);
		yard_train(conn, &w.a);
		assert_ok(db_exec(conn, NULL, &err, "select pg_sleep(0.003)"));
		snprintf(json, sizeof(json), "{\"t\":\"end\",\"outcome\":%s}", cases[i].end);
		yard_say(conn, &w.a, json);
		assert_text(conn, w.job, cases[i].job, JOB_SQL("status"));
		assert_text(conn, w.a.id, cases[i].segment,
			"select state || '/' || reason from segments where attempt_id = $1"
			" order by id desc limit 1");
	}
	yard_check_tiling(conn);
}

static void bad_messages_are_refused(void **state)
{
	static const struct {
		const char *json;
		int code;
	} cases[] = {
		{ "{\"t\":\"dance\"}", ERR_INVALID_VALUE },
		{ "{}", ERR_INVALID_VALUE },
		{ "[]", ERR_INVALID_TYPE },
		{ "{\"t\":\"step\"}", ERR_MISSING_FIELD },
		{ "{\"t\":\"step\",\"step\":-1}", ERR_INVALID_VALUE },
		{ "{\"t\":\"step\",\"step\":\"1\"}", ERR_INVALID_TYPE },
		{ "{\"t\":\"step\",\"step\":1,\"steps\":1.5}", ERR_INVALID_TYPE },
		{ "{\"t\":\"step\",\"step\":1,\"steps\":1125899906842625}", ERR_INVALID_VALUE },
		{ "{\"t\":\"evaluation\",\"step\":1e300}", ERR_INVALID_TYPE },
		{ "{\"t\":\"checkpoint\",\"step\":1}", ERR_MISSING_FIELD },
		{ "{\"t\":\"checkpoint\",\"step\":1,\"files\":[{\"name\":\"../x\",\"sha256\":\"" SHA_A
		  "\",\"bytes\":7}]}",
			ERR_INVALID_VALUE },
		{ "{\"t\":\"checkpoint\",\"step\":1,\"files\":[{\"name\":\"x\",\"sha256\":\"00\","
		  "\"bytes\":7}]}",
			ERR_INVALID_VALUE },
		{ "{\"t\":\"checkpoint\",\"step\":1,\"files\":[{\"name\":\"x\",\"sha256\":\"" SHA_A
		  "\",\"bytes\":7},{\"name\":\"x\",\"sha256\":\"" SHA_A "\",\"bytes\":7}]}",
			ERR_INVALID_VALUE },
		/* stored, but of another length */
		{ "{\"t\":\"checkpoint\",\"step\":1,\"files\":[{\"name\":\"x\",\"sha256\":\"" SHA_A
		  "\",\"bytes\":8}]}",
			ERR_INVALID_VALUE },
		{ "{\"t\":\"end\",\"outcome\":\"failed\",\"reason\":\"bad luck\"}", ERR_INVALID_VALUE },
		{ "{\"t\":\"end\",\"outcome\":\"failed\"}", ERR_INVALID_VALUE },
		{ "{\"t\":\"end\",\"outcome\":\"won\"}", ERR_INVALID_VALUE },
		{ "{\"t\":\"end\",\"outcome\":\"succeeded\",\"files\":[]}", ERR_INVALID_VALUE },
		{ "{\"t\":\"end\",\"outcome\":\"succeeded\"}", ERR_MISSING_FIELD },
	};
	struct db_conn *conn = ((struct store_fixture *)*state)->conn;
	struct world w;
	make(conn, 1, &w);
	yard_train(conn, &w.a);
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct err err = { 0 };
		int rc = yard_send(conn, &w.a, w.a.seq + 1, cases[i].json, &err);
		if (rc != cases[i].code)
			fail_msg("%s: %d %s", cases[i].json, rc, err.message);
	}
	struct err err = { 0 };
	make(conn, 1, &w);
	yard_say(conn, &w.a, "{\"t\":\"starting\"}");
	assert_int_equal(yard_send(conn, &w.a, 2, script[6], &err), ERR_INVALID_VALUE);
	assert_int_equal(yard_send(conn, &w.a, 2, script[5], &err), ERR_CONFLICT);
}

static void cancel_tells_the_attempt(void **state)
{
	struct db_conn *conn = ((struct store_fixture *)*state)->conn;
	struct world w;
	struct err err = { 0 };
	struct job_cancelled done;
	make(conn, 1, &w);
	yard_train(conn, &w.a);
	for (int i = 0; i < 2; i++) {
		assert_ok(job_cancel(conn, w.tenant, w.job, &done, &err));
		assert_int_equal(done.status, JOB_RUNNING);
		assert_string_equal(done.agent_id, w.agent.id);
	}
	assert_text(conn, w.agent.id, "3", "select version::text from agents where id = $1");
	struct store_json j;
	store_json_init(&j);
	assert_ok(attempt_store_write_poll(conn, w.agent.id, &j.w, &err));
	const struct json_val *a = json_array_at(json_get(store_json_root(&j), "attempts"), 0);
	assert_string_equal(json_str_or(json_get(a, "desired"), ""), "cancel");
	store_json_finish(&j);
	yard_checkpoint(conn, w.tenant, &w.a, 30);
	assert_text(conn, w.a.id, "stopping", ATTEMPT_SQL("status"));
	yard_say(conn, &w.a, "{\"t\":\"end\",\"outcome\":\"cancelled\",\"step\":30}");
	assert_text(conn, w.job, "cancelled", JOB_SQL("status"));
	yard_check_tiling(conn);
}

static void a_wish_to_cancel_survives_platform_failures(void **state)
{
	struct db_conn *conn = ((struct store_fixture *)*state)->conn;
	struct err err = { 0 };
	struct job_cancelled done;
	for (int lost = 0; lost < 2; lost++) {
		struct world w;
		make(conn, 1, &w);
		if (lost == 0)
			yard_train(conn, &w.a);
		assert_ok(job_cancel(conn, w.tenant, w.job, &done, &err));
		if (lost == 1)
			yard_expire(conn, &w.a);
		else
			die(conn, &w.a);
		assert_text(conn, w.job, "cancelled", JOB_SQL("status"));
		struct attempt_placed placed;
		assert_int_equal(
			attempt_store_place(conn, w.job, w.agent.id, &placed, &err), ERR_DB_CONFLICT);
	}
}

static void pause_keeps_the_job(void **state)
{
	struct db_conn *conn = ((struct store_fixture *)*state)->conn;
	struct world w;
	struct err err = { 0 };
	make(conn, 1, &w);
	yard_train(conn, &w.a);
	assert_ok(db_exec(
		conn, NULL, &err, "update attempts set desired = 'pause' where id = $1", DB_TEXT(w.a.id)));
	yard_checkpoint(conn, w.tenant, &w.a, 30);
	yard_say(conn, &w.a, "{\"t\":\"end\",\"outcome\":\"paused\",\"step\":30}");
	assert_text(conn, w.job, "paused", JOB_SQL("status"));
	assert_ok(job_move(conn, w.job, JOB_QUEUED, NULL, NULL, &err));
	yard_place(conn, w.job, w.agent.id, &w.a);
	assert_text(conn, w.a.id, "2", ATTEMPT_SQL("number"));
}

static void beats_extend_the_lease(void **state)
{
	struct db_conn *conn = ((struct store_fixture *)*state)->conn;
	struct world w;
	struct err err = { 0 };
	make(conn, 1, &w);
	yard_train(conn, &w.a);
	assert_ok(db_exec(conn, NULL, &err,
		"update attempts set lease_until = yard_now() + interval '1 s' where id = $1",
		DB_TEXT(w.a.id)));
	struct attempt_beat beats[2] = { { .epoch = w.a.epoch }, { .epoch = 1 } };
	snprintf(beats[0].attempt_id, IDENT_MAX, "%s", w.a.id);
	snprintf(beats[1].attempt_id, IDENT_MAX, "not an id, {quoted}");
	assert_ok(attempt_store_beat(conn, w.agent.id, beats, 2, &err));
	assert_true(beats[0].alive);
	assert_int_equal(beats[0].acked_seq, 2);
	assert_false(beats[1].alive);
	assert_text(conn, w.a.id, "true",
		ATTEMPT_SQL("(lease_until > yard_now() + interval '29 s'"
					" and lease_until <= yard_now() + interval '30 s')"));
}

static void a_poll_shows_the_whole_attempt(void **state)
{
	struct db_conn *conn = ((struct store_fixture *)*state)->conn;
	struct world w;
	struct err err = { 0 };
	make(conn, 2, &w);
	yard_train(conn, &w.a);
	yard_checkpoint(conn, w.tenant, &w.a, 400);
	yard_expire(conn, &w.a);
	yard_place(conn, w.job, w.agent.id, &w.a);
	struct store_json j;
	store_json_init(&j);
	assert_ok(attempt_store_write_poll(conn, w.agent.id, &j.w, &err));
	const struct json_val *root = store_json_root(&j);
	assert_int_equal(json_i64_or(json_get(root, "version"), 0), 4);
	assert_int_equal(json_array_len(json_get(root, "attempts")), 1);
	const struct json_val *a = json_array_at(json_get(root, "attempts"), 0);
	assert_string_equal(json_str_or(json_get(a, "attempt_id"), ""), w.a.id);
	assert_int_equal(json_i64_or(json_get(a, "epoch"), 0), w.a.epoch);
	assert_string_equal(json_str_or(json_get(a, "desired"), ""), "run");
	assert_int_equal(strlen(json_str_or(json_get(a, "token"), "")), 64);
	assert_int_equal(json_array_len(json_get(a, "devices")), 2);
	assert_int_equal(json_i64_or(json_array_at(json_get(a, "devices"), 1), -1), 1);
	assert_int_equal(json_i64_or(json_get(a, "stall_ms"), 0), ATTEMPT_STALL_MS);
	assert_string_equal(json_str_or(json_array_at(json_get(a, "residency"), 0), ""), "us");
	assert_int_equal(json_i64_or(json_get(json_get(a, "spec"), "seed"), 0), 42);
	const struct json_val *file = json_array_at(json_get(a, "files"), 0);
	assert_string_equal(json_str_or(json_get(file, "role"), ""), "training_file");
	assert_string_equal(json_str_or(json_get(file, "sha256"), ""), SHA_A);
	const struct json_val *resume = json_get(a, "resume");
	assert_int_equal(json_i64_or(json_get(resume, "step"), 0), 400);
	assert_int_equal(json_array_len(json_get(resume, "files")), 1);
	store_json_finish(&j);
}

static void blobs_serve_only_the_job(void **state)
{
	struct db_conn *conn = ((struct store_fixture *)*state)->conn;
	struct world w;
	struct err err = { 0 };
	char token[400];
	make(conn, 1, &w);
	yard_text(conn, ATTEMPT_SQL("token"), w.a.id, token);
	struct attempt_fence f = { w.a.id, w.a.epoch, w.a.agent };
	struct attempt_capability c;
	assert_ok(attempt_store_capability(conn, &f, token, SHA_A, &c, &err));
	assert_true(c.serves);
	assert_string_equal(c.tenant_id, w.tenant);
	assert_string_equal(c.region, "us-east-1");
	assert_string_equal(c.residency, "{us}");
	char other[65];
	yard_blob(conn, w.tenant, 77, other);
	assert_ok(attempt_store_capability(conn, &f, token, other, &c, &err));
	assert_false(c.serves);
	token[5] = token[5] == '0' ? '1' : '0';
	assert_int_equal(attempt_store_capability(conn, &f, token, SHA_A, &c, &err), ERR_LEASE_LOST);
	token[5] = '\0';
	assert_int_equal(attempt_store_capability(conn, &f, token, SHA_A, &c, &err), ERR_LEASE_LOST);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(table_refuses_what_it_lacks),
		store_test(a_run_to_success),
		store_test(replayed_messages_change_nothing),
		store_test(old_fences_write_nothing),
		store_test(a_lost_lease_requeues_from_the_last_checkpoint),
		store_test(three_barren_failures_fail_the_job),
		store_test(a_broken_checkpoint_is_passed_over_at_last),
		store_test(a_good_checkpoint_is_not_passed_over),
		store_test(the_only_checkpoint_is_not_passed_over),
		store_test(unstarted_attempts_say_nothing_about_the_job),
		store_test(refusals_to_start_fail_the_job),
		store_test(no_progress_keeps_a_lease_from_running_out),
		store_test(ends_are_paid_by_who_caused_them),
		store_test(bad_messages_are_refused),
		store_test(cancel_tells_the_attempt),
		store_test(a_wish_to_cancel_survives_platform_failures),
		store_test(pause_keeps_the_job),
		store_test(beats_extend_the_lease),
		store_test(a_poll_shows_the_whole_attempt),
		store_test(blobs_serve_only_the_job),
	};
	return cmocka_run_group_tests(tests, store_group_setup, store_group_teardown);
}

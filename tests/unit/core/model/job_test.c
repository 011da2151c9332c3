/* SPDX-License-Identifier: Apache-2.0
 * The transition table of jobs, all pairs, and cancelling, on a real database. Run by
 * with_pg.sh. */
#include "tests/unit/core/model/store_fixture.h"

#include "core/model/job.h"

static const char *const legal[] = {
	"validating_files queued",
	"validating_files failed",
	"validating_files cancelled",
	"queued running",
	"queued failed",
	"queued cancelled",
	"running queued",
	"running paused",
	"running succeeded",
	"running failed",
	"running cancelled",
	"paused queued",
	"paused cancelled",
};

static bool is_legal(enum job_status from, enum job_status to)
{
	char pair[64];
	snprintf(pair, sizeof(pair), "%s %s", job_status_word(from), job_status_word(to));
	for (size_t i = 0; i < ARRAY_LEN(legal); i++)
		if (strcmp(legal[i], pair) == 0)
			return true;
	return false;
}

struct world {
	char tenant[IDENT_MAX], file[IDENT_MAX], job[IDENT_MAX];
};

static void make(struct db_conn *conn, struct world *w)
{
	store_tenant(conn, "us", w->tenant);
	store_file(conn, w->tenant, 'a', w->file);
	store_job(conn, w->tenant, w->file, NULL, w->job);
}

static void read_row(struct db_conn *conn, const char *job, const char *column, char ret[64])
{
	struct err err = { 0 };
	char sql[200];
	cleanup(db_result_freep) struct db_result *r = NULL;
	snprintf(sql, sizeof(sql), "select (%s)::text from jobs where id = $1", column);
	assert_ok(db_exec(conn, &r, &err, sql, DB_TEXT(job)));
	snprintf(ret, 64, "%s", db_is_null(r, 0, 0) ? "" : db_str(r, 0, 0));
}

static void put_status(struct db_conn *conn, const char *job, enum job_status s)
{
	struct err err = { 0 };
	assert_ok(db_exec(conn, NULL, &err, "update jobs set status = $2 where id = $1", DB_TEXT(job),
		DB_TEXT(job_status_word(s))));
}

static void every_pair_follows_the_table(void **state)
{
	struct store_fixture *fx = *state;
	struct world w;
	make(fx->conn, &w);
	int64_t events = 0;
	for (int from = 0; from < JOB_STATUS_COUNT; from++)
		for (int to = 0; to < JOB_STATUS_COUNT; to++) {
			struct err err = { 0 };
			char status[64], seq[64];
			put_status(fx->conn, w.job, (enum job_status)from);
			int rc = job_move(fx->conn, w.job, (enum job_status)to, "code", "message", &err);
			bool ok = is_legal((enum job_status)from, (enum job_status)to);
			assert_int_equal(rc, ok ? 0 : ERR_CONFLICT);
			assert_int_equal(job_move_allowed((enum job_status)from, (enum job_status)to), ok);
			events += ok;
			read_row(fx->conn, w.job, "status", status);
			assert_string_equal(status, job_status_word((enum job_status)(ok ? to : from)));
			read_row(fx->conn, w.job, "seq", seq);
			assert_int_equal(strtoll(seq, NULL, 10), events);
		}
	cleanup(db_result_freep) struct db_result *r = NULL;
	struct err err = { 0 };
	assert_ok(db_exec(fx->conn, &r, &err,
		"select count(*), max(seq), count(*) filter (where type = 'job.requeued')"
		" from job_events where job_id = $1",
		DB_TEXT(w.job)));
	assert_int_equal(db_i64(r, 0, 0), ARRAY_LEN(legal));
	assert_int_equal(db_i64(r, 0, 1), ARRAY_LEN(legal));
	assert_int_equal(db_i64(r, 0, 2), 1);
}

static void timestamps_follow_the_life(void **state)
{
	struct store_fixture *fx = *state;
	struct err err = { 0 };
	struct world w;
	char text[64];
	make(fx->conn, &w);
	assert_ok(job_move(fx->conn, w.job, JOB_QUEUED, NULL, NULL, &err));
	read_row(fx->conn, w.job, "queued_at is not null and started_at is null", text);
	assert_string_equal(text, "true");
	assert_ok(db_exec(fx->conn, NULL, &err,
		"update jobs set queued_at = '2026-01-01', blocked_code = 'x' where id = $1",
		DB_TEXT(w.job)));
	assert_ok(job_move(fx->conn, w.job, JOB_RUNNING, NULL, NULL, &err));
	read_row(fx->conn, w.job, "started_at is not null and blocked_code is null", text);
	assert_string_equal(text, "true");
	/* The platform's fault costs no place in the queue. */
	assert_ok(job_move(fx->conn, w.job, JOB_QUEUED, "agent_lost", "gone", &err));
	read_row(fx->conn, w.job, "queued_at = '2026-01-01' and finished_at is null", text);
	assert_string_equal(text, "true");
	read_row(fx->conn, w.job, "reason_code", text);
	assert_string_equal(text, "agent_lost");
	assert_ok(job_move(fx->conn, w.job, JOB_CANCELLED, NULL, NULL, &err));
	read_row(fx->conn, w.job, "finished_at is not null and reason_code is null", text);
	assert_string_equal(text, "true");
	assert_int_equal(job_move(fx->conn, "job_none", JOB_QUEUED, NULL, NULL, &err), ERR_NOT_FOUND);
}

static void events_number_themselves(void **state)
{
	struct store_fixture *fx = *state;
	struct err err = { 0 };
	struct world w;
	int64_t seq = 0;
	char text[64];
	make(fx->conn, &w);
	assert_ok(job_event(fx->conn, w.job, "log", "{\"lines\":[]}", &seq, &err));
	assert_int_equal(seq, 1);
	assert_ok(job_event_progress(
		fx->conn, w.job, "step", "{\"step\":5}", "{\"step\":5,\"loss\":1.5}", &seq, &err));
	assert_int_equal(seq, 2);
	assert_ok(
		job_event_progress(fx->conn, w.job, "step", "{\"step\":6}", "{\"step\":6}", &seq, &err));
	read_row(fx->conn, w.job, "progress", text);
	assert_string_equal(text, "{\"loss\": 1.5, \"step\": 6}");
	assert_int_equal(job_event(fx->conn, "job_none", "log", "{}", &seq, &err), ERR_NOT_FOUND);
}

static void cancel_is_durable_and_repeatable(void **state)
{
	struct store_fixture *fx = *state;
	struct err err = { 0 };
	struct world w;
	struct job_cancelled done;
	char stranger[IDENT_MAX], text[64];
	make(fx->conn, &w);
	store_tenant(fx->conn, "us", stranger);
	assert_int_equal(job_cancel(fx->conn, stranger, w.job, &done, &err), ERR_NOT_FOUND);
	assert_ok(job_move(fx->conn, w.job, JOB_QUEUED, NULL, NULL, &err));
	for (int i = 0; i < 2; i++) {
		assert_ok(job_cancel(fx->conn, w.tenant, w.job, &done, &err));
		assert_int_equal(done.status, JOB_CANCELLED);
		assert_string_equal(done.agent_id, "");
		read_row(fx->conn, w.job, "seq", text);
		assert_string_equal(text, "2");
	}
	put_status(fx->conn, w.job, JOB_SUCCEEDED);
	assert_int_equal(job_cancel(fx->conn, w.tenant, w.job, &done, &err), ERR_CONFLICT);
	put_status(fx->conn, w.job, JOB_FAILED);
	assert_int_equal(job_cancel(fx->conn, w.tenant, w.job, &done, &err), ERR_CONFLICT);
	put_status(fx->conn, w.job, JOB_PAUSED);
	assert_ok(job_cancel(fx->conn, w.tenant, w.job, &done, &err));
	assert_int_equal(done.status, JOB_CANCELLED);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		store_test(every_pair_follows_the_table),
		store_test(timestamps_follow_the_life),
		store_test(events_number_themselves),
		store_test(cancel_is_durable_and_repeatable),
	};
	return cmocka_run_group_tests(tests, store_group_setup, store_group_teardown);
}

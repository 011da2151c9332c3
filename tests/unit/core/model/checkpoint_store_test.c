/* SPDX-License-Identifier: Apache-2.0
 * Trimming of checkpoints and dropping of content on a real database. Run by with_pg.sh. */
#include "tests/unit/core/model/yard_fixture.h"

struct world {
	char tenant[IDENT_MAX], file[IDENT_MAX], job[IDENT_MAX];
	struct yard_agent agent;
	struct yard_attempt a;
};

static void make(struct db_conn *conn, struct world *w)
{
	store_tenant(conn, "us", w->tenant);
	store_file(conn, w->tenant, 'a', w->file);
	yard_agent(conn, "us-east-1", 1, &w->agent);
	yard_job(conn, w->tenant, w->file, 1, w->job); /* keep = 2 */
	yard_place(conn, w->job, w->agent.id, &w->a);
	yard_train(conn, &w->a);
}

#define KEPT_SQL                                                                      \
	"select coalesce(string_agg(step::text, ' ' order by step), '') from checkpoints" \
	" where job_id = $1 and trimmed_at is null"

static void the_last_ones_are_kept(void **state)
{
	struct db_conn *conn = ((struct store_fixture *)*state)->conn;
	struct world w;
	make(conn, &w);
	for (int step = 10; step <= 50; step += 10)
		yard_checkpoint(conn, w.tenant, &w.a, step);
	assert_text(conn, w.job, "40 50", KEPT_SQL);
	assert_text(conn, w.job, "5", "select count(*)::text from checkpoints where job_id = $1");
}

static void the_one_being_resumed_is_kept(void **state)
{
	struct db_conn *conn = ((struct store_fixture *)*state)->conn;
	struct world w;
	make(conn, &w);
	yard_checkpoint(conn, w.tenant, &w.a, 10);
	yard_expire(conn, &w.a);
	yard_place(conn, w.job, w.agent.id, &w.a);
	yard_train(conn, &w.a);
	for (int step = 20; step <= 40; step += 10)
		yard_checkpoint(conn, w.tenant, &w.a, step);
	assert_text(conn, w.job, "10 30 40", KEPT_SQL);
	yard_expire(conn, &w.a);
	yard_place(conn, w.job, w.agent.id, &w.a);
	yard_train(conn, &w.a);
	yard_checkpoint(conn, w.tenant, &w.a, 50);
	/* 40 is being resumed and among the last two. */
	assert_text(conn, w.job, "40 50", KEPT_SQL);
}

static void the_same_step_again_is_one_checkpoint(void **state)
{
	struct db_conn *conn = ((struct store_fixture *)*state)->conn;
	struct world w;
	make(conn, &w);
	yard_checkpoint(conn, w.tenant, &w.a, 10);
	yard_checkpoint(conn, w.tenant, &w.a, 10);
	assert_text(conn, w.job, "1", "select count(*)::text from checkpoints where job_id = $1");
	assert_text(conn, w.job, "1",
		"select count(distinct data->>'checkpoint_id')::text from job_events"
		" where job_id = $1 and type = 'checkpoint'");
}

/* What was removed, in order. */
struct removed {
	char text[2000];
	int code;
};
static int remove_content(void *ctx, const char *tenant_id, const char *sha256, struct err *err)
{
	struct removed *r = ctx;
	size_t n = strlen(r->text);
	snprintf(r->text + n, sizeof(r->text) - n, "%s ", sha256 + 60);
	return r->code;
}

static void send_two_files(struct db_conn *conn, struct world *w, int64_t step, const char *shared)
{
	char own[65], json[600];
	yard_blob(conn, w->tenant, step, own);
	snprintf(json, sizeof(json),
		"{\"t\":\"checkpoint\",\"step\":%lld,\"files\":["
		"{\"name\":\"w\",\"sha256\":\"%s\",\"bytes\":7},"
		"{\"name\":\"config.json\",\"sha256\":\"%s\",\"bytes\":7}]}",
		(long long)step, own, shared);
	yard_say(conn, &w->a, json);
}

static void only_what_nobody_needs_is_dropped(void **state)
{
	struct db_conn *conn = ((struct store_fixture *)*state)->conn;
	struct err err = { 0 };
	struct world w;
	struct removed removed = { 0 };
	char shared[65];
	int dropped = 0;
	make(conn, &w);
	yard_blob(conn, w.tenant, 0xcafe, shared);
	for (int step = 0x10; step <= 0x40; step += 0x10)
		send_two_files(conn, &w, step, shared);
	/* The first step's content is the input file's too. */
	assert_ok(db_exec(conn, NULL, &err,
		"update files set sha256 = lpad('10', 64, '0') where id = $1", DB_TEXT(w.file)));
	assert_ok(checkpoint_store_drop(conn, remove_content, &removed, &dropped, &err));
	assert_int_equal(dropped, 2);
	assert_string_equal(removed.text, "0020 ");
	assert_ok(checkpoint_store_drop(conn, remove_content, &removed, &dropped, &err));
	assert_int_equal(dropped, 0);
	assert_string_equal(removed.text, "0020 ");
	assert_text(conn, w.tenant, "1",
		"select count(*)::text from blobs where tenant_id = $1 and sha256 = lpad('10', 64, '0')");
	assert_text(conn, w.tenant, "0",
		"select count(*)::text from blobs where tenant_id = $1 and sha256 = lpad('20', 64, '0')");
}

static void content_stored_again_waits(void **state)
{
	struct db_conn *conn = ((struct store_fixture *)*state)->conn;
	struct err err = { 0 };
	struct world w;
	struct removed removed = { .code = ERR_NOT_FOUND };
	bool is_new = true;
	int dropped = 0;
	make(conn, &w);
	for (int step = 0x10; step <= 0x30; step += 0x10)
		yard_checkpoint(conn, w.tenant, &w.a, step);
	char sha[65];
	snprintf(sha, sizeof(sha), "%064x", 0x10);
	assert_ok(content_touch(conn, w.tenant, sha, 7, &is_new, &err));
	assert_false(is_new);
	assert_ok(checkpoint_store_drop(conn, remove_content, &removed, &dropped, &err));
	assert_string_equal(removed.text, "");
	assert_ok(db_exec(conn, NULL, &err,
		"update blobs set reused_at = reused_at - interval '1 hour' where sha256 = $1",
		DB_TEXT(sha)));
	/* The bytes are gone already: cut off between them and the commit. */
	assert_ok(checkpoint_store_drop(conn, remove_content, &removed, &dropped, &err));
	assert_string_equal(removed.text, "0010 ");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		store_test(the_last_ones_are_kept),
		store_test(the_one_being_resumed_is_kept),
		store_test(the_same_step_again_is_one_checkpoint),
		store_test(only_what_nobody_needs_is_dropped),
		store_test(content_stored_again_waits),
	};
	return cmocka_run_group_tests(tests, store_group_setup, store_group_teardown);
}

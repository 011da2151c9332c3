/* SPDX-License-Identifier: Apache-2.0
 * Submitted jobs, their JSON and their events on a real database. Run by with_pg.sh. */
#include "tests/unit/core/model/store_fixture.h"

#include "core/model/job.h"
#include "core/model/job_event_store.h"
#include "core/model/job_render.h"

struct world {
	char tenant[IDENT_MAX], stranger[IDENT_MAX], file[IDENT_MAX], job[IDENT_MAX];
};

static void make(struct db_conn *conn, struct world *w)
{
	struct err err = { 0 };
	store_tenant(conn, "us", w->tenant);
	store_tenant(conn, "us", w->stranger);
	store_file(conn, w->tenant, 'a', w->file);
	store_job(conn, w->tenant, w->file, "{\"team\":\"nlp\",\"run\":\"7\"}", w->job);
	assert_ok(job_move(conn, w->job, JOB_QUEUED, NULL, NULL, &err));
}

static void object_of_a_queued_job(void **state)
{
	struct store_fixture *fx = *state;
	struct err err = { 0 };
	struct world w;
	make(fx->conn, &w);
	struct store_json j;
	store_json_init(&j);
	assert_ok(job_render_one(fx->conn, w.tenant, w.job, &j.w, &err));
	const struct json_val *job = store_json_root(&j);
	assert_string_equal(json_str_or(json_get(job, "object"), ""), "job");
	assert_string_equal(json_str_or(json_get(job, "status"), ""), "queued");
	assert_string_equal(json_str_or(json_get(job, "task"), ""), "language_model");
	assert_int_equal(json_i64_or(json_get(json_get(job, "queue"), "position"), 0), 1);
	assert_int_equal(json_array_len(json_get(job, "attempts")), 0);
	assert_null(json_get(job, "error"));
	assert_null(json_get(job, "result"));
	assert_null(json_get(job, "finished_at"));
	assert_string_equal(json_str_or(json_get(json_get(job, "usage"), "amount"), ""), "0.00");
	assert_string_equal(json_str_or(json_get(json_get(job, "metadata"), "team"), ""), "nlp");
	assert_string_equal(
		json_str_or(json_array_at(json_get(json_get(job, "residency"), "set"), 0), ""), "us");
	store_json_finish(&j);

	store_json_init(&j);
	assert_int_equal(job_render_one(fx->conn, w.stranger, w.job, &j.w, &err), ERR_NOT_FOUND);
	store_json_finish(&j);
}

static void position_counts_those_before(void **state)
{
	struct store_fixture *fx = *state;
	struct err err = { 0 };
	struct world w;
	char second[IDENT_MAX], urgent[IDENT_MAX];
	make(fx->conn, &w);
	store_job(fx->conn, w.tenant, w.file, NULL, second);
	assert_ok(job_move(fx->conn, second, JOB_QUEUED, NULL, NULL, &err));
	store_job(fx->conn, w.tenant, w.file, NULL, urgent);
	assert_ok(job_move(fx->conn, urgent, JOB_QUEUED, NULL, NULL, &err));
	assert_ok(db_exec(fx->conn, NULL, &err,
		"update jobs set queued_at = queued_at + interval '1 second' where id = $1",
		DB_TEXT(second)));
	assert_ok(db_exec(
		fx->conn, NULL, &err, "update jobs set priority = 1 where id = $1", DB_TEXT(urgent)));
	const char *ids[] = { urgent, w.job, second };
	for (int i = 0; i < 3; i++) {
		struct store_json j;
		store_json_init(&j);
		assert_ok(job_render_one(fx->conn, w.tenant, ids[i], &j.w, &err));
		const struct json_val *queue = json_get(store_json_root(&j), "queue");
		assert_int_equal(json_i64_or(json_get(queue, "position"), 0), i + 1);
		store_json_finish(&j);
	}
}

static void list_filters(void **state)
{
	struct store_fixture *fx = *state;
	struct err err = { 0 };
	struct world w;
	make(fx->conn, &w);
	struct page page = { .limit = 10 };
	static const struct {
		struct job_filter filter;
		size_t count;
	} cases[] = {
		{ { 0 }, 1 },
		{ { .status = "queued" }, 1 },
		{ { .status = "running" }, 0 },
		{ { .instance_type = "cpu-dev" }, 1 },
		{ { .instance_type = "h100-80gb" }, 0 },
		{ { .metadata_json = "{\"team\":\"nlp\"}" }, 1 },
		{ { .metadata_json = "{\"team\":\"nlp\",\"run\":\"7\"}" }, 1 },
		{ { .metadata_json = "{\"team\":\"vision\"}" }, 0 },
		{ { .status = "queued", .metadata_json = "{\"run\":\"8\"}" }, 0 },
	};
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct store_json j;
		store_json_init(&j);
		assert_ok(job_render_list(fx->conn, w.tenant, &cases[i].filter, &page, &j.w, &err));
		const struct json_val *list = store_json_root(&j);
		assert_int_equal(json_array_len(json_get(list, "data")), cases[i].count);
		store_json_finish(&j);
	}
	struct store_json j;
	store_json_init(&j);
	assert_ok(job_render_list(fx->conn, w.stranger, &cases[0].filter, &page, &j.w, &err));
	assert_int_equal(json_array_len(json_get(store_json_root(&j), "data")), 0);
	store_json_finish(&j);
}

static void collect(void *ctx, const struct job_event_row *event)
{
	char *kinds = ctx;
	size_t n = strlen(kinds);
	snprintf(kinds + n, 200 - n, "%d:%s ", (int)event->seq, event->type);
}

static void events_are_read_after_a_number(void **state)
{
	struct store_fixture *fx = *state;
	struct err err = { 0 };
	struct world w;
	make(fx->conn, &w);
	int64_t seq = 0;
	assert_ok(job_event(fx->conn, w.job, "log", "{\"lines\":[]}", &seq, &err));
	assert_int_equal(seq, 2);
	char kinds[200] = "";
	int count = 0;
	assert_ok(job_event_store_read(fx->conn, w.job, 0, 10, collect, kinds, &count, &err));
	assert_string_equal(kinds, "1:job.queued 2:log ");
	kinds[0] = '\0';
	assert_ok(job_event_store_read(fx->conn, w.job, 1, 10, collect, kinds, &count, &err));
	assert_string_equal(kinds, "2:log ");
	kinds[0] = '\0';
	assert_ok(job_event_store_read(fx->conn, w.job, 0, 1, collect, kinds, &count, &err));
	assert_string_equal(kinds, "1:job.queued ");
	assert_int_equal(count, 1);

	bool over = true;
	assert_ok(job_event_store_is_over(fx->conn, w.job, 2, &over, &err));
	assert_false(over);
	assert_ok(job_move(fx->conn, w.job, JOB_CANCELLED, NULL, NULL, &err));
	assert_ok(job_event_store_is_over(fx->conn, w.job, 2, &over, &err));
	assert_false(over); /* the last event has not been told yet */
	assert_ok(job_event_store_is_over(fx->conn, w.job, 3, &over, &err));
	assert_true(over);
}

static void exists_for_its_tenant_only(void **state)
{
	struct store_fixture *fx = *state;
	struct err err = { 0 };
	struct world w;
	make(fx->conn, &w);
	bool finished = true;
	assert_ok(job_store_exists(fx->conn, w.tenant, w.job, &finished, &err));
	assert_false(finished);
	assert_int_equal(job_store_exists(fx->conn, w.stranger, w.job, &finished, &err), ERR_NOT_FOUND);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		store_test(object_of_a_queued_job),
		store_test(position_counts_those_before),
		store_test(list_filters),
		store_test(events_are_read_after_a_number),
		store_test(exists_for_its_tenant_only),
	};
	return cmocka_run_group_tests_name(
		"core/model/job_store", tests, store_group_setup, store_group_teardown);
}

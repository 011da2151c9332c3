/* SPDX-License-Identifier: Apache-2.0
 * Which figures of a trainer's messages customers see, in events and in the job's progress, on a
 * real database. Run by with_pg.sh. */
#include "tests/unit/core/model/yard_fixture.h"

#include "core/model/job_render.h"

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
	yard_job(conn, w->tenant, w->file, 1, w->job);
	yard_place(conn, w->job, w->agent.id, &w->a);
	yard_train(conn, &w->a);
}

static const char *const STEP_KEYS[] = { "loss", "learning_rate", "grad_norm", "samples", "tokens",
	"tokens_per_second", "samples_per_second", "mfu", "data_wait_share", "memory_bytes",
	"loss_scale", "overflows", "eta_s" };
static const char *const EVALUATION_KEYS[] = { "validation_loss", "perplexity", "bits_per_byte",
	"order0_bits_per_byte", "accuracy", "auc" };

/* Sends one message that gives each key a number of its own. */
static void say(struct db_conn *conn, struct world *w, const char *t, const char *const *keys,
	size_t count, int64_t first)
{
	cleanup(buf_finish) struct buf text;
	buf_init(&text, 4096);
	buf_printf(&text, "{\"t\":\"%s\",\"step\":7,\"steps\":9,\"poem\":1", t);
	for (size_t i = 0; i < count; i++)
		buf_printf(&text, ",\"%s\":%lld", keys[i], (long long)first + (long long)i);
	buf_printf(&text, "}");
	yard_say(conn, &w->a, buf_cstr(&text));
}

static void expect(const struct json_val *v, const char *const *keys, size_t count, int64_t first)
{
	for (size_t i = 0; i < count; i++) {
		if (json_i64_or(json_get(v, keys[i]), -1) != first + (int64_t)i)
			fail_msg("%s is not told", keys[i]);
	}
}

static void figures_reach_events_and_progress(void **state)
{
	struct db_conn *conn = ((struct store_fixture *)*state)->conn;
	struct err err = { 0 };
	struct world w;
	make(conn, &w);
	say(conn, &w, "step", STEP_KEYS, ARRAY_LEN(STEP_KEYS), 100);
	say(conn, &w, "evaluation", EVALUATION_KEYS, ARRAY_LEN(EVALUATION_KEYS), 200);
	struct store_json j;
	store_json_init(&j);
	assert_ok(job_render_one(conn, w.tenant, w.job, &j.w, &err));
	const struct json_val *progress = json_get(store_json_root(&j), "progress");
	expect(progress, STEP_KEYS, ARRAY_LEN(STEP_KEYS), 100);
	expect(progress, EVALUATION_KEYS, ARRAY_LEN(EVALUATION_KEYS), 200);
	assert_int_equal(json_i64_or(json_get(progress, "step"), 0), 7);
	assert_null(json_get(progress, "poem"));
	store_json_finish(&j);
	assert_text(conn, w.job, "107 205",
		"select string_agg(coalesce(data->>'mfu', data->>'auc'), ' ' order by seq)"
		" from job_events where job_id = $1 and type in ('step', 'evaluation')");
}

/* Null, text and objects under a figure's name are left out, not refused. */
static void what_is_no_number_is_left_out(void **state)
{
	struct db_conn *conn = ((struct store_fixture *)*state)->conn;
	struct world w;
	make(conn, &w);
	yard_say(conn, &w.a, "{\"t\":\"step\",\"step\":1,\"mfu\":null,\"loss\":\"low\",\"eta_s\":{}}");
	assert_text(conn, w.job, "{\"step\": 1}",
		"select data::text from job_events where job_id = $1 and type = 'step'");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		store_test(figures_reach_events_and_progress),
		store_test(what_is_no_number_is_left_out),
	};
	return cmocka_run_group_tests(tests, store_group_setup, store_group_teardown);
}

/* SPDX-License-Identifier: Apache-2.0
 * What a job may start from, and what then happens to it, on a real database. Run by with_pg.sh. */
#include "tests/unit/core/model/yard_fixture.h"

#include "core/model/base_store.h"

#define SPEC(tokenizer, lora)                                                                    \
	"{\"task\":\"language_model\",\"model\":{\"preset\":\"gpt2-tiny\"},\"training_file\":\"a\"," \
	"\"data\":{\"tokenizer\":\"" tokenizer "\"},\"lora\":" lora                                  \
	",\"resources\":{\"instance_type\":\"cpu-dev\"},\"checkpoint\":{\"keep\":2}}"

/* A job that trains, and an agent with one more device. */
struct world {
	char tenant[IDENT_MAX], stranger[IDENT_MAX], file[IDENT_MAX], job[IDENT_MAX];
	struct yard_agent agent;
	struct yard_attempt a;
};

static void make(struct db_conn *conn, const char *spec, struct world *w)
{
	struct err err = { 0 };
	store_tenant(conn, "us", w->tenant);
	store_tenant(conn, "us", w->stranger);
	store_file(conn, w->tenant, 'a', w->file);
	yard_agent(conn, "us-east-1", 2, &w->agent);
	yard_job(conn, w->tenant, w->file, 1, w->job);
	assert_ok(db_exec(conn, NULL, &err, "update jobs set spec = $2::jsonb where id = $1",
		DB_TEXT(w->job), DB_TEXT(spec)));
	yard_place(conn, w->job, w->agent.id, &w->a);
	yard_train(conn, &w->a);
}

static void put_file(
	struct db_conn *conn, const char *tenant, int64_t number, const char *name, struct buf *list)
{
	char sha[65];
	yard_blob(conn, tenant, number, sha);
	buf_printf(list, "%s{\"name\":\"%s\",\"sha256\":\"%s\",\"bytes\":7}", list->len > 0 ? "," : "",
		name, sha);
}

/* A checkpoint as a trainer writes it; ret_id is its id. */
static void save(struct db_conn *conn, struct world *w, int64_t step, const char *weights,
	char ret_id[static 400])
{
	static const char *const names[] = { "config.json", "ema.safetensors", "manifest.json",
		"optimizer.safetensors", "state.json" };
	cleanup(buf_finish) struct buf files, json;
	buf_init(&files, 4096);
	buf_init(&json, 4096);
	put_file(conn, w->tenant, step * 16, weights, &files);
	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		put_file(conn, w->tenant, step * 16 + 1 + (int64_t)i, names[i], &files);
	buf_printf(&json, "{\"t\":\"checkpoint\",\"step\":%lld,\"files\":[%s]}", (long long)step,
		buf_cstr(&files));
	yard_say(conn, &w->a, buf_cstr(&json));
	yard_text(conn, "select id from checkpoints where job_id = $1 order by step desc limit 1",
		w->job, ret_id);
}

/* A job of the tenant that starts from the base. */
static void derive(
	struct db_conn *conn, struct world *w, const struct base *b, char ret_id[static IDENT_MAX])
{
	struct err err = { 0 };
	const char *file = w->file;
	ident_new(clock_system(), "job", ret_id);
	struct job_new job = { .id = ret_id,
		.tenant_id = w->tenant,
		.name = "derived",
		.spec_json = "{\"checkpoint\":{\"keep\":2}}",
		.plan_json = "{}",
		.residency = &b->residency,
		.instance_type = "cpu-dev",
		.device_count = 1,
		.training_files = &file,
		.training_file_count = 1,
		.tokenizer_file = w->file,
		.base_checkpoint_id = b->checkpoint_id,
		.base_model_id = b->model_id };
	assert_ok(job_store_insert(conn, &job, &err));
	assert_ok(job_move(conn, ret_id, JOB_QUEUED, NULL, NULL, &err));
}

static void expect(
	struct db_conn *conn, const char *tenant, const char *id, int code, const char *words)
{
	struct err err = { 0 };
	struct base b;
	int rc = base_store_hold(conn, tenant, id, &b, &err);
	if (rc != code || strcmp(err.param, "$.model.base") != 0 || !strstr(err.message, words))
		fail_msg("%s: got %s | %s | %s", id, err_info(rc)->name, err.param, err.message);
}

static void a_checkpoint_and_a_model_say_what_they_are(void **state)
{
	struct db_conn *conn = ((struct store_fixture *)*state)->conn;
	struct err err = { 0 };
	struct world w;
	struct base b;
	char id[400], model[400];
	make(conn, SPEC("bytes", "null"), &w);
	save(conn, &w, 40, "model.safetensors", id);
	assert_ok(base_store_hold(conn, w.tenant, id, &b, &err));
	assert_string_equal(b.checkpoint_id, id);
	assert_string_equal(b.model_id, "");
	assert_string_equal(b.residency.region[0], "us");
	assert_int_equal(b.spec.model.n_embd, 128);
	assert_int_equal(b.spec.tokenizer, SPEC_TOKENIZER_BYTES);

	expect(conn, w.tenant, w.job, ERR_CONFLICT, "is running and has no model yet");
	yard_succeed(conn, w.tenant, &w.a);
	assert_ok(base_store_hold(conn, w.tenant, w.job, &b, &err));
	yard_text(conn, "select id from models where job_id = $1", w.job, model);
	assert_string_equal(b.model_id, model);
	assert_string_equal(b.checkpoint_id, "");
	assert_ok(base_store_hold(conn, w.tenant, model, &b, &err));
	assert_string_equal(b.model_id, model);
}

static void what_others_have_is_not_found(void **state)
{
	struct db_conn *conn = ((struct store_fixture *)*state)->conn;
	struct world w;
	char id[400], model[400];
	make(conn, SPEC("bytes", "null"), &w);
	save(conn, &w, 40, "model.safetensors", id);
	yard_succeed(conn, w.tenant, &w.a);
	yard_text(conn, "select id from models where job_id = $1", w.job, model);
	const char *ids[] = { id, model, w.job };
	for (size_t i = 0; i < ARRAY_LEN(ids); i++)
		expect(conn, w.stranger, ids[i], ERR_NOT_FOUND, "there is no");
	static const char *const nobodys[] = { "ckpt_01ARZ3NDEKTSV4RRFFQ69G5FAV",
		"job_01ARZ3NDEKTSV4RRFFQ69G5FAV", "model_01ARZ3NDEKTSV4RRFFQ69G5FAV", "ckpt_1", "" };
	for (size_t i = 0; i < ARRAY_LEN(nobodys); i++)
		expect(conn, w.tenant, nobodys[i], ERR_NOT_FOUND, "there is no");
}

static void adapters_alone_are_no_base(void **state)
{
	struct db_conn *conn = ((struct store_fixture *)*state)->conn;
	struct err err = { 0 };
	struct world w;
	struct base b;
	char id[400];
	make(conn, SPEC("file_9", "{\"rank\":4}"), &w);
	save(conn, &w, 40, "adapter_model.safetensors", id);
	expect(conn, w.tenant, id, ERR_INVALID_VALUE, "LoRA");
	/* Merged, it is one; a sharded one too. */
	save(conn, &w, 50, "model-00001-of-00002.safetensors", id);
	assert_ok(base_store_hold(conn, w.tenant, id, &b, &err));
	assert_string_equal(b.spec.tokenizer_file, "file_9");
}

/* Where ranks saved a part each: what is in them is not told by their names. */
static void parts_of_ranks_are_a_base(void **state)
{
	struct db_conn *conn = ((struct store_fixture *)*state)->conn;
	struct err err = { 0 };
	struct world w;
	struct base b;
	char id[400];
	make(conn, SPEC("bytes", "null"), &w);
	save(conn, &w, 40, "shard-00001-of-00002.safetensors", id);
	assert_ok(base_store_hold(conn, w.tenant, id, &b, &err));
	make(conn, SPEC("bytes", "{\"rank\":4}"), &w);
	save(conn, &w, 40, "shard-00001-of-00002.safetensors", id);
	expect(conn, w.tenant, id, ERR_INVALID_VALUE, "LoRA");
}

static void a_trimmed_checkpoint_is_gone(void **state)
{
	struct db_conn *conn = ((struct store_fixture *)*state)->conn;
	struct world w;
	char first[400], id[400];
	make(conn, SPEC("bytes", "null"), &w);
	save(conn, &w, 10, "model.safetensors", first);
	save(conn, &w, 20, "model.safetensors", id);
	save(conn, &w, 30, "model.safetensors", id);
	expect(conn, w.tenant, first, ERR_CONFLICT, "checkpoint.keep");
}

static const struct json_val *polled(
	struct db_conn *conn, const struct world *w, const char *attempt, struct store_json *j)
{
	struct err err = { 0 };
	store_json_init(j);
	assert_ok(attempt_store_write_poll(conn, w->agent.id, &j->w, &err));
	const struct json_val *list = json_get(store_json_root(j), "attempts");
	for (size_t i = 0; i < json_array_len(list); i++) {
		const struct json_val *a = json_array_at(list, i);
		if (strcmp(json_str_or(json_get(a, "attempt_id"), ""), attempt) == 0)
			return a;
	}
	fail_msg("the poll does not list %s", attempt);
	return NULL;
}

static void the_attempt_gets_weights_and_nothing_else_of_it(void **state)
{
	struct db_conn *conn = ((struct store_fixture *)*state)->conn;
	struct err err = { 0 };
	struct world w;
	struct base b;
	struct yard_attempt y;
	struct store_json j;
	struct attempt_capability c;
	char id[400], job[IDENT_MAX], token[400], sha[65];
	make(conn, SPEC("bytes", "null"), &w);
	save(conn, &w, 40, "model.safetensors", id);
	assert_ok(base_store_hold(conn, w.tenant, id, &b, &err));
	derive(conn, &w, &b, job);
	yard_place(conn, job, w.agent.id, &y);
	const struct json_val *init = json_get(polled(conn, &w, y.id, &j), "init");
	assert_string_equal(json_str_or(json_get(init, "id"), ""), id);
	const struct json_val *files = json_get(init, "files");
	assert_int_equal(json_array_len(files), 2);
	assert_string_equal(json_str_or(json_get(json_array_at(files, 0), "name"), ""), "config.json");
	assert_string_equal(
		json_str_or(json_get(json_array_at(files, 1), "name"), ""), "model.safetensors");
	store_json_finish(&j);
	const struct json_val *inputs = json_get(polled(conn, &w, y.id, &j), "files");
	assert_int_equal(json_array_len(inputs), 2);
	assert_string_equal(json_str_or(json_get(json_array_at(inputs, 0), "role"), ""), "tokenizer");
	store_json_finish(&j);
	assert_null(json_get(polled(conn, &w, w.a.id, &j), "init"));
	store_json_finish(&j);

	/* The weights are served to it, which belong to another job. */
	snprintf(sha, sizeof(sha), "%064x", 40 * 16);
	yard_text(conn, "select token from attempts where id = $1", y.id, token);
	struct attempt_fence f = { y.id, y.epoch, y.agent };
	assert_ok(attempt_store_capability(conn, &f, token, sha, &c, &err));
	assert_true(c.serves);
}

static void the_attempt_gets_all_parts_of_ranks(void **state)
{
	struct db_conn *conn = ((struct store_fixture *)*state)->conn;
	struct err err = { 0 };
	struct world w;
	struct base b;
	struct yard_attempt y;
	struct store_json j;
	char id[400], job[IDENT_MAX];
	static const char *const wanted[] = { "config.json", "manifest.json",
		"shard-00001-of-00001.safetensors" };
	make(conn, SPEC("bytes", "null"), &w);
	save(conn, &w, 40, "shard-00001-of-00001.safetensors", id);
	assert_ok(base_store_hold(conn, w.tenant, id, &b, &err));
	derive(conn, &w, &b, job);
	yard_place(conn, job, w.agent.id, &y);
	const struct json_val *files = json_get(json_get(polled(conn, &w, y.id, &j), "init"), "files");
	assert_int_equal(json_array_len(files), ARRAY_LEN(wanted));
	for (size_t i = 0; i < ARRAY_LEN(wanted); i++)
		assert_string_equal(json_str_or(json_get(json_array_at(files, i), "name"), ""), wanted[i]);
	store_json_finish(&j);
}

static void a_resumed_attempt_needs_its_base_only_under_lora(void **state)
{
	struct db_conn *conn = ((struct store_fixture *)*state)->conn;
	struct err err = { 0 };
	for (int lora = 0; lora < 2; lora++) {
		struct world w;
		struct base b;
		struct store_json j;
		char id[400], job[IDENT_MAX];
		make(conn, SPEC("bytes", "null"), &w);
		yard_succeed(conn, w.tenant, &w.a);
		yard_text(conn, "select id from models where job_id = $1", w.job, id);
		assert_ok(base_store_hold(conn, w.tenant, id, &b, &err));
		derive(conn, &w, &b, job);
		assert_ok(db_exec(conn, NULL, &err,
			"update jobs set spec = spec || jsonb_build_object('lora', $2::jsonb) where id = $1",
			DB_TEXT(job), DB_TEXT(lora ? "{\"rank\":4}" : "null")));
		snprintf(w.job, IDENT_MAX, "%s", job);
		yard_place(conn, job, w.agent.id, &w.a);
		assert_non_null(json_get(polled(conn, &w, w.a.id, &j), "init"));
		store_json_finish(&j);
		yard_train(conn, &w.a);
		save(conn, &w, 10, "model.safetensors", id);
		yard_expire(conn, &w.a);
		yard_place(conn, job, w.agent.id, &w.a);
		const struct json_val *a = polled(conn, &w, w.a.id, &j);
		assert_non_null(json_get(a, "resume"));
		assert_true((json_get(a, "init") != NULL) == (lora == 1));
		store_json_finish(&j);
	}
}

/* MFU is a share of what the catalogue says of the job's precision. */
static void the_attempt_knows_its_devices_peak(void **state)
{
	static const struct {
		const char *type, *precision;
		double peak;
	} cases[] = {
		{ "h100-80gb", "\"bf16\"", 989.4e12 },
		{ "h100-80gb", "null", 66.9e12 },
		{ "h100-80gb", "\"tf32\"", 494.7e12 },
		{ "v100-32gb", "\"bf16\"", 0 },
		{ "cpu-dev", "\"fp32\"", 0 },
	};
	struct db_conn *conn = ((struct store_fixture *)*state)->conn;
	struct err err = { 0 };
	struct world w;
	make(conn, SPEC("bytes", "null"), &w);
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct store_json j;
		assert_ok(db_exec(conn, NULL, &err,
			"update jobs set instance_type = $2,"
			" spec = spec || jsonb_build_object('precision', $3::jsonb) where id = $1",
			DB_TEXT(w.job), DB_TEXT(cases[i].type), DB_TEXT(cases[i].precision)));
		const struct json_val *a = polled(conn, &w, w.a.id, &j);
		double peak = json_f64_or(json_get(a, "peak_flops"), -1);
		if (peak < cases[i].peak * 0.999 || peak > cases[i].peak * 1.001)
			fail_msg("%s %s: %g", cases[i].type, cases[i].precision, peak);
		store_json_finish(&j);
	}
}

static int count_removed(void *ctx, const char *tenant_id, const char *sha256, struct err *err)
{
	++*(int *)ctx;
	return 0;
}

static void a_base_is_kept_until_its_jobs_have_ended(void **state)
{
	struct db_conn *conn = ((struct store_fixture *)*state)->conn;
	struct err err = { 0 };
	struct world w;
	struct base b;
	struct job_cancelled done;
	char id[400], job[IDENT_MAX];
	int dropped = 0, removed = 0;
	make(conn, SPEC("bytes", "null"), &w);
	save(conn, &w, 10, "model.safetensors", id);
	assert_ok(base_store_hold(conn, w.tenant, id, &b, &err));
	derive(conn, &w, &b, job);
	save(conn, &w, 20, "model.safetensors", id);
	save(conn, &w, 30, "model.safetensors", id);
	assert_text(conn, w.job, "1",
		"select count(*)::text from checkpoints where job_id = $1 and trimmed_at is not null");
	assert_ok(checkpoint_store_drop(conn, count_removed, &removed, &dropped, &err));
	assert_int_equal(dropped, 0);
	assert_int_equal(removed, 0);
	/* Content that a later checkpoint shares with it stays as well. */
	bool gone = true;
	char sha[65];
	snprintf(sha, sizeof(sha), "%064x", 10 * 16);
	assert_ok(content_drop(conn, w.tenant, sha, &gone, &err));
	assert_false(gone);

	assert_ok(job_cancel(conn, w.tenant, job, &done, &err));
	assert_ok(checkpoint_store_drop(conn, count_removed, &removed, &dropped, &err));
	assert_int_equal(dropped, 1);
	assert_int_equal(removed, 6);
}

static void a_job_has_one_base_at_most(void **state)
{
	struct db_conn *conn = ((struct store_fixture *)*state)->conn;
	struct err err = { 0 };
	struct world w;
	char id[400], model[400];
	make(conn, SPEC("bytes", "null"), &w);
	save(conn, &w, 10, "model.safetensors", id);
	yard_succeed(conn, w.tenant, &w.a);
	yard_text(conn, "select id from models where job_id = $1", w.job, model);
	assert_true(db_exec(conn, NULL, &err,
					"update jobs set base_checkpoint_id = $2, base_model_id = $3 where id = $1",
					DB_TEXT(w.job), DB_TEXT(id), DB_TEXT(model)) < 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		store_test(a_checkpoint_and_a_model_say_what_they_are),
		store_test(what_others_have_is_not_found),
		store_test(adapters_alone_are_no_base),
		store_test(parts_of_ranks_are_a_base),
		store_test(a_trimmed_checkpoint_is_gone),
		store_test(the_attempt_gets_all_parts_of_ranks),
		store_test(the_attempt_gets_weights_and_nothing_else_of_it),
		store_test(a_resumed_attempt_needs_its_base_only_under_lora),
		store_test(the_attempt_knows_its_devices_peak),
		store_test(a_base_is_kept_until_its_jobs_have_ended),
		store_test(a_job_has_one_base_at_most),
	};
	return cmocka_run_group_tests(tests, store_group_setup, store_group_teardown);
}

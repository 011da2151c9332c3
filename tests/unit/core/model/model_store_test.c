/* SPDX-License-Identifier: Apache-2.0
 * Models and checkpoints as customers read them, on a real database. Run by with_pg.sh. */
#include "tests/unit/core/model/store_fixture.h"

#include "core/model/model_store.h"
#include "core/spec/preset.h"

static const char SHA256[] = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

static const char MODEL[] = "model_01ARZ3NDEKTSV4RRFFQ69G5FAV";

struct world {
	char tenant[IDENT_MAX], stranger[IDENT_MAX], file[IDENT_MAX], job[IDENT_MAX];
};

/* A job with an agent, an attempt, one checkpoint and a model. */
static void make(struct db_conn *conn, struct world *w)
{
	struct err err = { 0 };
	store_tenant(conn, "us", w->tenant);
	store_tenant(conn, "us", w->stranger);
	store_file(conn, w->tenant, 'a', w->file);
	store_job(conn, w->tenant, w->file, NULL, w->job);
	assert_ok(db_exec(conn, NULL, &err,
		"insert into api_keys (id, role, name, secret_hash, redacted, agent_region)"
		" values ('key_a', 'agent', 'a', '\\x00', '', 'us')"));
	assert_ok(db_exec(conn, NULL, &err,
		"insert into agents (id, key_id, name, region, instance_type, boot_id, engine_build)"
		" values ('agent_a', 'key_a', 'a', 'us', 'cpu-dev', 'b', '1')"));
	assert_ok(db_exec(conn, NULL, &err,
		"insert into attempts (id, job_id, tenant_id, number, agent_id, token, lease_until,"
		" status, stall_ms) values ('att_a', $1, $2, 1, 'agent_a', 't', yard_now(), 'training',"
		" 1)",
		DB_TEXT(w->job), DB_TEXT(w->tenant)));
	assert_ok(db_exec(conn, NULL, &err,
		"insert into checkpoints (id, job_id, tenant_id, attempt_id, step, bytes, residency)"
		" values ('ckpt_01ARZ3NDEKTSV4RRFFQ69G5FAV', $1, $2, 'att_a', 40, 9, '{us}')",
		DB_TEXT(w->job), DB_TEXT(w->tenant)));
	assert_ok(db_exec(conn, NULL, &err,
		"insert into checkpoint_files values"
		" ('ckpt_01ARZ3NDEKTSV4RRFFQ69G5FAV', 'weights.safetensors', $1, 9)",
		DB_TEXT(SHA256)));
	assert_ok(db_exec(conn, NULL, &err,
		"insert into models (id, job_id, tenant_id, bytes, residency)"
		" values ('model_01ARZ3NDEKTSV4RRFFQ69G5FAV', $1, $2, 9, '{us}')",
		DB_TEXT(w->job), DB_TEXT(w->tenant)));
	assert_ok(db_exec(conn, NULL, &err,
		"insert into model_files values"
		" ('model_01ARZ3NDEKTSV4RRFFQ69G5FAV', 'model.safetensors', $1, 9)",
		DB_TEXT(SHA256)));
}

static void model_and_its_files(void **state)
{
	struct store_fixture *fx = *state;
	struct err err = { 0 };
	struct world w;
	make(fx->conn, &w);
	struct store_json j;
	store_json_init(&j);
	assert_ok(model_store_write(fx->conn, w.tenant, MODEL, &j.w, &err));
	const struct json_val *model = store_json_root(&j);
	assert_string_equal(json_str_or(json_get(model, "object"), ""), "model");
	assert_string_equal(json_str_or(json_get(model, "job_id"), ""), w.job);
	store_json_finish(&j);
	store_json_init(&j);
	assert_ok(model_store_list_files(fx->conn, w.tenant, MODEL, &j.w, &err));
	const struct json_val *file = json_array_at(json_get(store_json_root(&j), "data"), 0);
	assert_string_equal(json_str_or(json_get(file, "sha256"), ""), SHA256);
	store_json_finish(&j);
	struct model_file found;
	assert_ok(model_store_file(fx->conn, w.tenant, MODEL, "model.safetensors", &found, &err));
	assert_string_equal(found.sha256, SHA256);
	assert_int_equal(found.bytes, 9);
}

static void strangers_find_nothing(void **state)
{
	struct store_fixture *fx = *state;
	struct err err = { 0 };
	struct world w;
	make(fx->conn, &w);
	struct store_json j;
	struct model_file found;
	struct page page = { .limit = 5 };
	store_json_init(&j);
	assert_int_equal(model_store_write(fx->conn, w.stranger, MODEL, &j.w, &err), ERR_NOT_FOUND);
	assert_int_equal(
		model_store_list_files(fx->conn, w.stranger, MODEL, &j.w, &err), ERR_NOT_FOUND);
	assert_int_equal(
		model_store_file(fx->conn, w.stranger, MODEL, "model.safetensors", &found, &err),
		ERR_NOT_FOUND);
	assert_int_equal(
		model_store_file(fx->conn, w.tenant, MODEL, "other", &found, &err), ERR_NOT_FOUND);
	assert_int_equal(model_store_list_checkpoints(fx->conn, w.stranger, w.job, &page, &j.w, &err),
		ERR_NOT_FOUND);
	store_json_finish(&j);
}

static void checkpoints_with_their_files(void **state)
{
	struct store_fixture *fx = *state;
	struct err err = { 0 };
	struct world w;
	make(fx->conn, &w);
	struct page page = { .limit = 5 };
	struct store_json j;
	store_json_init(&j);
	assert_ok(model_store_list_checkpoints(fx->conn, w.tenant, w.job, &page, &j.w, &err));
	const struct json_val *data = json_get(store_json_root(&j), "data");
	assert_int_equal(json_array_len(data), 1);
	const struct json_val *c = json_array_at(data, 0);
	assert_int_equal(json_i64_or(json_get(c, "step"), 0), 40);
	assert_int_equal(json_array_len(json_get(c, "files")), 1);
	assert_false(json_bool_or(json_get(c, "trimmed"), true));
	store_json_finish(&j);
}

/* Ids of a page, separated by spaces. */
static void list_ids(struct db_conn *conn, const char *tenant, const struct page *page,
	const char *after_preset, char *ret, size_t max)
{
	struct err err = { 0 };
	struct store_json j;
	store_json_init(&j);
	assert_ok(model_store_list(
		conn, tenant, page, after_preset ? preset_find(after_preset) : NULL, &j.w, &err));
	const struct json_val *list = store_json_root(&j);
	const struct json_val *data = json_get(list, "data");
	ret[0] = '\0';
	for (size_t i = 0; i < json_array_len(data); i++) {
		size_t n = strlen(ret);
		snprintf(ret + n, max - n, "%s ", json_str_or(json_get(json_array_at(data, i), "id"), ""));
	}
	size_t n = strlen(ret);
	snprintf(ret + n, max - n, "%s-%s%s", json_str_or(json_get(list, "first_id"), "null"),
		json_str_or(json_get(list, "last_id"), "null"),
		json_bool_or(json_get(list, "has_more"), false) ? "+" : "");
	store_json_finish(&j);
}

static void presets_follow_the_finished(void **state)
{
	struct store_fixture *fx = *state;
	struct world w;
	make(fx->conn, &w);
	size_t count;
	const struct preset *all = preset_all(&count);
	char text[1024], expected[1024];
	struct page page = { .limit = 2 };
	list_ids(fx->conn, w.tenant, &page, NULL, text, sizeof(text));
	snprintf(expected, sizeof(expected), "%s %s %s-%s+", MODEL, all[0].name, MODEL, all[0].name);
	assert_string_equal(text, expected);
	list_ids(fx->conn, w.tenant, &page, all[0].name, text, sizeof(text));
	snprintf(expected, sizeof(expected), "%s %s %s-%s%s", all[1].name, all[2].name, all[1].name,
		all[2].name, count > 3 ? "+" : "");
	assert_string_equal(text, expected);
	list_ids(fx->conn, w.tenant, &page, all[count - 1].name, text, sizeof(text));
	assert_string_equal(text, "null-null");
	/* Of another tenant's models nothing is seen, and a full page waits with the presets. */
	list_ids(fx->conn, w.stranger, &page, NULL, text, sizeof(text));
	snprintf(expected, sizeof(expected), "%s %s %s-%s+", all[0].name, all[1].name, all[0].name,
		all[1].name);
	assert_string_equal(text, expected);
	page.limit = 1;
	list_ids(fx->conn, w.tenant, &page, NULL, text, sizeof(text));
	snprintf(expected, sizeof(expected), "%s %s-%s+", MODEL, MODEL, MODEL);
	assert_string_equal(text, expected);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		store_test(model_and_its_files),
		store_test(strangers_find_nothing),
		store_test(checkpoints_with_their_files),
		store_test(presets_follow_the_finished),
	};
	return cmocka_run_group_tests_name(
		"core/model/model_store", tests, store_group_setup, store_group_teardown);
}

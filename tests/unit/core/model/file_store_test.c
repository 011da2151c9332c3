/* SPDX-License-Identifier: Apache-2.0
 * Files and their content on a real database. Run by with_pg.sh. */
#include "tests/unit/core/model/store_fixture.h"

static void is_the_tenants_own(void **state)
{
	struct store_fixture *fx = *state;
	struct err err = { 0 };
	char tenant[IDENT_MAX], stranger[IDENT_MAX], id[IDENT_MAX];
	struct file file;
	store_tenant(fx->conn, "us", tenant);
	store_tenant(fx->conn, "us", stranger);
	store_file(fx->conn, tenant, 'a', id);
	assert_ok(file_store_get(fx->conn, tenant, id, &file, &err));
	assert_string_equal(file.filename, "bible.txt");
	assert_int_equal(file.bytes, 7);
	assert_true(file.processed);
	assert_string_equal(file.residency.region[0], "us");
	assert_int_equal(file_store_get(fx->conn, stranger, id, &file, &err), ERR_NOT_FOUND);
	assert_int_equal(file_store_hold(fx->conn, stranger, id, &file, &err), ERR_NOT_FOUND);
	assert_int_equal(file_store_delete(fx->conn, stranger, id, &err), ERR_NOT_FOUND);
	struct store_json j;
	store_json_init(&j);
	assert_ok(file_store_write(fx->conn, tenant, id, &j.w, &err));
	const struct json_val *f = store_json_root(&j);
	assert_string_equal(json_str_or(json_get(f, "object"), ""), "file");
	assert_string_equal(json_str_or(json_get(f, "status"), ""), "processed");
	assert_true(json_i64_or(json_get(f, "created_at"), 0) > 1700000000);
	store_json_finish(&j);
}

static void used_by_a_live_job_stays(void **state)
{
	struct store_fixture *fx = *state;
	struct err err = { 0 };
	char tenant[IDENT_MAX], id[IDENT_MAX], job[IDENT_MAX];
	struct file file;
	store_tenant(fx->conn, "us", tenant);
	store_file(fx->conn, tenant, 'a', id);
	store_job(fx->conn, tenant, id, NULL, job);
	assert_int_equal(file_store_delete(fx->conn, tenant, id, &err), ERR_CONFLICT);
	assert_non_null(strstr(err.message, job));
	assert_ok(db_exec(
		fx->conn, NULL, &err, "update jobs set status = 'failed' where id = $1", DB_TEXT(job)));
	assert_ok(file_store_delete(fx->conn, tenant, id, &err));
	assert_int_equal(file_store_get(fx->conn, tenant, id, &file, &err), ERR_NOT_FOUND);
	assert_int_equal(file_store_delete(fx->conn, tenant, id, &err), ERR_NOT_FOUND);
}

static void list_filters_by_purpose(void **state)
{
	struct store_fixture *fx = *state;
	struct err err = { 0 };
	char tenant[IDENT_MAX], id[IDENT_MAX];
	store_tenant(fx->conn, "us", tenant);
	store_file(fx->conn, tenant, 'a', id);
	struct page page = { .limit = 10 };
	static const struct {
		const char *purpose;
		size_t count;
	} cases[] = { { NULL, 1 }, { "fine-tune", 1 }, { "other", 0 } };
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct store_json j;
		store_json_init(&j);
		assert_ok(file_store_list(fx->conn, tenant, cases[i].purpose, &page, &j.w, &err));
		const struct json_val *list = store_json_root(&j);
		assert_int_equal(json_array_len(json_get(list, "data")), cases[i].count);
		store_json_finish(&j);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		store_test(is_the_tenants_own),
		store_test(used_by_a_live_job_stays),
		store_test(list_filters_by_purpose),
	};
	return cmocka_run_group_tests_name(
		"core/model/file_store", tests, store_group_setup, store_group_teardown);
}

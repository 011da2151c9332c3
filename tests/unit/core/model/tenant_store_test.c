/* SPDX-License-Identifier: Apache-2.0
 * Tenants and pages on a real database. Run by with_pg.sh. */
#include "tests/unit/core/model/store_fixture.h"

static void writes_what_was_inserted(void **state)
{
	struct store_fixture *fx = *state;
	struct err err = { 0 };
	char id[IDENT_MAX];
	store_tenant(fx->conn, "us-east", id);
	struct store_json j;
	store_json_init(&j);
	assert_ok(tenant_store_write(fx->conn, id, &j.w, &err));
	const struct json_val *t = store_json_root(&j);
	assert_string_equal(json_str_or(json_get(t, "id"), ""), id);
	assert_string_equal(json_str_or(json_get(t, "object"), ""), "tenant");
	assert_string_equal(json_str_or(json_array_at(json_get(t, "residency"), 0), ""), "us-east");
	int64_t at = 0;
	assert_int_equal(clock_parse_rfc3339(json_str_or(json_get(t, "created_at"), ""), &at), 0);
	store_json_finish(&j);

	struct residency_set set;
	assert_ok(tenant_store_residency(fx->conn, id, &set, &err));
	assert_int_equal(set.count, 1);
	assert_string_equal(set.region[0], "us-east");
}

static void unknown_is_not_found(void **state)
{
	struct store_fixture *fx = *state;
	struct err err = { 0 };
	struct store_json j;
	store_json_init(&j);
	assert_int_equal(tenant_store_write(fx->conn, "tenant_none", &j.w, &err), ERR_NOT_FOUND);
	store_json_finish(&j);
}

/* Ids of one page, one character each, by their position in ids. */
static void page_ids(struct db_conn *conn, const struct page *page, char ids[][IDENT_MAX],
	int count, char *ret, bool *ret_more)
{
	struct err err = { 0 };
	struct store_json j;
	store_json_init(&j);
	assert_ok(tenant_store_list(conn, page, &j.w, &err));
	const struct json_val *list = store_json_root(&j);
	const struct json_val *data = json_get(list, "data");
	size_t n = json_array_len(data);
	for (size_t i = 0; i < n; i++)
		for (int k = 0; k < count; k++)
			if (strcmp(json_str_or(json_get(json_array_at(data, i), "id"), ""), ids[k]) == 0)
				ret[i] = (char)('0' + k);
	ret[n] = '\0';
	*ret_more = json_bool_or(json_get(list, "has_more"), false);
	if (n > 0)
		assert_string_equal(json_str_or(json_get(list, "last_id"), ""),
			json_str_or(json_get(json_array_at(data, n - 1), "id"), "-"));
	store_json_finish(&j);
}

static void pages_neither_repeat_nor_skip(void **state)
{
	struct store_fixture *fx = *state;
	enum { COUNT = 5 };
	char ids[COUNT + 1][IDENT_MAX], seen[8];
	/* Ids of their own milliseconds, so that their order is known. */
	struct clock_manual clock;
	clock_manual_init(&clock, 1700000000000000);
	struct err err = { 0 };
	struct residency_set set = { 0 };
	assert_ok(residency_set_add(&set, "any", &err));
	for (int i = 0; i < COUNT; i++, clock_manual_advance(&clock, 1000)) {
		ident_new(&clock.base, "tenant", ids[i]);
		assert_ok(tenant_store_insert(fx->conn, ids[i], "Acme", &set, &err));
	}
	bool more = false;
	struct page page = { .limit = 2 };
	page_ids(fx->conn, &page, ids, COUNT, seen, &more);
	assert_string_equal(seen, "43");
	assert_true(more);
	/* A newer one arrives between two pages: the next page is not moved by it. */
	ident_new(&clock.base, "tenant", ids[COUNT]);
	assert_ok(tenant_store_insert(fx->conn, ids[COUNT], "Acme", &set, &err));
	snprintf(page.after, sizeof(page.after), "%s", ids[3]);
	page_ids(fx->conn, &page, ids, COUNT + 1, seen, &more);
	assert_string_equal(seen, "21");
	assert_true(more);
	snprintf(page.after, sizeof(page.after), "%s", ids[1]);
	page_ids(fx->conn, &page, ids, COUNT + 1, seen, &more);
	assert_string_equal(seen, "0");
	assert_false(more);
	page.after[0] = '\0';
	snprintf(page.before, sizeof(page.before), "%s", ids[1]);
	page_ids(fx->conn, &page, ids, COUNT + 1, seen, &more);
	assert_string_equal(seen, "32");
	assert_true(more);
	snprintf(page.before, sizeof(page.before), "%s", ids[3]);
	page_ids(fx->conn, &page, ids, COUNT + 1, seen, &more);
	assert_string_equal(seen, "54");
	assert_false(more);
	snprintf(page.after, sizeof(page.after), "%s", ids[4]);
	snprintf(page.before, sizeof(page.before), "%s", ids[1]);
	page_ids(fx->conn, &page, ids, COUNT + 1, seen, &more);
	assert_string_equal(seen, "32");
	assert_false(more);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		store_test(writes_what_was_inserted),
		store_test(unknown_is_not_found),
		store_test(pages_neither_repeat_nor_skip),
	};
	return cmocka_run_group_tests_name(
		"core/model/tenant_store", tests, store_group_setup, store_group_teardown);
}

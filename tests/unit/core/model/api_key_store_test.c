/* SPDX-License-Identifier: Apache-2.0
 * API keys on a real database. Run by with_pg.sh. */
#include "tests/unit/core/model/store_fixture.h"

#include "core/model/api_key_store.h"

static const unsigned char HASH[API_KEY_HASH_BYTES] = { 0, 255, 'a', '\'', 0, 7 };

static void insert(struct db_conn *conn, const char *tenant, struct api_key *key)
{
	struct err err = { 0 };
	*key = (struct api_key){ .role = API_KEY_OWNER, .name = "laptop", .redacted = "ty_…abcd" };
	ident_new(clock_system(), "key", key->id);
	snprintf(key->tenant_id, sizeof(key->tenant_id), "%s", tenant);
	assert_ok(api_key_store_insert(conn, key, HASH, &err));
}

static void found_by_its_hash_only(void **state)
{
	struct store_fixture *fx = *state;
	struct err err = { 0 };
	char tenant[IDENT_MAX];
	struct api_key key, found;
	store_tenant(fx->conn, "us", tenant);
	insert(fx->conn, tenant, &key);
	assert_ok(api_key_store_find_by_hash(fx->conn, HASH, &found, &err));
	assert_string_equal(found.id, key.id);
	assert_string_equal(found.tenant_id, tenant);
	assert_int_equal(found.role, API_KEY_OWNER);
	assert_true(found.tenant_active);
	assert_false(found.revoked);
	unsigned char other[API_KEY_HASH_BYTES];
	memcpy(other, HASH, sizeof(other));
	other[31] ^= 1;
	assert_int_equal(api_key_store_find_by_hash(fx->conn, other, &found, &err), ERR_NOT_FOUND);
}

static void revoked_is_said(void **state)
{
	struct store_fixture *fx = *state;
	struct err err = { 0 };
	char tenant[IDENT_MAX], stranger[IDENT_MAX];
	struct api_key key, found;
	store_tenant(fx->conn, "us", tenant);
	store_tenant(fx->conn, "us", stranger);
	insert(fx->conn, tenant, &key);
	assert_int_equal(api_key_store_revoke(fx->conn, stranger, key.id, &err), ERR_NOT_FOUND);
	assert_ok(api_key_store_revoke(fx->conn, tenant, key.id, &err));
	assert_ok(api_key_store_revoke(fx->conn, tenant, key.id, &err));
	assert_ok(api_key_store_find_by_hash(fx->conn, HASH, &found, &err));
	assert_true(found.revoked);
}

static void suspended_tenant_is_said(void **state)
{
	struct store_fixture *fx = *state;
	struct err err = { 0 };
	char tenant[IDENT_MAX];
	struct api_key key, found;
	store_tenant(fx->conn, "us", tenant);
	insert(fx->conn, tenant, &key);
	assert_ok(db_exec(fx->conn, NULL, &err, "update tenants set status = 'suspended' where id = $1",
		DB_TEXT(tenant)));
	assert_ok(api_key_store_find_by_hash(fx->conn, HASH, &found, &err));
	assert_false(found.tenant_active);
}

static void tenant_must_exist(void **state)
{
	struct store_fixture *fx = *state;
	struct err err = { 0 };
	struct api_key key = { .role = API_KEY_MEMBER,
		.id = "key_1",
		.tenant_id = "tenant_none",
		.name = "x",
		.redacted = "ty_…abcd" };
	assert_int_equal(api_key_store_insert(fx->conn, &key, HASH, &err), ERR_NOT_FOUND);
}

static void secret_is_shown_only_when_given(void **state)
{
	struct store_fixture *fx = *state;
	struct err err = { 0 };
	char tenant[IDENT_MAX];
	struct api_key key;
	store_tenant(fx->conn, "us", tenant);
	insert(fx->conn, tenant, &key);
	struct store_json one, list;
	store_json_init(&one);
	assert_ok(api_key_store_write(fx->conn, key.id, "ty_secret", &one.w, &err));
	assert_string_equal(json_str_or(json_get(store_json_root(&one), "key"), ""), "ty_secret");
	store_json_finish(&one);
	store_json_init(&list);
	struct page page = { .limit = 10 };
	assert_ok(api_key_store_list(fx->conn, tenant, &page, &list.w, &err));
	const struct json_val *data = json_get(store_json_root(&list), "data");
	assert_int_equal(json_array_len(data), 1);
	assert_null(json_get(json_array_at(data, 0), "key"));
	assert_string_equal(
		json_str_or(json_get(json_array_at(data, 0), "redacted_value"), ""), "ty_…abcd");
	store_json_finish(&list);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		store_test(found_by_its_hash_only),
		store_test(revoked_is_said),
		store_test(suspended_tenant_is_said),
		store_test(tenant_must_exist),
		store_test(secret_is_shown_only_when_given),
	};
	return cmocka_run_group_tests_name(
		"core/model/api_key_store", tests, store_group_setup, store_group_teardown);
}

/* SPDX-License-Identifier: Apache-2.0
 * When stored content may go, on a real database. Run by with_pg.sh. */
#include "tests/unit/core/model/store_fixture.h"

#include "core/model/content.h"

static void content_goes_with_its_last_file(void **state)
{
	struct store_fixture *fx = *state;
	struct err err = { 0 };
	char tenant[IDENT_MAX], stranger[IDENT_MAX], first[IDENT_MAX], second[IDENT_MAX],
		foreign[IDENT_MAX];
	char sha256[DIGEST_HEX_MAX] = "";
	memset(sha256, 'b', sizeof(sha256) - 1);
	store_tenant(fx->conn, "us", tenant);
	store_tenant(fx->conn, "us", stranger);
	store_file(fx->conn, tenant, 'b', first);
	store_file(fx->conn, tenant, 'b', second);
	store_file(fx->conn, stranger, 'b', foreign);
	bool unused = true;
	assert_ok(content_lock(fx->conn, tenant, sha256, &err));
	assert_ok(file_store_delete(fx->conn, tenant, first, &err));
	assert_ok(content_drop(fx->conn, tenant, sha256, &unused, &err));
	assert_false(unused);
	assert_ok(file_store_delete(fx->conn, tenant, second, &err));
	assert_ok(content_drop(fx->conn, tenant, sha256, &unused, &err));
	assert_true(unused);
	assert_ok(content_drop(fx->conn, stranger, sha256, &unused, &err));
	assert_false(unused);
}

static void content_just_stored_again_stays(void **state)
{
	struct store_fixture *fx = *state;
	struct err err = { 0 };
	char tenant[IDENT_MAX], id[IDENT_MAX];
	char sha256[DIGEST_HEX_MAX] = "";
	memset(sha256, 'c', sizeof(sha256) - 1);
	store_tenant(fx->conn, "us", tenant);
	store_file(fx->conn, tenant, 'c', id);
	/* A trainer's checkpoint has the same bytes: uploaded, not yet reported. */
	bool is_new = true, dropped = true;
	assert_ok(content_touch(fx->conn, tenant, sha256, 7, &is_new, &err));
	assert_false(is_new);
	assert_ok(file_store_delete(fx->conn, tenant, id, &err));
	assert_ok(content_drop(fx->conn, tenant, sha256, &dropped, &err));
	assert_false(dropped);
	assert_ok(db_exec(fx->conn, NULL, &err,
		"update blobs set reused_at = reused_at - interval '1 hour' where tenant_id = $1",
		DB_TEXT(tenant)));
	assert_ok(content_drop(fx->conn, tenant, sha256, &dropped, &err));
	assert_true(dropped);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		store_test(content_goes_with_its_last_file),
		store_test(content_just_stored_again_stays),
	};
	return cmocka_run_group_tests_name(
		"core/model/content", tests, store_group_setup, store_group_teardown);
}

/* SPDX-License-Identifier: Apache-2.0
 * Machines and their devices: registering, withdrawing, silence, on a real database. Run by
 * with_pg.sh. */
#include "tests/unit/core/model/yard_fixture.h"

#define IN_SERVICE_SQL                                                            \
	"select coalesce(string_agg(id, ' ' order by device_index), '') from devices" \
	" where agent_id = $1 and deregistered_at is null"

static void registering_again_changes_nothing(void **state)
{
	struct db_conn *conn = ((struct store_fixture *)*state)->conn;
	struct err err = { 0 };
	struct yard_agent g;
	yard_agent(conn, "us-east-1", 2, &g);
	struct yard_agent again = g;
	memset(again.id, 0, sizeof(again.id));
	assert_ok(yard_register(conn, &again, "us-east-1", &err));
	assert_string_equal(again.id, g.id);
	for (int i = 0; i < 2; i++)
		assert_string_equal(again.devices[i].id, g.devices[i].id);
	assert_text(conn, g.id, "0", "select count(*)::text from segments where $1 <> ''");
}

static void the_credential_decides_the_region(void **state)
{
	struct db_conn *conn = ((struct store_fixture *)*state)->conn;
	static const struct {
		const char *key, *says;
	} cases[] = { { "us-east-1", "us-east" }, { "us-east-1", "eu-west-1" }, { "mars", "mars" },
		{ "us-east-1", "" } };
	char key[IDENT_MAX], id[IDENT_MAX];
	yard_key(conn, "us-east-1", key);
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct err err = { 0 };
		struct agent_machine m = { .key_id = key,
			.key_region = cases[i].key,
			.region = cases[i].says,
			.name = "a",
			.instance_type = "cpu-dev",
			.boot_id = "b",
			.engine_build = "c" };
		assert_int_equal(agent_store_register(conn, &m, id, &err), ERR_RESIDENCY);
		assert_string_equal(err.param, "$.region");
	}
	struct err err = { 0 };
	struct agent_machine m = { .key_id = key,
		.key_region = "us-east-1",
		.region = "us-east-1",
		.name = "a",
		.instance_type = "abacus",
		.boot_id = "b",
		.engine_build = "c" };
	assert_int_equal(agent_store_register(conn, &m, id, &err), ERR_INVALID_VALUE);
	assert_string_equal(err.param, "$.instance_type");
}

static void devices_leave_when_they_are_free(void **state)
{
	struct db_conn *conn = ((struct store_fixture *)*state)->conn;
	struct err err = { 0 };
	char tenant[IDENT_MAX], file[IDENT_MAX], job[IDENT_MAX];
	struct yard_agent g;
	struct yard_attempt a;
	store_tenant(conn, "us", tenant);
	store_file(conn, tenant, 'a', file);
	yard_agent(conn, "us-east-1", 2, &g);
	yard_job(conn, tenant, file, 1, job);
	yard_place(conn, job, g.id, &a); /* takes index 0 */
	char first[IDENT_MAX], second[IDENT_MAX];
	snprintf(first, sizeof(first), "%s", g.devices[0].id);
	snprintf(second, sizeof(second), "%s", g.devices[1].id);
	g.count = 0;
	assert_ok(yard_register(conn, &g, "us-east-1", &err));
	assert_text(conn, g.id, first, IN_SERVICE_SQL);
	yard_expire(conn, &a);
	assert_text(conn, g.id, "", IN_SERVICE_SQL);
	/* Back again: a new device, so that neither tiling has a gap. */
	g.count = 1;
	assert_ok(yard_register(conn, &g, "us-east-1", &err));
	assert_string_not_equal(g.devices[0].id, first);
	assert_text(conn, g.id, g.devices[0].id, IN_SERVICE_SQL);
	yard_check_tiling(conn);
}

static void a_busy_device_that_changed_is_replaced_later(void **state)
{
	struct db_conn *conn = ((struct store_fixture *)*state)->conn;
	struct err err = { 0 };
	char tenant[IDENT_MAX], file[IDENT_MAX], job[IDENT_MAX], old[IDENT_MAX];
	struct yard_agent g;
	struct yard_attempt a;
	store_tenant(conn, "us", tenant);
	store_file(conn, tenant, 'a', file);
	yard_agent(conn, "us-east-1", 1, &g);
	snprintf(old, sizeof(old), "%s", g.devices[0].id);
	yard_job(conn, tenant, file, 1, job);
	yard_place(conn, job, g.id, &a);
	g.devices[0].memory_bytes *= 2;
	assert_ok(yard_register(conn, &g, "us-east-1", &err));
	assert_string_equal(g.devices[0].id, "");
	assert_text(conn, g.id, old, IN_SERVICE_SQL);
	yard_expire(conn, &a);
	assert_ok(yard_register(conn, &g, "us-east-1", &err));
	assert_text(conn, g.id, g.devices[0].id, IN_SERVICE_SQL);
	assert_string_not_equal(g.devices[0].id, old);
	yard_check_tiling(conn);
}

static void silence_is_noticed_and_forgiven(void **state)
{
	struct db_conn *conn = ((struct store_fixture *)*state)->conn;
	struct err err = { 0 };
	struct yard_agent g;
	int lost = 0;
	int64_t version = 0;
	yard_agent(conn, "us-east-1", 1, &g);
	assert_ok(agent_store_mark_lost(conn, &lost, &err));
	assert_int_equal(lost, 0);
	assert_ok(db_exec(conn, NULL, &err,
		"update agents set last_seen_at = last_seen_at - interval '36 s' where id = $1",
		DB_TEXT(g.id)));
	assert_ok(agent_store_mark_lost(conn, &lost, &err));
	assert_int_equal(lost, 1);
	assert_int_equal(agent_store_seen(conn, "key_other", g.id, &version, &err), ERR_NOT_FOUND);
	assert_ok(agent_store_seen(conn, g.key, g.id, &version, &err));
	assert_int_equal(version, 1);
	assert_text(conn, g.id, "ready", "select status from agents where id = $1");
	char id[IDENT_MAX];
	assert_ok(agent_store_find(conn, g.key, id, &err));
	assert_string_equal(id, g.id);
	assert_int_equal(agent_store_find(conn, "key_other", id, &err), ERR_NOT_FOUND);
}

/* Whoever has an attempt beats: its silence is noticed with the end of the lease. */
static void a_silent_holder_is_lost_with_its_lease(void **state)
{
	struct db_conn *conn = ((struct store_fixture *)*state)->conn;
	struct err err = { 0 };
	struct yard_agent g;
	struct yard_attempt y;
	char tenant[IDENT_MAX], file[IDENT_MAX], job[IDENT_MAX];
	int lost = -1;
	store_tenant(conn, "us", tenant);
	store_file(conn, tenant, 'a', file);
	yard_agent(conn, "us-east-1", 1, &g);
	yard_job(conn, tenant, file, 1, job);
	yard_place(conn, job, g.id, &y);
	assert_ok(db_exec(conn, NULL, &err,
		"update agents set last_seen_at = last_seen_at - interval '22 s' where id = $1",
		DB_TEXT(g.id)));
	assert_ok(agent_store_mark_lost(conn, &lost, &err));
	assert_int_equal(lost, 0);
	assert_ok(db_exec(conn, NULL, &err,
		"update attempts set lease_until = yard_now() - interval '1 ms' where id = $1",
		DB_TEXT(y.id)));
	assert_ok(agent_store_mark_lost(conn, &lost, &err));
	assert_int_equal(lost, 1);
	assert_text(conn, g.id, "lost", "select status from agents where id = $1");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		store_test(registering_again_changes_nothing),
		store_test(the_credential_decides_the_region),
		store_test(devices_leave_when_they_are_free),
		store_test(a_busy_device_that_changed_is_replaced_later),
		store_test(silence_is_noticed_and_forgiven),
		store_test(a_silent_holder_is_lost_with_its_lease),
	};
	return cmocka_run_group_tests(tests, store_group_setup, store_group_teardown);
}

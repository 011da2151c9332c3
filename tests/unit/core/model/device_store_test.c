/* SPDX-License-Identifier: Apache-2.0
 * Devices that must not be used, on a real database: nothing is placed on them until an operator
 * returns them. Run by with_pg.sh. */
#include "tests/unit/core/model/yard_fixture.h"

#include "core/model/job_queue.h"

static const char reason[] = "Xid 79: the GPU has fallen off the bus";

struct two {
	struct db_conn *conn;
	char tenant[IDENT_MAX], file[IDENT_MAX];
	struct yard_agent g;
};

/* A machine with two GPUs. */
static struct two make(void **state)
{
	struct err err = { 0 };
	struct two t = { .conn = ((struct store_fixture *)*state)->conn, .g = { .count = 2 } };
	store_tenant(t.conn, "us", t.tenant);
	store_file(t.conn, t.tenant, 'a', t.file);
	yard_key(t.conn, "us-east-1", t.g.key);
	for (int i = 0; i < 2; i++)
		t.g.devices[i] = (struct device_listed){ .index = i,
			.name = "NVIDIA H200",
			.uuid = i == 0 ? "GPU-aaaa" : "GPU-bbbb",
			.memory_bytes = 1 << 30 };
	assert_ok(yard_register(t.conn, &t.g, "us-east-1", &err));
	return t;
}

static void queue(struct two *t, int devices, char ret_job[static IDENT_MAX])
{
	yard_job(t->conn, t->tenant, t->file, devices, ret_job);
}

static bool cordon(struct two *t, int64_t index, const char *uuid)
{
	struct err err = { 0 };
	bool is_new = false;
	assert_ok(device_store_cordon(t->conn, t->g.id, index, uuid, reason, &is_new, &err));
	return is_new;
}

static void nothing_is_placed_on_a_cordoned_device(void **state)
{
	struct two t = make(state);
	struct err err = { 0 };
	struct attempt_placed placed;
	struct yard_attempt a;
	static struct job_queue_agent agents[JOB_QUEUE_AGENTS_MAX];
	char first[IDENT_MAX], second[IDENT_MAX];
	int count = 0;
	bool was = false;
	assert_false(cordon(&t, 0, "GPU-bbbb")); /* no such device: another number than it had */
	assert_true(cordon(&t, 0, "GPU-aaaa"));
	assert_false(cordon(&t, 0, "GPU-aaaa"));
	assert_ok(job_queue_agents(t.conn, agents, &count, &err));
	for (int i = 0; i < count; i++)
		if (strcmp(agents[i].id, t.g.id) == 0)
			assert_int_equal(agents[i].total * 10 + agents[i].idle, 11);
	queue(&t, 1, first);
	queue(&t, 1, second);
	yard_place(t.conn, first, t.g.id, &a);
	assert_text(t.conn, a.id, "1",
		"select string_agg(device_index::text, ' ') from attempt_devices ad join devices d"
		" on d.id = ad.device_id where attempt_id = $1");
	assert_ok(db_exec(t.conn, NULL, &err, "savepoint before"));
	assert_int_equal(attempt_store_place(t.conn, second, t.g.id, &placed, &err), ERR_DB_CONFLICT);
	assert_ok(db_exec(t.conn, NULL, &err, "rollback to before"));
	assert_ok(device_store_return(t.conn, t.g.devices[0].id, &was, &err));
	assert_true(was);
	assert_ok(device_store_return(t.conn, t.g.devices[0].id, &was, &err));
	assert_false(was);
	yard_place(t.conn, second, t.g.id, &a);
	assert_text(t.conn, t.g.devices[0].id, "cordoned returned",
		"select string_agg(kind, ' ' order by id) from device_events where device_id = $1");
	assert_int_equal(
		device_store_return(t.conn, "dev_01ARZ3NDEKTSV4RRFFQ69G5FAV", &was, &err), ERR_NOT_FOUND);
}

/* After a restart its GPUs may have other numbers, or one of them may have been away. */
static void a_cordon_follows_the_gpu(void **state)
{
	struct two t = make(state);
	struct err err = { 0 };
	assert_true(cordon(&t, 1, "GPU-bbbb"));
	t.g.devices[0].uuid = "GPU-bbbb";
	t.g.devices[1].uuid = "GPU-cccc";
	assert_ok(yard_register(t.conn, &t.g, "us-east-1", &err));
	assert_text(
		t.conn, t.g.devices[0].id, reason, "select cordon_reason from devices where id = $1");
	assert_text(t.conn, t.g.devices[1].id, "", "select cordon_reason from devices where id = $1");
	t.g.count = 0;
	assert_ok(yard_register(t.conn, &t.g, "us-east-1", &err));
	t.g.count = 1;
	assert_ok(yard_register(t.conn, &t.g, "us-east-1", &err));
	assert_text(
		t.conn, t.g.devices[0].id, reason, "select cordon_reason from devices where id = $1");
	yard_check_tiling(t.conn);
}

static void what_its_machine_does_not_know_is_doomed(void **state)
{
	struct two t = make(state);
	struct err err = { 0 };
	struct yard_attempt a, b;
	char first[IDENT_MAX], second[IDENT_MAX], has[IDENT_MAX + 3];
	queue(&t, 1, first);
	queue(&t, 1, second);
	yard_place(t.conn, first, t.g.id, &a);
	yard_place(t.conn, second, t.g.id, &b);
	assert_true(cordon(&t, 0, "GPU-aaaa"));
	cleanup(db_result_freep) struct db_result *r = NULL, *none = NULL;
	assert_ok(device_store_doomed(t.conn, t.g.id, "{}", &r, &err));
	assert_int_equal(db_rows(r), 1);
	assert_string_equal(db_str(r, 0, 0), a.id);
	assert_string_equal(db_str(r, 0, 3), reason);
	snprintf(has, sizeof(has), "{%s}", a.id);
	assert_ok(device_store_doomed(t.conn, t.g.id, has, &none, &err));
	assert_int_equal(db_rows(none), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		store_test(nothing_is_placed_on_a_cordoned_device),
		store_test(a_cordon_follows_the_gpu),
		store_test(what_its_machine_does_not_know_is_doomed),
	};
	return cmocka_run_group_tests(tests, store_group_setup, store_group_teardown);
}

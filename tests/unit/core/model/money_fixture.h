/* SPDX-License-Identifier: Apache-2.0
 * What tests of money share: a small yard of January 2025 (two tenants, three jobs, two devices)
 * and a function that tiles a device's time. Ids are short on purpose. One thread. */
#pragma once

#include "tests/unit/core/model/store_fixture.h"

/* One statement or several, printf style. */
static inline void money_sql(struct db_conn *conn, const char *fmt, ...) printf_like(2, 3);
static inline void money_sql(struct db_conn *conn, const char *fmt, ...)
{
	char sql[8192];
	va_list args;
	va_start(args, fmt);
	int len = vsnprintf(sql, sizeof(sql), fmt, args);
	va_end(args);
	assert_true(len > 0 && len < (int)sizeof(sql));
	struct err err = { 0 };
	assert_ok(db_script(conn, sql, &err));
}

/* The SQLSTATE with which the statement is refused ("" when it is not), inside a transaction. */
static inline void money_refused(struct db_conn *conn, const char *sql, char ret_state[static 6])
{
	struct err err = { 0 };
	money_sql(conn, "savepoint refused");
	int rc = db_script(conn, sql, &err);
	(void)snprintf(ret_state, 6, "%s", rc < 0 ? err.sqlstate : "");
	money_sql(conn, "rollback to savepoint refused");
}
#define assert_refused(conn, sql, state)              \
	do {                                              \
		char _state[6];                               \
		money_refused((conn), (sql), _state);         \
		if (strcmp(_state, (state)) != 0)             \
			fail_msg("%s: SQLSTATE %s", sql, _state); \
	} while (0)

static inline int64_t money_i64(struct db_conn *conn, const char *sql)
{
	struct err err = { 0 };
	cleanup(db_result_freep) struct db_result *r = NULL;
	assert_ok(db_exec(conn, &r, &err, sql));
	assert_int_equal(db_rows(r), 1);
	return db_i64(r, 0, 0);
}

static inline void money_text(struct db_conn *conn, const char *sql, size_t max, char *ret)
{
	struct err err = { 0 };
	cleanup(db_result_freep) struct db_result *r = NULL;
	assert_ok(db_exec(conn, &r, &err, sql));
	assert_int_equal(db_rows(r), 1);
	(void)snprintf(ret, max, "%s", db_str(r, 0, 0));
}

/* tile(device, state, attempt, until): from where the device's open interval began. */
static inline void money_yard(struct db_conn *conn)
{
	money_sql(conn,
		"insert into tenants (id, name, residency, created_at) values"
		" ('tenant_a', 'A', '{any}', '2025-01-01Z'), ('tenant_b', 'B', '{any}', '2025-01-01Z');"
		"insert into api_keys (id, role, name, secret_hash, redacted, agent_region)"
		" values ('key_1', 'agent', 'agent', '\\x01', 'ty', 'us-east-1');"
		"insert into agents (id, key_id, name, region, instance_type, boot_id, engine_build)"
		" values ('agent_1', 'key_1', 'agent', 'us-east-1', 'cpu-dev', 'b', 'e');"
		"insert into devices (id, agent_id, device_index, name, instance_type, region,"
		"  memory_bytes, registered_at, open_since)"
		" select 'dev_' || i, 'agent_1', i, 'cpu' || i, 'cpu-dev', 'us-east-1', 1024,"
		"  '2025-01-15Z', '2025-01-15Z' from generate_series(0, 1) i;"
		"insert into jobs (id, tenant_id, name, status, spec, plan, residency, instance_type,"
		"  device_count) select 'job_' || i, case when i = 3 then 'tenant_b' else 'tenant_a' end,"
		"  case when i = 1 then 'mnist' else '' end, 'running', '{}', '{}', '{any}', 'cpu-dev', 1"
		" from generate_series(1, 3) i;"
		"insert into attempts (id, job_id, tenant_id, number, agent_id, token, lease_until, status,"
		"  stall_ms) select 'att_' || right(id, 1), id, tenant_id, 1, 'agent_1', 't', now(),"
		"  'training', 1000 from jobs;"
		"insert into attempt_devices (attempt_id, rank, device_id, released)"
		" select a.id, row_number() over (partition by a.id order by d.id) - 1, d.id, true"
		" from attempts a, devices d;");
	money_sql(conn,
		"create function tile(dev text, how text, att text, until timestamptz) returns void"
		" language plpgsql as $$ declare since timestamptz; begin"
		" select open_since into since from devices where id = dev;"
		" insert into segments (device_id, period, state, reason, attempt_id, job_id, tenant_id,"
		"   price_id) select dev, s.slice, how, how, a.id, a.job_id, a.tenant_id,"
		"   case when how = 'billed' then s.price_id end"
		"  from price_slices('cpu-dev', since, until) s left join attempts a on a.id = att"
		"  order by s.slice;"
		" update devices set open_since = until where id = dev; end $$");
}

static inline void money_tile(struct db_conn *conn, const char *device, const char *state,
	const char *attempt, const char *until)
{
	struct err err = { 0 };
	assert_ok(db_exec(conn, NULL, &err, "select tile($1, $2, $3, $4::timestamptz)", DB_TEXT(device),
		DB_TEXT(state), DB_TEXT(attempt), DB_TEXT(until)));
}

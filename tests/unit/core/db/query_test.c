/* SPDX-License-Identifier: Apache-2.0
 * Tests core/db/query.c, result.c and error.c against a real server. */
#include "core/base/clock.h"
#include "tests/unit/core/db/db_fixture.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>

struct fixture {
	struct db_pool *pool;
	struct db_conn *conn;
};

static int open_conn(void **state)
{
	static struct fixture f;
	struct db_config config = fixture_config(4);
	config.statement_timeout_ms = 500;
	config.lock_timeout_ms = 200;
	f.pool = fixture_pool(&config);
	f.conn = fixture_get(f.pool);
	*state = &f;
	return 0;
}

static int close_conn(void **state)
{
	struct fixture *f = *state;
	db_pool_put(f->pool, f->conn);
	db_pool_destroy(f->pool);
	return 0;
}

static struct db_conn *conn_of(void **state)
{
	return ((struct fixture *)*state)->conn;
}

static void values_come_back(void **state)
{
	struct err err = { 0 };
	cleanup(db_result_freep) struct db_result *r = NULL;
	const unsigned char bytes[] = { 0, 1, 255, '\\', '\'', 0 };
	FIXTURE_OK(db_exec(conn_of(state), &r, &err,
		"SELECT $1::text, $2::bigint, $3::double precision, $4::boolean, $5::bytea, $6::text, "
		"$7::bigint, $8::double precision, $9::bytea",
		DB_TEXT("d\xC3\xA9j\xC3\xA0 'vu'; --"), DB_I64(INT64_MIN), DB_F64(0.1), DB_BOOL(true),
		DB_BYTES(bytes, sizeof(bytes)), DB_NULL, DB_I64(INT64_MAX), DB_F64(-INFINITY),
		DB_BYTES(NULL, 0)));
	assert_int_equal(db_rows(r), 1);
	assert_string_equal(db_str(r, 0, 0), "d\xC3\xA9j\xC3\xA0 'vu'; --");
	assert_true(db_i64(r, 0, 1) == INT64_MIN);
	assert_true(db_f64(r, 0, 2) == 0.1);
	assert_true(db_bool(r, 0, 3));
	unsigned char *back = NULL;
	size_t len;
	assert_int_equal(db_bytes(r, 0, 4, &back, &len), 0);
	assert_int_equal(len, sizeof(bytes));
	assert_memory_equal(back, bytes, len);
	free(back);
	assert_true(db_is_null(r, 0, 5));
	assert_null(db_str(r, 0, 5));
	assert_int_equal(db_i64(r, 0, 5), 0);
	assert_false(db_bool(r, 0, 5));
	assert_int_equal(db_bytes(r, 0, 5, &back, &len), 0);
	assert_null(back);
	assert_true(db_i64(r, 0, 6) == INT64_MAX);
	assert_true(isinf(db_f64(r, 0, 7)) && db_f64(r, 0, 7) < 0);
	assert_int_equal(db_bytes(r, 0, 8, &back, &len), 0);
	assert_int_equal(len, 0);
	assert_non_null(back);
	free(back);
}

static void affected_rows_are_counted(void **state)
{
	struct err err = { 0 };
	struct db_conn *conn = conn_of(state);
	fixture_script(conn, "CREATE TEMP TABLE t (i int)");
	cleanup(db_result_freep) struct db_result *r = NULL;
	FIXTURE_OK(db_exec(conn, &r, &err, "INSERT INTO t SELECT generate_series(1, $1)", DB_I64(7)));
	assert_int_equal(db_affected(r), 7);
	assert_int_equal(db_rows(r), 0);
	db_result_freep(&r);
	FIXTURE_OK(db_exec(conn, &r, &err, "UPDATE t SET i = 0 WHERE i > $1", DB_I64(100)));
	assert_int_equal(db_affected(r), 0);
	db_result_freep(&r);
	FIXTURE_OK(db_exec(conn, &r, &err, "SELECT i FROM t ORDER BY i"));
	assert_int_equal(db_rows(r), 7);
	assert_int_equal(db_i64(r, 6, 0), 7);
	FIXTURE_OK(db_exec(conn, NULL, &err, "DELETE FROM t"));
}

static void big_values_pass(void **state)
{
	struct err err = { 0 };
	struct db_config config = fixture_config(1);
	struct db_pool *pool = fixture_pool(&config);
	struct db_conn *conn = fixture_get(pool);
	size_t bytes = 8 * 1024 * 1024;
	char *text = malloc(bytes + 1);
	assert_non_null(text);
	memset(text, 'x', bytes);
	text[bytes] = '\0';
	cleanup(db_result_freep) struct db_result *r = NULL;
	FIXTURE_OK(db_exec(conn, &r, &err, "SELECT length($1), $1", DB_TEXT(text)));
	assert_int_equal(db_i64(r, 0, 0), bytes);
	assert_int_equal(strlen(db_str(r, 0, 1)), bytes);
	free(text);
	db_pool_put(pool, conn);
	db_pool_destroy(pool);
}

static void sessions_have_our_settings(void **state)
{
	struct err err = { 0 };
	static const char *const expected[][2] = { { "SHOW TimeZone", "UTC" },
		{ "SHOW statement_timeout", "500ms" }, { "SHOW lock_timeout", "200ms" },
		{ "SHOW idle_in_transaction_session_timeout", "20s" },
		{ "SHOW application_name", "unit-test" }, { "SHOW client_encoding", "UTF8" } };
	for (size_t i = 0; i < ARRAY_LEN(expected); i++) {
		cleanup(db_result_freep) struct db_result *r = NULL;
		FIXTURE_OK(db_exec(conn_of(state), &r, &err, expected[i][0]));
		assert_string_equal(db_str(r, 0, 0), expected[i][1]);
	}
}

static void errors_are_told_apart(void **state)
{
	struct db_conn *conn = conn_of(state);
	fixture_script(conn,
		"CREATE TEMP TABLE u (i int CONSTRAINT u_positive CHECK (i > 0), "
		"CONSTRAINT u_once UNIQUE (i)); INSERT INTO u VALUES (1)");
	static const struct {
		const char *sql;
		int code;
		const char *sqlstate, *param;
	} cases[] = {
		{ "INSERT INTO u VALUES (1)", ERR_DB_UNIQUE, "23505", "u_once" },
		{ "INSERT INTO u VALUES (-1)", ERR_INTERNAL, "23514", "u_positive" },
		{ "SELEC 1", ERR_INTERNAL, "42601", "" },
		{ "SELECT 1/0", ERR_INTERNAL, "22012", "" },
		{ "SELECT pg_sleep(5)", ERR_DATABASE, "57014", "" },
		{ "DO $$ BEGIN RAISE SQLSTATE '40001'; END $$", ERR_DB_CONFLICT, "40001", "" },
		{ "DO $$ BEGIN RAISE SQLSTATE '40P01'; END $$", ERR_DB_CONFLICT, "40P01", "" },
		{ "DO $$ BEGIN RAISE SQLSTATE '23P01'; END $$", ERR_DB_UNIQUE, "23P01", "" },
		{ "DO $$ BEGIN RAISE SQLSTATE '53300'; END $$", ERR_DATABASE, "53300", "" },
	};
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct err err = { 0 };
		assert_int_equal(db_exec(conn, NULL, &err, cases[i].sql), cases[i].code);
		assert_string_equal(err.sqlstate, cases[i].sqlstate);
		assert_string_equal(err.param, cases[i].param);
		assert_true(err.message[0] != '\0');
		/* The connection goes on. */
		assert_int_equal(fixture_i64(conn, "SELECT 1"), 1);
	}
	assert_int_equal(db_exec(conn, NULL, NULL, "SELEC 1"), ERR_INTERNAL);
	struct err err = { 0 };
	assert_int_equal(
		db_exec(conn, NULL, &err, "SELECT $1::text", DB_TEXT("\xFF")), ERR_INVALID_VALUE);
}

static void locked_rows_are_a_conflict(void **state)
{
	struct fixture *f = *state;
	struct err err = { 0 };
	struct db_conn *rival = fixture_get(f->pool);
	fixture_script(rival, "DROP TABLE IF EXISTS held; CREATE TABLE held (i int)");
	FIXTURE_OK(db_begin(rival, &err));
	fixture_script(rival, "LOCK TABLE held");
	assert_int_equal(db_exec(f->conn, NULL, &err, "SELECT * FROM held"), ERR_DB_CONFLICT);
	assert_string_equal(err.sqlstate, "55P03");
	db_pool_put(f->pool, rival);
	FIXTURE_OK(db_exec(f->conn, NULL, &err, "DROP TABLE held"));
}

static void statements_are_prepared_once_and_bounded(void **state)
{
	struct err err = { 0 };
	struct db_conn *conn = conn_of(state);
	for (int round = 0; round < 2; round++) {
		for (int i = 0; i < 400; i++) {
			char sql[64];
			(void)snprintf(sql, sizeof(sql), "SELECT %d + $1::bigint", i);
			cleanup(db_result_freep) struct db_result *r = NULL;
			FIXTURE_OK(db_exec(conn, &r, &err, sql, DB_I64(1000)));
			assert_int_equal(db_i64(r, 0, 0), 1000 + i);
		}
	}
	assert_int_equal(fixture_i64(conn, "SELECT count(*) FROM pg_prepared_statements"), 256);
}

static void a_changed_table_is_a_conflict_and_then_works(void **state)
{
	struct fixture *f = *state;
	struct err err = { 0 };
	fixture_script(f->conn, "DROP TABLE IF EXISTS grown; CREATE TABLE grown (i int)");
	FIXTURE_OK(db_exec(f->conn, NULL, &err, "SELECT * FROM grown"));
	fixture_script(f->conn, "ALTER TABLE grown ADD COLUMN j int");
	assert_int_equal(db_exec(f->conn, NULL, &err, "SELECT * FROM grown"), ERR_DB_CONFLICT);
	db_pool_put(f->pool, f->conn);
	f->conn = fixture_get(f->pool);
	FIXTURE_OK(db_exec(f->conn, NULL, &err, "SELECT * FROM grown"));
	fixture_script(f->conn, "DROP TABLE grown");
}

static void transactions_commit_and_roll_back(void **state)
{
	struct fixture *f = *state;
	struct err err = { 0 };
	fixture_script(f->conn, "DROP TABLE IF EXISTS tx; CREATE TABLE tx (i int PRIMARY KEY)");
	FIXTURE_OK(db_begin(f->conn, &err));
	FIXTURE_OK(db_exec(f->conn, NULL, &err, "INSERT INTO tx VALUES (1)"));
	FIXTURE_OK(db_commit(f->conn, &err));
	FIXTURE_OK(db_begin(f->conn, &err));
	FIXTURE_OK(db_exec(f->conn, NULL, &err, "INSERT INTO tx VALUES (2)"));
	db_rollback(f->conn);
	db_rollback(f->conn);
	assert_int_equal(fixture_i64(f->conn, "SELECT count(*) FROM tx"), 1);

	/* A failed transaction cannot be committed by accident. */
	FIXTURE_OK(db_begin(f->conn, &err));
	FIXTURE_OK(db_exec(f->conn, NULL, &err, "INSERT INTO tx VALUES (3)"));
	assert_int_equal(db_exec(f->conn, NULL, &err, "INSERT INTO tx VALUES (3)"), ERR_DB_UNIQUE);
	assert_int_equal(db_commit(f->conn, &err), ERR_INTERNAL);

	/* Going back to the pool ends it, and the connection lives on. */
	db_rollback(f->conn);
	int64_t backend = fixture_i64(f->conn, "SELECT pg_backend_pid()");
	FIXTURE_OK(db_begin(f->conn, &err));
	FIXTURE_OK(db_exec(f->conn, NULL, &err, "INSERT INTO tx VALUES (4)"));
	db_pool_put(f->pool, f->conn);
	f->conn = fixture_get(f->pool);
	assert_int_equal(fixture_i64(f->conn, "SELECT pg_backend_pid()"), backend);
	assert_int_equal(fixture_i64(f->conn, "SELECT count(*) FROM tx"), 1);
	assert_int_equal(db_commit(f->conn, &err), ERR_INTERNAL);
	fixture_script(f->conn, "DROP TABLE tx");
}

static void a_frozen_server_does_not_hold_us(void **state)
{
	struct fixture *f = *state;
	struct err err = { 0 };
	pid_t backend = (pid_t)fixture_i64(f->conn, "SELECT pg_backend_pid()");
	assert_int_equal(kill(backend, SIGSTOP), 0);
	int64_t before = clock_mono_us(clock_system());
	int r = db_exec(f->conn, NULL, &err, "SELECT 1");
	int64_t took_ms = (clock_mono_us(clock_system()) - before) / 1000;
	assert_int_equal(kill(backend, SIGCONT), 0);
	assert_int_equal(r, ERR_DATABASE);
	assert_in_range(took_ms, 800, 2000);
	assert_int_equal(db_exec(f->conn, NULL, &err, "SELECT 2"), ERR_DATABASE);
	db_pool_put(f->pool, f->conn);
	f->conn = fixture_get(f->pool);
	assert_int_equal(fixture_i64(f->conn, "SELECT 3"), 3);
}

static void a_killed_session_is_a_database_error(void **state)
{
	struct fixture *f = *state;
	struct err err = { 0 };
	pid_t backend = (pid_t)fixture_i64(f->conn, "SELECT pg_backend_pid()");
	struct db_conn *other = fixture_get(f->pool);
	FIXTURE_OK(db_exec(other, NULL, &err, "SELECT pg_terminate_backend($1)", DB_I64(backend)));
	db_pool_put(f->pool, other);
	assert_int_equal(db_exec(f->conn, NULL, &err, "SELECT pg_sleep(1)"), ERR_DATABASE);
	assert_true(err.message[0] != '\0');
	db_rollback(f->conn);
	db_pool_put(f->pool, f->conn);
	f->conn = fixture_get(f->pool);
	assert_int_equal(fixture_i64(f->conn, "SELECT 3"), 3);
}

static void copy_is_refused(void **state)
{
	struct fixture *f = *state;
	struct err err = { 0 };
	assert_int_equal(db_script(f->conn, "COPY pg_class TO STDOUT", &err), ERR_INTERNAL);
	db_pool_put(f->pool, f->conn);
	f->conn = fixture_get(f->pool);
	assert_int_equal(fixture_i64(f->conn, "SELECT 3"), 3);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, open_conn, close_conn)
	const struct CMUnitTest tests[] = {
		CASE(values_come_back),
		CASE(affected_rows_are_counted),
		CASE(big_values_pass),
		CASE(sessions_have_our_settings),
		CASE(errors_are_told_apart),
		CASE(locked_rows_are_a_conflict),
		CASE(statements_are_prepared_once_and_bounded),
		CASE(a_changed_table_is_a_conflict_and_then_works),
		CASE(transactions_commit_and_roll_back),
		CASE(a_frozen_server_does_not_hold_us),
		CASE(a_killed_session_is_a_database_error),
		CASE(copy_is_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}

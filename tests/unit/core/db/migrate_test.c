/* SPDX-License-Identifier: Apache-2.0
 * Tests core/db/migrate.c: each case has a schema and a folder of its own. */
#include "core/db/migrate.h"
#include "tests/unit/core/db/db_fixture.h"

#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

struct fixture {
	struct db_pool *pool;
	struct db_conn *conn;
	char folder[64];
};

static int open_case(void **state)
{
	static struct fixture f;
	struct db_config config = fixture_config(4);
	f.pool = fixture_pool(&config);
	f.conn = fixture_get(f.pool);
	fixture_script(f.conn, "DROP SCHEMA public CASCADE; CREATE SCHEMA public");
	(void)snprintf(f.folder, sizeof(f.folder), "/tmp/trainyard-migrate.XXXXXX");
	assert_non_null(mkdtemp(f.folder));
	*state = &f;
	return 0;
}

static int close_case(void **state)
{
	struct fixture *f = *state;
	char command[96];
	(void)snprintf(command, sizeof(command), "rm -rf '%s'", f->folder);
	assert_int_equal(system(command), 0);
	db_pool_put(f->pool, f->conn);
	db_pool_destroy(f->pool);
	return 0;
}

static void write_migration(const struct fixture *f, const char *name, const char *sql)
{
	char path[160];
	(void)snprintf(path, sizeof(path), "%s/%s", f->folder, name);
	FILE *file = fopen(path, "w");
	assert_non_null(file);
	assert_true(fputs(sql, file) >= 0);
	assert_int_equal(fclose(file), 0);
}

static void remove_migration(const struct fixture *f, const char *name)
{
	char path[160];
	(void)snprintf(path, sizeof(path), "%s/%s", f->folder, name);
	assert_int_equal(unlink(path), 0);
}

static void expect_refusal(struct fixture *f, const char *words)
{
	struct err err = { 0 };
	int applied = -1;
	assert_int_equal(migrate_run(f->conn, f->folder, &applied, &err), ERR_INTERNAL);
	if (!strstr(err.message, words))
		fail_msg("\"%s\" lacks \"%s\"", err.message, words);
	assert_int_equal(applied, -1);
	/* The lock is free and the connection as before. */
	cleanup(db_result_freep) struct db_result *r = NULL;
	FIXTURE_OK(db_exec(f->conn, &r, &err,
		"SELECT count(*), current_setting('statement_timeout') FROM pg_locks "
		"WHERE locktype = 'advisory'"));
	assert_int_equal(db_i64(r, 0, 0), 0);
	assert_string_equal(db_str(r, 0, 1), "5s");
}

static void files_are_applied_once_in_order(void **state)
{
	struct fixture *f = *state;
	struct err err = { 0 };
	int applied = -1;
	assert_int_equal(migrate_check(f->conn, f->folder, &err), ERR_UNAVAILABLE);
	write_migration(f, "0002_more.sql", "INSERT INTO a VALUES (2); INSERT INTO a VALUES (3);");
	write_migration(f, "0001_base.sql", "CREATE TABLE a (i int); INSERT INTO a VALUES (1);");
	write_migration(f, "README.md", "not a migration");
	FIXTURE_OK(migrate_run(f->conn, f->folder, &applied, &err));
	assert_int_equal(applied, 2);
	FIXTURE_OK(migrate_check(f->conn, f->folder, &err));
	FIXTURE_OK(migrate_run(f->conn, f->folder, &applied, &err));
	assert_int_equal(applied, 0);
	assert_int_equal(fixture_i64(f->conn, "SELECT sum(i) FROM a"), 6);

	write_migration(f, "0010_later.sql", "INSERT INTO a VALUES (10);");
	assert_int_equal(migrate_check(f->conn, f->folder, &err), ERR_UNAVAILABLE);
	assert_non_null(strstr(err.message, "0010_later.sql"));
	FIXTURE_OK(migrate_run(f->conn, f->folder, &applied, &err));
	assert_int_equal(applied, 1);
	assert_int_equal(
		fixture_i64(f->conn, "SELECT count(*) FROM schema_migrations WHERE length(sha256) = 64"),
		3);
}

static void changed_vanished_and_late_files_are_refused(void **state)
{
	struct fixture *f = *state;
	struct err err = { 0 };
	write_migration(f, "0001_a.sql", "CREATE TABLE a (i int)");
	write_migration(f, "0003_c.sql", "CREATE TABLE c (i int)");
	FIXTURE_OK(migrate_run(f->conn, f->folder, NULL, &err));

	write_migration(f, "0001_a.sql", "CREATE TABLE a (j int)");
	expect_refusal(f, "0001_a.sql has changed");
	assert_int_equal(migrate_check(f->conn, f->folder, &err), ERR_UNAVAILABLE);
	write_migration(f, "0001_a.sql", "CREATE TABLE a (i int)");

	write_migration(f, "0002_b.sql", "CREATE TABLE b (i int)");
	expect_refusal(f, "0002_b.sql was never applied");
	remove_migration(f, "0002_b.sql");

	remove_migration(f, "0003_c.sql");
	expect_refusal(f, "0003_c.sql was applied, but its file is missing");
	write_migration(f, "0003_renamed.sql", "CREATE TABLE c (i int)");
	expect_refusal(f, "under the name 0003_c.sql");
	write_migration(f, "0003_c.sql", "CREATE TABLE c (i int)");
	expect_refusal(f, "have the same number");
	remove_migration(f, "0003_renamed.sql");
	FIXTURE_OK(migrate_check(f->conn, f->folder, &err));
}

static void names_are_checked(void **state)
{
	static const char *const names[] = { "1_a.sql", "0001a.sql", "0001_.sql", "0001_A.sql",
		"00001_a.sql", "0000_a.sql", "0001_a.b.sql", "abcd_a.sql" };
	struct fixture *f = *state;
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		write_migration(f, names[i], "SELECT 1");
		expect_refusal(f, names[i]);
		remove_migration(f, names[i]);
	}
}

static void a_failing_file_leaves_nothing(void **state)
{
	struct fixture *f = *state;
	struct err err = { 0 };
	write_migration(f, "0001_good.sql", "CREATE TABLE good (i int)");
	write_migration(f, "0002_bad.sql", "CREATE TABLE half (i int); SELECT 1/0;");
	expect_refusal(f, "0002_bad.sql: division by zero");
	assert_int_equal(
		fixture_i64(f->conn, "SELECT count(*) FROM pg_tables WHERE tablename IN ('good', 'half')"),
		1);
	write_migration(f, "0002_bad.sql", "CREATE TABLE half (i int);");
	int applied = 0;
	FIXTURE_OK(migrate_run(f->conn, f->folder, &applied, &err));
	assert_int_equal(applied, 1);
}

static void a_file_may_not_commit(void **state)
{
	struct fixture *f = *state;
	struct err err = { 0 };
	write_migration(f, "0001_sly.sql", "CREATE TABLE a (i int); COMMIT;");
	assert_int_equal(migrate_run(f->conn, f->folder, NULL, &err), ERR_INTERNAL);
	assert_non_null(strstr(err.message, "0001_sly.sql"));
	/* It is not taken for applied. */
	db_pool_put(f->pool, f->conn);
	f->conn = fixture_get(f->pool);
	assert_int_equal(fixture_i64(f->conn, "SELECT count(*) FROM schema_migrations"), 0);
}

static void a_missing_folder_is_named(void **state)
{
	struct fixture *f = *state;
	struct err err = { 0 };
	assert_int_equal(migrate_run(f->conn, "/nonexistent/m", NULL, &err), ERR_IO);
	assert_non_null(strstr(err.message, "/nonexistent/m"));
}

struct racer {
	struct fixture *f;
	int applied, code;
};

static void *run_migrations(void *arg)
{
	struct racer *r = arg;
	struct err err = { 0 };
	struct db_conn *conn = NULL;
	r->code = db_pool_get(r->f->pool, 5000, &conn, &err);
	if (r->code == 0)
		r->code = migrate_run(conn, r->f->folder, &r->applied, &err);
	if (r->code < 0)
		(void)fprintf(stderr, "%s\n", err.message);
	db_pool_put(r->f->pool, conn);
	return NULL;
}

static void servers_that_start_together_apply_once(void **state)
{
	struct fixture *f = *state;
	write_migration(f, "0001_slow.sql", "CREATE TABLE slow (i int); SELECT pg_sleep(0.3);");
	write_migration(f, "0002_row.sql", "INSERT INTO slow VALUES (1);");
	pthread_t threads[3];
	struct racer racers[3];
	for (int i = 0; i < 3; i++) {
		racers[i] = (struct racer){ .f = f };
		assert_int_equal(pthread_create(&threads[i], NULL, run_migrations, &racers[i]), 0);
	}
	int applied = 0;
	for (int i = 0; i < 3; i++) {
		(void)pthread_join(threads[i], NULL);
		assert_int_equal(racers[i].code, 0);
		applied += racers[i].applied;
	}
	assert_int_equal(applied, 2);
	assert_int_equal(fixture_i64(f->conn, "SELECT count(*) FROM slow"), 1);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, open_case, close_case)
	const struct CMUnitTest tests[] = {
		CASE(files_are_applied_once_in_order),
		CASE(changed_vanished_and_late_files_are_refused),
		CASE(names_are_checked),
		CASE(a_failing_file_leaves_nothing),
		CASE(a_file_may_not_commit),
		CASE(a_missing_folder_is_named),
		CASE(servers_that_start_together_apply_once),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}

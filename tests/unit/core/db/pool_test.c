/* SPDX-License-Identifier: Apache-2.0
 * Tests core/db/pool.c and connect.c against a real server that stops, restarts and hangs. */
#include "core/base/clock.h"
#include "tests/unit/core/db/db_fixture.h"

#include <pthread.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static void cluster(const char *action)
{
	char command[512];
	(void)snprintf(command, sizeof(command),
		"\"$TRAINYARD_TEST_PG_CLUSTER\" %s \"$TRAINYARD_TEST_DB_DIR\"", action);
	assert_int_equal(system(command), 0);
}

static void the_size_holds(void **state)
{
	struct db_config config = fixture_config(2);
	struct db_pool *pool = fixture_pool(&config);
	struct err err = { 0 };
	struct db_conn *a = fixture_get(pool);
	struct db_conn *b = fixture_get(pool);
	struct db_conn *c = NULL;
	int64_t before = clock_mono_us(clock_system());
	assert_int_equal(db_pool_get(pool, 150, &c, &err), ERR_OVERLOADED);
	assert_true(clock_mono_us(clock_system()) - before >= 150000);
	assert_int_equal(err.retry_after_s, 1);
	assert_int_equal(db_pool_get(pool, 0, &c, &err), ERR_OVERLOADED);
	assert_null(c);
	db_pool_put(pool, b);
	FIXTURE_OK(db_pool_get(pool, 0, &c, &err));
	assert_ptr_equal(b, c);
	db_pool_put(pool, NULL);
	db_pool_put(pool, a);
	db_pool_put(pool, c);
	db_pool_destroy(pool);
	db_pool_destroy(NULL);
}

static void bad_configurations_are_refused(void **state)
{
	struct err err = { 0 };
	struct db_pool *pool = NULL;
	struct db_config config = fixture_config(0);
	assert_int_equal(db_pool_create(&config, &pool, &err), ERR_INVALID_VALUE);
	config = fixture_config(1);
	config.url = "postgres://user:hunter2@host/db?nonsense=1";
	assert_int_equal(db_pool_create(&config, &pool, &err), ERR_INVALID_VALUE);
	assert_null(strstr(err.message, "hunter2"));
	assert_null(pool);
}

static void an_absent_server_is_a_database_error(void **state)
{
	struct err err = { 0 };
	struct db_config config = fixture_config(1);
	config.url = "host=/nonexistent user=postgres";
	struct db_pool *pool = fixture_pool(&config);
	struct db_conn *conn = NULL;
	for (int i = 0; i < 3; i++) /* a failure gives its place back */
		assert_int_equal(db_pool_get(pool, 0, &conn, &err), ERR_DATABASE);
	assert_non_null(strstr(err.message, "/nonexistent"));
	db_pool_destroy(pool);
}

/* A socket that accepts and never says a word. */
static void a_mute_server_is_given_up(void **state)
{
	char dir[] = "/tmp/trainyard-mute.XXXXXX";
	assert_non_null(mkdtemp(dir));
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	(void)snprintf(address.sun_path, sizeof(address.sun_path), "%s/.s.PGSQL.5432", dir);
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(listen(fd, 8), 0);

	struct err err = { 0 };
	struct db_config config = fixture_config(1);
	char url[128];
	(void)snprintf(url, sizeof(url), "host=%s user=postgres", dir);
	config.url = url;
	config.connect_timeout_s = 1;
	struct db_pool *pool = fixture_pool(&config);
	struct db_conn *conn = NULL;
	int64_t before = clock_mono_us(clock_system());
	assert_int_equal(db_pool_get(pool, 0, &conn, &err), ERR_DATABASE);
	assert_in_range((clock_mono_us(clock_system()) - before) / 1000, 900, 2500);
	db_pool_destroy(pool);
	(void)close(fd);
	(void)unlink(address.sun_path);
	(void)rmdir(dir);
}

static void dead_idle_connections_are_replaced(void **state)
{
	struct err err = { 0 };
	struct db_config config = fixture_config(2);
	struct db_pool *pool = fixture_pool(&config);
	struct db_conn *a = fixture_get(pool);
	struct db_conn *b = fixture_get(pool);
	int64_t dead = fixture_i64(a, "SELECT pg_backend_pid()");
	/* Idle while its backend ends; the other stays until nothing of it is left. */
	FIXTURE_OK(db_exec(b, NULL, &err, "SELECT pg_terminate_backend($1, 5000)", DB_I64(dead)));
	db_pool_put(pool, b);
	db_pool_put(pool, a);
	a = fixture_get(pool);
	assert_int_not_equal(fixture_i64(a, "SELECT pg_backend_pid()"), dead);
	db_pool_put(pool, a);
	db_pool_destroy(pool);
}

static void a_restart_goes_unnoticed(void **state)
{
	struct db_config config = fixture_config(3);
	struct db_pool *pool = fixture_pool(&config);
	struct db_conn *conns[3];
	for (int i = 0; i < 3; i++) {
		conns[i] = fixture_get(pool);
		assert_int_equal(fixture_i64(conns[i], "SELECT 1"), 1);
	}
	for (int i = 0; i < 3; i++)
		db_pool_put(pool, conns[i]);
	cluster("restart");
	for (int i = 0; i < 3; i++) {
		conns[i] = fixture_get(pool);
		assert_int_equal(fixture_i64(conns[i], "SELECT 1"), 1);
	}
	for (int i = 0; i < 3; i++)
		db_pool_put(pool, conns[i]);
	db_pool_destroy(pool);
}

static void locks_end_with_the_loan(void **state)
{
	struct err err = { 0 };
	struct db_config config = fixture_config(2);
	struct db_pool *pool = fixture_pool(&config);
	struct db_conn *a = fixture_get(pool);
	struct db_conn *b = fixture_get(pool);
	bool got = false;
	FIXTURE_OK(db_try_lock(a, 4711, &got, &err));
	assert_true(got);
	FIXTURE_OK(db_try_lock(b, 4711, &got, &err));
	assert_false(got);
	db_pool_put(pool, a);
	/* The server notices the closed connection a moment later: asks until it has, bounded. */
	for (int i = 0; i < 500 && !got; i++) {
		FIXTURE_OK(db_exec(b, NULL, &err, "SELECT pg_sleep(0.01)"));
		FIXTURE_OK(db_try_lock(b, 4711, &got, &err));
	}
	assert_true(got);
	db_pool_put(pool, b);
	db_pool_destroy(pool);
}

enum { THREADS = 8, ROUNDS = 40 };

static int add_one(struct db_conn *conn, void *ctx, struct err *err)
{
	int *calls = ctx;
	(*calls)++;
	int r = db_exec(conn, NULL, err, "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE");
	if (r < 0)
		return r;
	cleanup(db_result_freep) struct db_result *rows = NULL;
	r = db_exec(conn, &rows, err, "SELECT n FROM counter");
	if (r < 0)
		return r;
	return db_exec(conn, NULL, err, "UPDATE counter SET n = $1", DB_I64(db_i64(rows, 0, 0) + 1));
}

struct worker {
	struct db_pool *pool;
	int added, calls, lost;
};

static void *add_many(void *arg)
{
	struct worker *w = arg;
	for (int i = 0; i < ROUNDS; i++) {
		struct err err = { 0 };
		int r = db_tx(w->pool, 5000, add_one, &w->calls, &err);
		if (r == 0)
			w->added++;
		else if (r == ERR_DB_CONFLICT)
			w->lost++;
		else
			fail_msg("%s", err.message);
	}
	return NULL;
}

/* More threads than connections, all writing the same row: nothing is lost, nothing doubled. */
static void conflicts_are_repeated(void **state)
{
	struct db_config config = fixture_config(3);
	struct db_pool *pool = fixture_pool(&config);
	struct db_conn *conn = fixture_get(pool);
	fixture_script(conn,
		"DROP TABLE IF EXISTS counter; CREATE TABLE counter (n bigint); INSERT INTO counter VALUES "
		"(0)");
	db_pool_put(pool, conn);
	pthread_t threads[THREADS];
	struct worker workers[THREADS];
	for (int i = 0; i < THREADS; i++) {
		workers[i] = (struct worker){ .pool = pool };
		assert_int_equal(pthread_create(&threads[i], NULL, add_many, &workers[i]), 0);
	}
	int added = 0, calls = 0;
	for (int i = 0; i < THREADS; i++) {
		(void)pthread_join(threads[i], NULL);
		added += workers[i].added;
		calls += workers[i].calls;
		assert_int_equal(workers[i].added + workers[i].lost, ROUNDS);
	}
	conn = fixture_get(pool);
	assert_int_equal(fixture_i64(conn, "SELECT n FROM counter"), added);
	assert_true(added > THREADS * ROUNDS / 2);
	assert_true(calls > added); /* there were conflicts to repeat */
	fixture_script(conn, "DROP TABLE counter");
	db_pool_put(pool, conn);
	db_pool_destroy(pool);
}

static int always(struct db_conn *conn, void *ctx, struct err *err)
{
	int *calls = ctx;
	(*calls)++;
	return err_set(err, ERR_DB_CONFLICT, NULL, "again");
}

static int never(struct db_conn *conn, void *ctx, struct err *err)
{
	int *calls = ctx;
	(*calls)++;
	return err_set(err, ERR_NOT_FOUND, NULL, "no");
}

static void only_conflicts_are_repeated_and_not_for_ever(void **state)
{
	struct err err = { 0 };
	struct db_config config = fixture_config(1);
	struct db_pool *pool = fixture_pool(&config);
	int calls = 0;
	assert_int_equal(db_tx(pool, 0, always, &calls, &err), ERR_DB_CONFLICT);
	assert_int_equal(calls, DB_TX_TRIES);
	calls = 0;
	assert_int_equal(db_tx(pool, 0, never, &calls, &err), ERR_NOT_FOUND);
	assert_int_equal(calls, 1);
	assert_string_equal(err.message, "no");
	db_pool_destroy(pool);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_size_holds),
		cmocka_unit_test(bad_configurations_are_refused),
		cmocka_unit_test(an_absent_server_is_a_database_error),
		cmocka_unit_test(a_mute_server_is_given_up),
		cmocka_unit_test(dead_idle_connections_are_replaced),
		cmocka_unit_test(a_restart_goes_unnoticed),
		cmocka_unit_test(locks_end_with_the_loan),
		cmocka_unit_test(conflicts_are_repeated),
		cmocka_unit_test(only_conflicts_are_repeated_and_not_for_ever),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}

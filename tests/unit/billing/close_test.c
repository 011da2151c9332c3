/* SPDX-License-Identifier: Apache-2.0
 * trainyard-billing as an operator runs it: real processes on a real database, one database for
 * each test. with_pg.sh close_test PROGRAM. */
#include "tests/support/check.h"
#include "tests/unit/core/model/money_fixture.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { OUTPUT_MAX = 64 * 1024, CLOSERS = 8, KILLS = 6, WAIT_MS = 20000 };

static const char *program;

struct fixture {
	struct db_pool *admin_pool;
	struct db_conn *admin;
	int number;
	char url[512]; /* of the test's own database */
	struct db_pool *pool;
	struct db_conn *conn;
	char output[OUTPUT_MAX];
};

static void open_db(const char *url, struct db_pool **ret_pool, struct db_conn **ret_conn)
{
	struct err err = { 0 };
	const struct db_config config = { .url = url,
		.application_name = "billing-test",
		.size = 1,
		.connect_timeout_s = 10,
		.statement_timeout_ms = 30000,
		.lock_timeout_ms = 10000,
		.idle_tx_timeout_ms = 60000 };
	assert_ok(db_pool_create(&config, ret_pool, &err));
	assert_ok(db_pool_get(*ret_pool, 1000, ret_conn, &err));
}

static void test_url(const char *name, char ret[static 512])
{
	int len = snprintf(ret, 512, "%s dbname=%s", getenv("TRAINYARD_TEST_DB_URL"), name);
	assert_true(len > 0 && len < 512);
}

/* A template with the yard of January 2025: a month end and a price inside, both tenants. */
static int group_setup(void **state)
{
	struct fixture *fx = calloc(1, sizeof(*fx));
	struct err err = { 0 };
	assert_non_null(fx);
	open_db(getenv("TRAINYARD_TEST_DB_URL"), &fx->admin_pool, &fx->admin);
	money_sql(fx->admin, "create database template_yard");
	test_url("template_yard", fx->url);
	open_db(fx->url, &fx->pool, &fx->conn);
	int applied = 0;
	assert_ok(migrate_run(fx->conn, MIGRATIONS_DIR, &applied, &err));
	money_yard(fx->conn);
	money_tile(fx->conn, "dev_0", "idle", NULL, "2025-01-31T23:00:00Z");
	money_tile(fx->conn, "dev_0", "billed", "att_1", "2025-02-01T00:03:00.123Z");
	money_tile(fx->conn, "dev_0", "lost", "att_1", "2025-02-01T00:04:00Z");
	money_tile(fx->conn, "dev_1", "billed", "att_2", "2025-01-16T00:00:00Z");
	money_tile(fx->conn, "dev_1", "billed", "att_3", "2025-01-16T01:00:00Z");
	db_pool_put(fx->pool, fx->conn);
	db_pool_destroy(fx->pool);
	*state = fx;
	return 0;
}

static int group_teardown(void **state)
{
	struct fixture *fx = *state;
	db_pool_put(fx->admin_pool, fx->admin);
	db_pool_destroy(fx->admin_pool);
	free(fx);
	return 0;
}

static int setup(void **state)
{
	struct fixture *fx = *state;
	char name[32];
	(void)snprintf(name, sizeof(name), "test_%d", ++fx->number);
	money_sql(fx->admin, "create database %s template template_yard", name);
	test_url(name, fx->url);
	open_db(fx->url, &fx->pool, &fx->conn);
	return 0;
}

static int teardown(void **state)
{
	struct fixture *fx = *state;
	db_pool_put(fx->pool, fx->conn);
	db_pool_destroy(fx->pool);
	return 0;
}

static FILE *start(struct fixture *fx, const char *arguments)
{
	char command[2048];
	int len = snprintf(command, sizeof(command), "TRAINYARD_DB_URL='%s' exec '%s' %s 2>&1", fx->url,
		program, arguments);
	assert_true(len > 0 && len < (int)sizeof(command));
	FILE *f = popen(command, "r");
	assert_non_null(f);
	return f;
}

/* Exit status; what it printed is in fx->output. */
static int finish(struct fixture *fx, FILE *f)
{
	size_t len = fread(fx->output, 1, OUTPUT_MAX - 1, f);
	fx->output[len] = '\0';
	int status = pclose(f);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

static int run(struct fixture *fx, const char *arguments)
{
	return finish(fx, start(fx, arguments));
}

#define assert_run(fx, arguments, status)                                               \
	do {                                                                                \
		int _status = run((fx), (arguments));                                           \
		if (_status != (status))                                                        \
			fail_msg("%s: exit status %d, said: %s", (arguments), _status, fx->output); \
	} while (0)

static void assert_said(const struct fixture *fx, const char *text)
{
	if (!strstr(fx->output, text))
		fail_msg("\"%s\" is not in: %s", text, fx->output);
}

/* All that invoices are made of, as one text. */
static void dump(struct db_conn *conn, char ret[static OUTPUT_MAX])
{
	money_text(conn,
		"select concat((select string_agg(i::text, '|' order by id) from invoices i), '#',"
		" (select string_agg(l::text, '|' order by invoice_id, line) from invoice_lines l), '#',"
		" (select string_agg(s::text, '|' order by segment_id) from invoice_segments s))",
		OUTPUT_MAX, ret);
}

static void a_second_close_adds_nothing(void **state)
{
	struct fixture *fx = *state;
	assert_run(fx, "close --all", 0);
	assert_said(fx, "from 2025-01-01T00:00:00.000Z to 2025-02-01T00:00:00.000Z: 2 lines, 9.00 USD");
	assert_said(fx, "from 2025-02-01T00:00:00.000Z to 2025-03-01T00:00:00.000Z: 1 line, 0.02 USD");
	assert_said(fx, "tenant_b: inv_");
	assert_said(fx, "tenant_a: no usage to invoice from 2025-03-01T00:00:00.000Z to ");
	static char before[OUTPUT_MAX], after[OUTPUT_MAX];
	dump(fx->conn, before);
	static const char *const again[] = { "close --all", "close --tenant=tenant_a --json",
		"close --tenant=tenant_a --from=2025-01-01T00:00:00Z --to=2025-02-01T00:00:00Z",
		"close --tenant=tenant_a --from=2025-01-10T00:00:00Z --to=2025-01-20T00:00:00+05:00",
		"close --all --to=2025-01-31T00:00:00Z" };
	for (size_t i = 0; i < ARRAY_LEN(again); i++) {
		assert_run(fx, again[i], 0);
		assert_null(strstr(fx->output, "inv_"));
		dump(fx->conn, after);
		assert_string_equal(before, after);
	}
	assert_run(fx, "verify --all", 0);
	assert_said(fx, "3 invoices checked, 0 differences");
	assert_run(fx, "reconcile", 0);
	assert_said(fx, "2 devices, 0 wrong; 3 invoices, 0 differences");
}

static void explicit_months_are_separate(void **state)
{
	struct fixture *fx = *state;
	const char *february =
		"close --tenant=tenant_a --from=2025-02-01T00:00:00Z --to=2025-03-01T00:00:00Z";
	assert_run(fx, february, 0);
	assert_said(fx, "1 line, 0.02 USD");
	assert_run(fx, february, 0);
	assert_said(fx, "nothing is left to invoice");
	assert_run(
		fx, "close --tenant=tenant_a --from=2025-01-01T00:00:00Z --to=2025-03-01T00:00:00Z", 0);
	assert_said(fx, "from 2025-01-01T00:00:00.000Z to 2025-02-01T00:00:00.000Z: 2 lines, 9.00 USD");
	assert_int_equal(money_i64(fx->conn, "select count(*) from invoices"), 2);
	assert_run(fx, "verify --all", 0);
}

/* Waits for a condition of the database, with a deadline. */
static void wait_until(struct db_conn *conn, const char *sql, int64_t want)
{
	const int64_t deadline_us = clock_mono_us(clock_system()) + INT64_C(1000) * WAIT_MS;
	while (money_i64(conn, sql) != want) {
		if (clock_mono_us(clock_system()) > deadline_us)
			fail_msg("not in time: %s", sql);
		(void)usleep(5000);
	}
}

static void eight_closers_make_one_set(void **state)
{
	struct fixture *fx = *state;
	struct err err = { 0 };
	/* All eight stand at the tenant's lock before the first may go. */
	money_sql(fx->conn, "begin");
	cleanup(db_result_freep) struct db_result *locked = NULL;
	assert_ok(db_exec(fx->conn, &locked, &err,
		"select pg_advisory_xact_lock(hashtextextended('invoice tenant_a', 0))"));
	FILE *closers[CLOSERS];
	for (int i = 0; i < CLOSERS; i++)
		closers[i] = start(fx, i % 2 ? "close --tenant=tenant_a" : "close --all");
	wait_until(fx->admin,
		"select count(*) from pg_locks where locktype = 'advisory' and not granted", CLOSERS);
	money_sql(fx->conn, "commit");
	int invoices = 0;
	for (int i = 0; i < CLOSERS; i++) {
		int status = finish(fx, closers[i]);
		if (status != 0)
			fail_msg("closer %d: exit status %d, said: %s", i, status, fx->output);
		for (const char *p = fx->output; (p = strstr(p, "inv_")); p++)
			invoices++;
	}
	assert_int_equal(invoices, 3);
	assert_int_equal(money_i64(fx->conn, "select count(*) from invoices"), 3);
	assert_int_equal(money_i64(fx->conn, "select count(*) from invoice_segments"),
		money_i64(fx->conn, "select count(*) from segments where state = 'billed'"));
	assert_int_equal(money_i64(fx->conn, "select sum(total_minor)::bigint from invoices"), 938);
	assert_run(fx, "reconcile", 0);
}

/* Killed at any moment, it leaves whole invoices or none; the next run does the rest. */
static void a_killed_close_leaves_nothing_half(void **state)
{
	struct fixture *fx = *state;
	struct check_random random = check_random_start();
	for (int i = 0; i < KILLS; i++) {
		(void)fflush(NULL);
		pid_t child = fork();
		assert_true(child >= 0);
		if (child == 0) {
			(void)setenv("TRAINYARD_DB_URL", fx->url, 1);
			(void)freopen("/dev/null", "w", stdout);
			execl(program, program, "close", "--all", NULL);
			_exit(127);
		}
		(void)usleep((useconds_t)check_random_range(&random, 0, 120000));
		(void)kill(child, SIGKILL);
		int status = 0;
		assert_int_equal(waitpid(child, &status, 0), child);
		assert_int_equal(
			money_i64(fx->conn, "select count(*) from invoices where status = 'draft'"), 0);
		assert_run(fx, "verify --all", 0);
	}
	assert_run(fx, "close --all", 0);
	assert_int_equal(money_i64(fx->conn, "select count(*) from invoices"), 3);
	assert_int_equal(money_i64(fx->conn, "select sum(total_minor)::bigint from invoices"), 938);
	assert_run(fx, "reconcile", 0);
}

static void a_gap_stops_the_close(void **state)
{
	struct fixture *fx = *state;
	money_sql(fx->conn,
		"alter table segments disable trigger user;"
		"delete from segments where state = 'lost'");
	assert_run(fx, "reconcile", 1);
	assert_said(fx, "dev_0: 59877.000 ms of service are in no segment; 1 gaps between segments");
	assert_said(fx, "WRONG");
	assert_run(fx, "reconcile --json", 1);
	assert_said(fx, "\"difference_ms\":59877,\"gaps\":1");
	assert_said(fx, "\"bad_devices\":1,\"invoices\":0,\"invoice_differences\":0,\"ok\":false}");
	assert_run(fx, "close --all", 1);
	assert_said(fx, "device time does not add up: nothing was finalized. dev_0: 59877.000 ms");
	assert_int_equal(money_i64(fx->conn, "select count(*) from invoices"), 0);
	money_sql(fx->conn,
		"insert into segments (device_id, period, state, reason, attempt_id, job_id, tenant_id)"
		" values ('dev_0', '[2025-02-01 00:03:00.123Z,2025-02-01 00:04:00Z)', 'lost', 'lost',"
		" 'att_1', 'job_1', 'tenant_a')");
	assert_run(fx, "close --all", 0);
}

static void a_wrong_line_is_found(void **state)
{
	struct fixture *fx = *state;
	assert_run(fx, "close --all", 0);
	char id[IDENT_MAX], command[128];
	money_text(
		fx->conn, "select min(id) from invoices where tenant_id = 'tenant_a'", IDENT_MAX, id);
	money_sql(fx->conn,
		"alter table invoice_lines disable trigger user;"
		"update invoice_lines set amount_minor = amount_minor + 1"
		" where invoice_id = '%s' and line = 1",
		id);
	(void)snprintf(command, sizeof(command), "verify %s", id);
	assert_run(fx, command, 1);
	assert_said(fx, "line 1 says 37 minor units, its segments cost 36");
	assert_said(fx, "its total is 900 minor units, its lines add up to 901");
	assert_run(fx, "verify --all", 1);
	assert_said(fx, "3 invoices checked, 3 differences");
	assert_run(fx, "reconcile", 1);
	assert_run(fx, "reconcile --json", 1);
	assert_said(fx, "\"invoice_differences\":3,\"ok\":false}");
}

static void the_shown_content_has_its_check_sum(void **state)
{
	struct fixture *fx = *state;
	assert_run(fx, "close --tenant=tenant_b", 0);
	char id[IDENT_MAX], sha256[128], command[128];
	money_text(fx->conn, "select id from invoices", IDENT_MAX, id);
	money_text(fx->conn, "select content_sha256 from invoices", sizeof(sha256), sha256);
	(void)snprintf(command, sizeof(command), "show %s --json | sha256sum", id);
	assert_run(fx, command, 0);
	assert_int_equal(strncmp(fx->output, sha256, 64), 0);
	(void)snprintf(command, sizeof(command), "show %s", id);
	assert_run(fx, command, 0);
	assert_said(fx, "Total   0.36 USD");
	assert_said(fx, sha256);
}

static void wrong_usage_is_said(void **state)
{
	struct fixture *fx = *state;
	static const struct {
		const char *arguments;
		int status;
		const char *says;
	} cases[] = {
		{ "", 2, "usage: trainyard-billing" },
		{ "close", 2, "give --tenant=ID or --all" },
		{ "close --all --tenant=tenant_a", 2, "give --tenant=ID or --all" },
		{ "close --tenant=tenant_x", 2, "there is no tenant tenant_x" },
		{ "close --all --from=yesterday", 2, "--from must be a time" },
		{ "close --all --from=2025-02-01T00:00:00Z --to=2025-01-01T00:00:00Z", 2, "before --to" },
		{ "close --all --to=9000-01-01T00:00:00Z", 2, "has not come yet" },
		{ "close --everything", 2, "there is no option --everything" },
		{ "reconcile --all", 2, "there is no option --all" },
		{ "verify", 2, "give an invoice or --all" },
		{ "verify inv_x", 2, "there is no invoice inv_x" },
		{ "show", 2, "give an invoice" },
		{ "audit", 2, "there is no command or setting audit" },
		{ "--db-url='host=/nonexistent' close --all", 3, "/nonexistent" },
		{ "--print-settings", 0, "TRAINYARD_DB_URL" },
		{ "--help", 0, "verify INVOICE | --all" },
		{ "close --help", 0, "close --tenant=ID | --all" },
		{ "reconcile --help", 0, "reconcile [--json]" },
		{ "show --help", 0, "show INVOICE" },
		{ "verify --help", 0, "verify INVOICE" },
	};
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		assert_run(fx, cases[i].arguments, cases[i].status);
		assert_said(fx, cases[i].says);
	}
	assert_int_equal(money_i64(fx->conn, "select count(*) from invoices"), 0);
}

#define billing_test(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(int argc, char **argv)
{
	if (argc != 2)
		return EXIT_FAILURE;
	program = argv[1];
	const struct CMUnitTest tests[] = {
		billing_test(a_second_close_adds_nothing),
		billing_test(explicit_months_are_separate),
		billing_test(eight_closers_make_one_set),
		billing_test(a_killed_close_leaves_nothing_half),
		billing_test(a_gap_stops_the_close),
		billing_test(a_wrong_line_is_found),
		billing_test(the_shown_content_has_its_check_sum),
		billing_test(wrong_usage_is_said),
	};
	return cmocka_run_group_tests(tests, group_setup, group_teardown);
}

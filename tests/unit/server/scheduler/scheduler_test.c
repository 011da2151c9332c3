/* SPDX-License-Identifier: Apache-2.0
 * Leadership of two schedulers in one process on a real database: one leads, losing the connection
 * ends that, somebody goes on. Waits are for a state, with an end. Run by with_pg.sh. */
#include "tests/unit/core/model/yard_fixture.h"

#include "server/app.h"
#include "server/http/hub_private.h"
#include "server/scheduler/scheduler.h"
#include "server/settings.h"

#include <time.h>

enum { WAIT_MS = 20000, LOOK_MS = 10 };

struct world {
	struct db_conn *conn;
	struct db_pool *hub_pool;
	struct settings_server settings;
	struct app app;
	struct scheduler *schedulers[2];
};

static int64_t now_ms(void)
{
	return clock_mono_us(clock_system()) / 1000;
}

/* Looks until the query says true. */
static void wait_until(struct db_conn *conn, const char *sql)
{
	char text[400];
	for (int64_t end = now_ms() + WAIT_MS; now_ms() < end;) {
		yard_text(conn, sql, "x", text);
		if (strcmp(text, "true") == 0)
			return;
		(void)nanosleep(&(struct timespec){ .tv_nsec = LOOK_MS * 1000000L }, NULL);
	}
	fail_msg("never true: %s", sql);
}

#define HELD_SQL                                                     \
	"select pid from pg_locks l join pg_stat_activity a using (pid)" \
	" where l.locktype = 'advisory' and l.granted and a.application_name = 'trainyard-scheduler'"

static void start(struct world *w, struct db_conn *conn)
{
	struct err err = { 0 };
	struct db_config config = { .url = getenv("TRAINYARD_TEST_DB_URL"), .size = 1 };
	*w = (struct world){ .conn = conn };
	w->app.settings = &w->settings;
	assert_ok(db_pool_create(&config, &w->hub_pool, &err));
	assert_ok(hub_create(w->hub_pool, clock_system(), &w->app.hub, &err));
	for (int i = 0; i < 2; i++)
		assert_ok(scheduler_start(&w->app, &config, &w->schedulers[i], &err));
	wait_until(conn, "select (count(*) = 1)::text from (" HELD_SQL ") x where $1 <> ''");
}

static void stop(struct world *w)
{
	for (int i = 0; i < 2; i++)
		scheduler_stop(w->schedulers[i]);
	hub_quit(w->app.hub);
	hub_destroy(w->app.hub);
	db_pool_destroy(w->hub_pool);
	wait_until(w->conn, "select (count(*) = 0)::text from (" HELD_SQL ") x where $1 <> ''");
}

static void one_leads_and_another_follows(void **state)
{
	struct db_conn *conn = ((struct store_fixture *)*state)->conn;
	struct err err = { 0 };
	struct world w;
	char pid[400], sql[400];
	start(&w, conn);
	assert_false(scheduler_is_leader(w.schedulers[0]) && scheduler_is_leader(w.schedulers[1]));
	for (int i = 0; i < 3; i++) {
		yard_text(conn, "select pid::text from (" HELD_SQL ") x where $1 <> ''", "x", pid);
		assert_ok(
			db_exec(conn, NULL, &err, "select pg_terminate_backend($1::text::int)", DB_TEXT(pid)));
		snprintf(sql, sizeof(sql),
			"select (count(*) = 1 and min(pid) <> %.20s)::text from (" HELD_SQL
			") x where $1 <> ''",
			pid);
		wait_until(conn, sql);
	}
	/* Whoever leads now works. */
	char tenant[IDENT_MAX], file[IDENT_MAX], job[IDENT_MAX];
	struct yard_agent g;
	store_tenant(conn, "us", tenant);
	store_file(conn, tenant, 'a', file);
	yard_agent(conn, "us-east-1", 1, &g);
	yard_job(conn, tenant, file, 1, job);
	for (int i = 0; i < 2; i++)
		scheduler_wake(w.schedulers[i]);
	wait_until(conn, "select (count(*) = 1)::text from attempts where $1 <> ''");
	stop(&w);
	scheduler_wake(NULL);
	scheduler_stop(NULL);
	assert_false(scheduler_is_leader(NULL));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(one_leads_and_another_follows),
	};
	return cmocka_run_group_tests(tests, store_group_setup, store_group_teardown);
}

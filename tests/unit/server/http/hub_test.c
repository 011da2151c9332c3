/* SPDX-License-Identifier: Apache-2.0
 * The hub loses no wake-up: touches, writes of other servers, deadlines, cancelling, quitting. Run
 * by with_pg.sh. */
#include "core/db/migrate.h"
#include "server/http/hub_private.h"
#include "tests/support/check.h"

#include <pthread.h>
#include <string.h>

enum { WAIT_S = 10, US_PER_MS = 1000, RACES = 3000 };

static const char topic[] = "agent:agent_1";
static const int64_t far_us = 3600LL * 1000000;

struct fixture {
	struct db_pool *pool;
	struct db_conn *conn;
	struct hub *hub;
};

/* A waiter that the test can wait for. */
struct sleeper {
	struct hub_waiter waiter;
	pthread_mutex_t lock;
	pthread_cond_t cond;
	int woken;
};

static void on_wake(struct hub_waiter *w)
{
	struct sleeper *s = (struct sleeper *)w;
	pthread_mutex_lock(&s->lock);
	s->woken++;
	pthread_cond_signal(&s->cond);
	pthread_mutex_unlock(&s->lock);
}

static void sleeper_init(struct sleeper *s, const char *name, int64_t since, int64_t wait_us)
{
	memset(s, 0, sizeof(*s));
	pthread_mutex_init(&s->lock, NULL);
	pthread_cond_init(&s->cond, NULL);
	s->waiter.wake = on_wake;
	s->waiter.since = since;
	s->waiter.deadline_us = clock_mono_us(clock_system()) + wait_us;
	(void)snprintf(s->waiter.topic, sizeof(s->waiter.topic), "%s", name);
}

static int woken(struct sleeper *s)
{
	pthread_mutex_lock(&s->lock);
	int n = s->woken;
	pthread_mutex_unlock(&s->lock);
	return n;
}

/* Milliseconds until it was woken. */
static int64_t wait_woken(struct sleeper *s)
{
	int64_t from_us = clock_mono_us(clock_system());
	struct timespec until;
	(void)clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += WAIT_S;
	pthread_mutex_lock(&s->lock);
	while (s->woken == 0)
		assert_int_equal(pthread_cond_timedwait(&s->cond, &s->lock, &until), 0);
	pthread_mutex_unlock(&s->lock);
	return (clock_mono_us(clock_system()) - from_us) / US_PER_MS;
}

static void sql(struct fixture *f, const char *text)
{
	struct err err = { 0 };
	int r = db_script(f->conn, text, &err);
	if (r < 0)
		fail_msg("%s", err.message);
}

static int set_up(void **state)
{
	static struct fixture f;
	struct err err = { 0 };
	int applied = 0;
	struct db_config config = {
		.url = getenv("TRAINYARD_TEST_DB_URL"),
		.application_name = "hub-test",
		.size = 2,
		.connect_timeout_s = 5,
		.statement_timeout_ms = 5000,
		.lock_timeout_ms = 2000,
		.idle_tx_timeout_ms = 20000,
	};
	assert_int_equal(db_pool_create(&config, &f.pool, &err), 0);
	assert_int_equal(db_pool_get(f.pool, 5000, &f.conn, &err), 0);
	assert_int_equal(migrate_run(f.conn, MIGRATIONS_DIR, &applied, &err), 0);
	sql(&f,
		"insert into api_keys (id, role, name, secret_hash, redacted, agent_region)"
		" values ('key_1', 'agent', 'a', '\\x00', 'ty', 'us');"
		"insert into agents (id, key_id, name, region, instance_type, boot_id, engine_build)"
		" select 'agent_1', 'key_1', 'a', 'us', name, 'b', '0' from instance_types limit 1");
	assert_int_equal(hub_create(f.pool, clock_system(), &f.hub, &err), 0);
	*state = &f;
	return 0;
}

static int tear_down(void **state)
{
	struct fixture *f = *state;
	hub_destroy(f->hub);
	db_pool_put(f->pool, f->conn);
	db_pool_destroy(f->pool);
	return 0;
}

/* A topic whose number the hub has learnt: nothing of it is new any more. */
static void learn(struct fixture *f)
{
	struct sleeper s;
	sleeper_init(&s, topic, 0, far_us);
	assert_int_equal(hub_wait(f->hub, &s.waiter), 0);
	(void)wait_woken(&s);
}

static void a_touch_wakes_and_only_once(void **state)
{
	struct fixture *f = *state;
	struct sleeper s;
	learn(f);
	sleeper_init(&s, topic, hub_mark(f->hub), far_us);
	assert_int_equal(hub_wait(f->hub, &s.waiter), 0);
	hub_touch(f->hub, "agent:agent_2");
	assert_int_equal(woken(&s), 0);
	hub_touch(f->hub, topic);
	hub_touch(f->hub, topic);
	assert_int_equal(woken(&s), 1);
	assert_false(hub_cancel(f->hub, &s.waiter));
}

static void a_touch_between_reading_and_waiting_is_not_lost(void **state)
{
	struct fixture *f = *state;
	struct sleeper s;
	learn(f);
	int64_t mark = hub_mark(f->hub);
	hub_touch(f->hub, topic);
	sleeper_init(&s, topic, mark, far_us);
	assert_int_equal(hub_wait(f->hub, &s.waiter), 0);
	assert_int_equal(woken(&s), 1);
}

static void another_servers_write_wakes(void **state)
{
	struct fixture *f = *state;
	struct sleeper s;
	learn(f);
	sleeper_init(&s, topic, hub_mark(f->hub), far_us);
	assert_int_equal(hub_wait(f->hub, &s.waiter), 0);
	sql(f, "update agents set version = version + 1 where id = 'agent_1'");
	assert_true(wait_woken(&s) < 5000);
}

static void a_deadline_wakes(void **state)
{
	struct fixture *f = *state;
	struct sleeper s;
	learn(f);
	sleeper_init(&s, topic, hub_mark(f->hub), 100 * US_PER_MS);
	assert_int_equal(hub_wait(f->hub, &s.waiter), 0);
	int64_t ms = wait_woken(&s);
	assert_true(ms >= 95 && ms < 5000);
}

static void cancelled_is_not_woken(void **state)
{
	struct fixture *f = *state;
	struct sleeper s;
	learn(f);
	sleeper_init(&s, topic, hub_mark(f->hub), far_us);
	assert_int_equal(hub_wait(f->hub, &s.waiter), 0);
	assert_true(hub_cancel(f->hub, &s.waiter));
	assert_false(hub_cancel(f->hub, &s.waiter));
	hub_touch(f->hub, topic);
	assert_int_equal(woken(&s), 0);
}

static void strange_topics_are_refused(void **state)
{
	struct fixture *f = *state;
	static const char *const bad[] = { "", "job:", "agent_1", "user:1", "job:a,b", "job:{}",
		"job:\"", "job:123456789012345678901234567890123456789012345" };
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct sleeper s;
		sleeper_init(&s, bad[i], 0, far_us);
		assert_int_equal(hub_wait(f->hub, &s.waiter), ERR_INVALID_VALUE);
	}
}

static void *touch_often(void *arg)
{
	struct fixture *f = arg;
	for (int i = 0; i < RACES; i++)
		hub_touch(f->hub, topic);
	return NULL;
}

/* Waiters and touches at once: whoever waits is woken by a later touch, or at the end by quitting,
 * and nobody twice. */
static void races_then_quit(void **state)
{
	struct fixture *f = *state;
	pthread_t thread;
	static struct sleeper s[RACES];
	assert_int_equal(pthread_create(&thread, NULL, touch_often, f), 0);
	for (int i = 0; i < RACES; i++) {
		sleeper_init(&s[i], topic, hub_mark(f->hub), far_us);
		assert_int_equal(hub_wait(f->hub, &s[i].waiter), 0);
	}
	pthread_join(thread, NULL);
	hub_quit(f->hub);
	for (int i = 0; i < RACES; i++)
		assert_int_equal(woken(&s[i]), 1);
	struct sleeper late;
	sleeper_init(&late, topic, hub_mark(f->hub), far_us);
	assert_int_equal(hub_wait(f->hub, &late.waiter), 0);
	assert_int_equal(woken(&late), 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_touch_wakes_and_only_once),
		cmocka_unit_test(a_touch_between_reading_and_waiting_is_not_lost),
		cmocka_unit_test(another_servers_write_wakes),
		cmocka_unit_test(a_deadline_wakes),
		cmocka_unit_test(cancelled_is_not_woken),
		cmocka_unit_test(strange_topics_are_refused),
		cmocka_unit_test(races_then_quit),
	};
	return cmocka_run_group_tests(tests, set_up, tear_down);
}

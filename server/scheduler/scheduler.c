/* SPDX-License-Identifier: Apache-2.0
 * The scheduler's thread and its leadership. All writes of a pass go over the connection that holds
 * the lock, so whoever loses the one cannot do the other. */
#include "server/scheduler/scheduler.h"

#include "core/base/log.h"
#include "server/app.h"
#include "server/http/hub.h"
#include "server/scheduler/pass.h"
#include "server/settings.h"
#include "server/storage/blob.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

enum { DROP_EVERY = 25, /* passes */ GET_WAIT_MS = 1000 };
static const int64_t LEADER_KEY = 0x747261696e796172; /* "trainyar" */

struct scheduler {
	struct app *app;
	struct db_pool *pool; /* one connection */
	pthread_t thread;
	struct pass_failures failures; /* the thread's */
	pthread_mutex_t mutex;
	pthread_cond_t wake;
	bool woken;
	bool stopping;
	atomic_bool leader;
};

static void touch(void *ctx, const char *topic)
{
	struct scheduler *s = ctx;
	hub_touch(s->app->hub, topic);
}

static int remove_content(void *ctx, const char *tenant_id, const char *sha256, struct err *err)
{
	struct scheduler *s = ctx;
	return blob_store_remove(s->app->blobs, tenant_id, sha256, err);
}

/* Returns true when the thread must end. */
static bool wait_ms(struct scheduler *s, int ms)
{
	struct timespec until;
	(void)clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += ms / 1000;
	until.tv_nsec += (long)(ms % 1000) * 1000000;
	if (until.tv_nsec >= 1000000000) {
		until.tv_sec++;
		until.tv_nsec -= 1000000000;
	}
	pthread_mutex_lock(&s->mutex);
	while (!s->stopping && !s->woken)
		if (pthread_cond_timedwait(&s->wake, &s->mutex, &until) == ETIMEDOUT)
			break;
	s->woken = false;
	bool stopping = s->stopping;
	pthread_mutex_unlock(&s->mutex);
	return stopping;
}

static int run_pass(struct scheduler *s, struct db_conn *conn, bool drop, struct err *err)
{
	struct pass_hooks hooks = { .clock = s->app->clock,
		.failures = &s->failures,
		.elastic_wait_ms = s->app->settings->elastic_wait_ms,
		.ctx = s,
		.touch = touch,
		.remove = remove_content };
	int count;
	int rc = pass_expire(conn, &hooks, &count, err);
	if (rc == 0)
		rc = pass_place(conn, &hooks, &count, err);
	if (rc == 0 && drop)
		rc = pass_drop(conn, &hooks, &count, err);
	return rc;
}

/* Leads until the connection fails or the thread must end. */
static void lead(struct scheduler *s, struct db_conn *conn)
{
	atomic_store(&s->leader, true);
	log_info("scheduler.leading");
	for (unsigned pass = 0;; pass++) {
		struct err err = { 0 };
		int rc = run_pass(s, conn, pass % DROP_EVERY == 0, &err);
		if (rc < 0)
			log_error("scheduler.pass_failed", LOG_ERR(&err));
		if (rc == ERR_DATABASE)
			break;
		if (wait_ms(s, rc < 0 ? SCHEDULER_RETRY_MS : SCHEDULER_PASS_MS))
			break;
	}
	atomic_store(&s->leader, false);
}

static bool try_lead(struct scheduler *s, struct db_conn *conn, struct err *err)
{
	bool got = false;
	int rc = db_try_lock(conn, LEADER_KEY, &got, err);
	if (rc < 0)
		return false;
	if (got)
		lead(s, conn);
	return !got; /* another one leads: keep the connection and ask again */
}

static void *run(void *arg)
{
	struct scheduler *s = arg;
	struct db_conn *conn = NULL;
	do {
		struct err err = { 0 };
		if (conn == NULL && db_pool_get(s->pool, GET_WAIT_MS, &conn, &err) < 0) {
			log_warn("scheduler.no_database", LOG_ERR(&err));
			continue;
		}
		if (!try_lead(s, conn, &err)) {
			db_pool_put(s->pool, conn);
			conn = NULL;
		}
	} while (!wait_ms(s, SCHEDULER_RETRY_MS));
	db_pool_put(s->pool, conn);
	return NULL;
}

static void destroy(struct scheduler *s)
{
	db_pool_destroy(s->pool);
	pthread_cond_destroy(&s->wake);
	pthread_mutex_destroy(&s->mutex);
	free(s);
}

int scheduler_start(
	struct app *app, const struct db_config *config, struct scheduler **ret, struct err *err)
{
	struct scheduler *s = calloc(1, sizeof(*s));
	if (s == NULL)
		return err_set(err, ERR_NO_MEMORY, NULL, "No memory for the scheduler.");
	s->app = app;
	pthread_condattr_t attr;
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&s->wake, &attr);
	pthread_condattr_destroy(&attr);
	pthread_mutex_init(&s->mutex, NULL);
	struct db_config one = *config;
	one.size = 1;
	one.application_name = "trainyard-scheduler";
	int rc = db_pool_create(&one, &s->pool, err);
	if (rc == 0 && pthread_create(&s->thread, NULL, run, s) != 0)
		rc = err_set(err, ERR_INTERNAL, NULL, "The scheduler's thread cannot be started.");
	if (rc < 0) {
		destroy(s);
		return rc;
	}
	*ret = s;
	return 0;
}

void scheduler_stop(struct scheduler *s)
{
	if (s == NULL)
		return;
	pthread_mutex_lock(&s->mutex);
	s->stopping = true;
	pthread_cond_signal(&s->wake);
	pthread_mutex_unlock(&s->mutex);
	pthread_join(s->thread, NULL);
	destroy(s);
}

void scheduler_wake(struct scheduler *s)
{
	if (s == NULL)
		return;
	pthread_mutex_lock(&s->mutex);
	s->woken = true;
	pthread_cond_signal(&s->wake);
	pthread_mutex_unlock(&s->mutex);
}

bool scheduler_is_leader(const struct scheduler *s)
{
	return s != NULL && atomic_load(&s->leader);
}

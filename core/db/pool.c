/* SPDX-License-Identifier: Apache-2.0
 * The pool: at most size connections, opened on first use, the latest used first. Thread-safe;
 * a connection that was got belongs to its thread until it is put back. */
#include "core/base/clock.h"
#include "core/db/db_private.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
	POOL_SIZE_MAX = 1024,
	CONNECT_TIMEOUT_S = 5,
	STATEMENT_TIMEOUT_MS = 10000,
	LOCK_TIMEOUT_MS = 5000,
	IDLE_TX_TIMEOUT_MS = 30000,
	TX_PAUSE_US = 2000, /* doubles with each try, plus as much by chance */
};

struct db_pool {
	struct db_config config; /* strings owned */
	char *url;
	char *application_name;
	pthread_mutex_t mutex;
	pthread_cond_t returned;
	int made; /* idle and handed out */
	int idle_count;
	struct db_conn **idle;
};

static void pool_freep(struct db_pool **p)
{
	struct db_pool *pool = *p;
	if (!pool)
		return;
	free(pool->url);
	free(pool->application_name);
	free(pool->idle);
	free(pool);
}

static int check_url(const char *url, struct err *err)
{
	char *why = NULL;
	PQconninfoOption *options = PQconninfoParse(url, &why);
	if (options) {
		PQconninfoFree(options);
		return 0;
	}
	/* Not the URL itself: it may hold a password. */
	int r = err_set(err, ERR_INVALID_VALUE, NULL, "the database URL cannot be read%s",
		why ? "" : ": out of memory");
	PQfreemem(why);
	return r;
}

static int init_sync(struct db_pool *pool)
{
	pthread_condattr_t attr;
	if (pthread_condattr_init(&attr) != 0)
		return ERR_NO_MEMORY;
	int failed = pthread_condattr_setclock(&attr, CLOCK_MONOTONIC) ||
		pthread_cond_init(&pool->returned, &attr);
	(void)pthread_condattr_destroy(&attr);
	if (failed)
		return ERR_NO_MEMORY;
	if (pthread_mutex_init(&pool->mutex, NULL) != 0) {
		(void)pthread_cond_destroy(&pool->returned);
		return ERR_NO_MEMORY;
	}
	return 0;
}

/* Every wait needs an end: 0 takes the default. */
static void fill_config(struct db_pool *pool, const struct db_config *config)
{
	pool->config = *config;
	pool->config.url = pool->url;
	pool->config.application_name = pool->application_name;
	struct db_config *c = &pool->config;
	if (c->connect_timeout_s <= 0)
		c->connect_timeout_s = CONNECT_TIMEOUT_S;
	if (c->statement_timeout_ms <= 0)
		c->statement_timeout_ms = STATEMENT_TIMEOUT_MS;
	if (c->lock_timeout_ms <= 0)
		c->lock_timeout_ms = LOCK_TIMEOUT_MS;
	if (c->idle_tx_timeout_ms <= 0)
		c->idle_tx_timeout_ms = IDLE_TX_TIMEOUT_MS;
}

int db_pool_create(const struct db_config *config, struct db_pool **ret, struct err *err)
{
	if (config->size < 1 || config->size > POOL_SIZE_MAX)
		return err_set(err, ERR_INVALID_VALUE, NULL,
			"the database pool has %d connections; 1 to %d are possible", config->size,
			POOL_SIZE_MAX);
	int r = check_url(config->url, err);
	if (r < 0)
		return r;
	cleanup(pool_freep) struct db_pool *pool = calloc(1, sizeof(*pool));
	if (!pool)
		return err_set(err, ERR_NO_MEMORY, NULL, "out of memory");
	pool->url = strdup(config->url);
	pool->application_name =
		strdup(config->application_name ? config->application_name : "trainyard");
	pool->idle = calloc((size_t)config->size, sizeof(*pool->idle));
	if (!pool->url || !pool->application_name || !pool->idle)
		return err_set(err, ERR_NO_MEMORY, NULL, "out of memory");
	fill_config(pool, config);
	r = init_sync(pool);
	if (r < 0)
		return err_set(err, r, NULL, "out of memory");
	*ret = take_ptr(pool);
	return 0;
}

static void conn_destroy(struct db_conn *conn)
{
	db_conn_close(conn);
	free(conn);
}

void db_pool_destroy(struct db_pool *pool)
{
	if (!pool)
		return;
	assert(pool->made == pool->idle_count);
	for (int i = 0; i < pool->idle_count; i++)
		conn_destroy(pool->idle[i]);
	(void)pthread_cond_destroy(&pool->returned);
	(void)pthread_mutex_destroy(&pool->mutex);
	pool_freep(&pool);
}

static struct timespec deadline_after_ms(int ms)
{
	struct timespec ts;
	(void)clock_gettime(CLOCK_MONOTONIC, &ts);
	int64_t ns = (int64_t)ts.tv_nsec + (int64_t)(ms % 1000) * 1000000;
	ts.tv_sec += ms / 1000 + (time_t)(ns / 1000000000);
	ts.tv_nsec = (long)(ns % 1000000000);
	return ts;
}

/* A place in the pool: an idle connection, or NULL for the right to make one. */
static int take_place(struct db_pool *pool, int wait_ms, struct db_conn **ret, struct err *err)
{
	struct timespec deadline = deadline_after_ms(wait_ms < 0 ? 0 : wait_ms);
	int r = 0;
	(void)pthread_mutex_lock(&pool->mutex);
	while (pool->idle_count == 0 && pool->made == pool->config.size && r == 0)
		r = pthread_cond_timedwait(&pool->returned, &pool->mutex, &deadline);
	bool got = true;
	if (pool->idle_count > 0)
		*ret = pool->idle[--pool->idle_count];
	else if (pool->made < pool->config.size)
		pool->made++;
	else
		got = false;
	(void)pthread_mutex_unlock(&pool->mutex);
	if (got)
		return 0;
	(void)err_set(err, ERR_OVERLOADED, NULL,
		"no database connection became free within %d ms (%d are in use)", wait_ms,
		pool->config.size);
	if (err)
		err->retry_after_s = 1;
	return ERR_OVERLOADED;
}

static void leave_place(struct db_pool *pool)
{
	(void)pthread_mutex_lock(&pool->mutex);
	pool->made--;
	(void)pthread_cond_signal(&pool->returned);
	(void)pthread_mutex_unlock(&pool->mutex);
}

int db_pool_get(struct db_pool *pool, int wait_ms, struct db_conn **ret, struct err *err)
{
	struct db_conn *conn = NULL;
	int r = take_place(pool, wait_ms, &conn, err);
	if (r < 0)
		return r;
	if (!conn) {
		conn = calloc(1, sizeof(*conn));
		if (!conn) {
			leave_place(pool);
			return err_set(err, ERR_NO_MEMORY, NULL, "out of memory");
		}
		conn->config = &pool->config;
	}
	if (!db_conn_is_alive(conn)) {
		db_conn_close(conn);
		r = db_conn_open(conn, err);
		if (r < 0) {
			conn_destroy(conn);
			leave_place(pool);
			return r;
		}
	}
	*ret = conn;
	return 0;
}

void db_pool_put(struct db_pool *pool, struct db_conn *conn)
{
	if (!conn)
		return;
	db_rollback(conn);
	if (!conn->pg || conn->broken || conn->has_locks || PQstatus(conn->pg) != CONNECTION_OK ||
		PQtransactionStatus(conn->pg) != PQTRANS_IDLE) {
		conn_destroy(conn);
		leave_place(pool);
		return;
	}
	(void)pthread_mutex_lock(&pool->mutex);
	assert(pool->idle_count < pool->made);
	pool->idle[pool->idle_count++] = conn;
	(void)pthread_cond_signal(&pool->returned);
	(void)pthread_mutex_unlock(&pool->mutex);
}

static int try_tx(struct db_pool *pool, int wait_ms, db_tx_fn fn, void *ctx, struct err *err)
{
	struct db_conn *conn = NULL;
	int r = db_pool_get(pool, wait_ms, &conn, err);
	if (r < 0)
		return r;
	r = db_begin(conn, err);
	if (r == 0)
		r = fn(conn, ctx, err);
	if (r == 0)
		r = db_commit(conn, err);
	db_pool_put(pool, conn); /* rolls back what was not committed */
	return r;
}

/* Rivals that met should not meet again at once. */
static void pause_before_retry(int tried)
{
	int64_t pause_us = (int64_t)TX_PAUSE_US << tried;
	pause_us += clock_mono_us(clock_system()) % pause_us;
	struct timespec ts = { .tv_sec = pause_us / 1000000, .tv_nsec = pause_us % 1000000 * 1000 };
	(void)nanosleep(&ts, NULL);
}

int db_tx(struct db_pool *pool, int wait_ms, db_tx_fn fn, void *ctx, struct err *err)
{
	int r = 0;
	for (int tried = 0; tried < DB_TX_TRIES; tried++) {
		if (tried > 0)
			pause_before_retry(tried);
		r = try_tx(pool, wait_ms, fn, ctx, err);
		if (r != ERR_DB_CONFLICT)
			break;
	}
	return r;
}

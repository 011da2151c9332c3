/* SPDX-License-Identifier: Apache-2.0
 * Topics, who waits for them, and the thread that asks the database for their numbers. No wake-up
 * is lost: a waiter says up to which change of the hub it has seen (since), and a topic whose
 * number is not known yet counts as changed once it is. */
#include "server/http/hub_private.h"

#include "core/base/log.h"
#include "core/model/watch_store.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
	HUB_BUCKETS = 4096,
	US_PER_MS = 1000,
	NS_PER_US = 1000,
	US_PER_S = 1000000,
	HUB_DB_WAIT_MS = 500,
};

struct hub_topic {
	char name[HUB_TOPIC_MAX];
	enum watch_kind kind;
	const char *id; /* inside name */
	bool known;     /* number was read once */
	int64_t number;
	int64_t changed;     /* hub->changes at the last change */
	int64_t unwaited_us; /* when its last waiter left */
	struct hub_waiter *waiters;
	struct hub_topic *next;
};

struct hub {
	const struct clock *clock;
	struct db_pool *pool;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t tick;
	bool quitting; /* wake everybody */
	bool ending;   /* end the thread */
	bool db_failing;
	int64_t changes;
	struct hub_topic *buckets[HUB_BUCKETS];
};

static uint32_t hash(const char *name)
{
	uint32_t h = 2166136261u; /* FNV-1a */
	for (; *name; name++)
		h = (h ^ (unsigned char)*name) * 16777619u;
	return h;
}

static struct hub_topic *find(struct hub *hub, const char *name)
{
	struct hub_topic *t = hub->buckets[hash(name) % HUB_BUCKETS];
	while (t && strcmp(t->name, name) != 0)
		t = t->next;
	return t;
}

static bool split(const char *name, enum watch_kind *ret_kind, size_t *ret_id_at)
{
	static const char *const prefixes[] = { [WATCH_JOB] = "job:", [WATCH_AGENT] = "agent:" };
	for (int k = 0; k < (int)ARRAY_LEN(prefixes); k++) {
		size_t len = strlen(prefixes[k]);
		if (strncmp(name, prefixes[k], len) == 0 && watch_store_id_ok(name + len)) {
			*ret_kind = (enum watch_kind)k;
			*ret_id_at = len;
			return true;
		}
	}
	return false;
}

static int make(struct hub *hub, const char *name, struct hub_topic **ret)
{
	enum watch_kind kind;
	size_t id_at;
	if (strlen(name) >= HUB_TOPIC_MAX || !split(name, &kind, &id_at))
		return ERR_INVALID_VALUE;
	struct hub_topic *t = calloc(1, sizeof(*t));
	if (!t)
		return ERR_NO_MEMORY;
	memcpy(t->name, name, strlen(name) + 1);
	t->kind = kind;
	t->id = t->name + id_at;
	struct hub_topic **bucket = &hub->buckets[hash(name) % HUB_BUCKETS];
	t->next = *bucket;
	*bucket = t;
	*ret = t;
	return 0;
}

static void detach(struct hub *hub, struct hub_waiter *w)
{
	if (w->prev)
		w->prev->next = w->next;
	else
		w->of->waiters = w->next;
	if (w->next)
		w->next->prev = w->prev;
	if (!w->of->waiters)
		w->of->unwaited_us = clock_mono_us(hub->clock);
	w->of = NULL;
	w->prev = w->next = NULL;
}

static void wake(struct hub *hub, struct hub_waiter *w)
{
	detach(hub, w);
	w->wake(w);
}

static void changed(struct hub *hub, struct hub_topic *t)
{
	t->changed = ++hub->changes;
	while (t->waiters)
		wake(hub, t->waiters);
}

void hub_touch(struct hub *hub, const char *topic)
{
	pthread_mutex_lock(&hub->lock);
	struct hub_topic *t = find(hub, topic);
	if (t)
		changed(hub, t);
	pthread_mutex_unlock(&hub->lock);
}

int64_t hub_mark(struct hub *hub)
{
	pthread_mutex_lock(&hub->lock);
	int64_t mark = hub->changes;
	pthread_mutex_unlock(&hub->lock);
	return mark;
}

int hub_wait(struct hub *hub, struct hub_waiter *w)
{
	pthread_mutex_lock(&hub->lock);
	struct hub_topic *t = find(hub, w->topic);
	int r = t ? 0 : make(hub, w->topic, &t);
	if (r == 0) {
		w->of = t;
		w->prev = NULL;
		w->next = t->waiters;
		if (t->waiters)
			t->waiters->prev = w;
		t->waiters = w;
		if (hub->quitting || t->changed > w->since)
			wake(hub, w);
	}
	pthread_mutex_unlock(&hub->lock);
	return r;
}

bool hub_cancel(struct hub *hub, struct hub_waiter *w)
{
	pthread_mutex_lock(&hub->lock);
	bool registered = w->of != NULL;
	if (registered)
		detach(hub, w);
	pthread_mutex_unlock(&hub->lock);
	return registered;
}

void hub_quit(struct hub *hub)
{
	pthread_mutex_lock(&hub->lock);
	hub->quitting = true;
	for (size_t b = 0; b < HUB_BUCKETS; b++) {
		for (struct hub_topic *t = hub->buckets[b]; t; t = t->next) {
			while (t->waiters)
				wake(hub, t->waiters);
		}
	}
	pthread_mutex_unlock(&hub->lock);
}

/* ---------------------------------------------------------------- the thread */

/* Wakes those whose time is up, forgets old topics, and collects what to ask the database. */
static void sweep(struct hub *hub, struct watch_list *ask)
{
	int64_t now_us = clock_mono_us(hub->clock);
	for (size_t b = 0; b < HUB_BUCKETS; b++) {
		struct hub_topic **at = &hub->buckets[b];
		while (*at) {
			struct hub_topic *t = *at;
			for (struct hub_waiter *w = t->waiters, *next; w; w = next) {
				next = w->next;
				if (now_us >= w->deadline_us)
					wake(hub, w);
			}
			if (t->waiters) {
				watch_list_add(ask, t->kind, t->id);
			} else if (now_us - t->unwaited_us > (int64_t)HUB_KEEP_MS * US_PER_MS) {
				*at = t->next;
				free(t);
				continue;
			}
			at = &t->next;
		}
	}
}

/* One answer of the database: runs without the lock held, so it takes it. */
static void learn(void *ctx, enum watch_kind kind, const char *id, int64_t number)
{
	struct hub *hub = ctx;
	char name[HUB_TOPIC_MAX];
	int len = snprintf(name, sizeof(name), "%s:%s", kind == WATCH_JOB ? "job" : "agent", id);
	if (len < 0 || (size_t)len >= sizeof(name))
		return;
	pthread_mutex_lock(&hub->lock);
	struct hub_topic *t = find(hub, name);
	if (t && (!t->known || t->number != number)) {
		t->known = true;
		t->number = number;
		changed(hub, t);
	}
	pthread_mutex_unlock(&hub->lock);
}

static int ask_database(struct hub *hub, struct watch_list *ask)
{
	struct err err = { 0 };
	struct db_conn *conn = NULL;
	int r = db_pool_get(hub->pool, HUB_DB_WAIT_MS, &conn, &err);
	if (r == 0)
		r = watch_store_read(conn, ask, learn, hub, &err);
	db_pool_put(hub->pool, conn);
	if (r < 0 && !hub->db_failing)
		log_warn("hub.database", LOG_ERR(&err));
	hub->db_failing = r < 0;
	return r;
}

static void pause_for(struct hub *hub, int ms)
{
	struct timespec until;
	(void)clock_gettime(CLOCK_MONOTONIC, &until);
	int64_t us = until.tv_nsec / NS_PER_US + (int64_t)ms * US_PER_MS;
	until.tv_sec += us / US_PER_S;
	until.tv_nsec = (us % US_PER_S) * NS_PER_US;
	while (!hub->ending && pthread_cond_timedwait(&hub->tick, &hub->lock, &until) != ETIMEDOUT) {
	}
}

static void *loop(void *arg)
{
	struct hub *hub = arg;
	int64_t retry_us = 0;
	pthread_mutex_lock(&hub->lock);
	while (!hub->ending) {
		struct watch_list ask;
		watch_list_init(&ask);
		sweep(hub, &ask);
		pthread_mutex_unlock(&hub->lock);
		int64_t now_us = clock_mono_us(hub->clock);
		if (!watch_list_is_empty(&ask) && now_us >= retry_us && ask_database(hub, &ask) < 0)
			retry_us = clock_mono_us(hub->clock) + (int64_t)HUB_RETRY_MS * US_PER_MS;
		watch_list_finish(&ask);
		pthread_mutex_lock(&hub->lock);
		pause_for(hub, HUB_POLL_MS);
	}
	pthread_mutex_unlock(&hub->lock);
	return NULL;
}

int hub_create(struct db_pool *pool, const struct clock *clock, struct hub **ret, struct err *err)
{
	struct hub *hub = calloc(1, sizeof(*hub));
	if (!hub)
		return err_set(err, ERR_NO_MEMORY, NULL, "Out of memory");
	hub->pool = pool;
	hub->clock = clock;
	pthread_mutex_init(&hub->lock, NULL);
	pthread_condattr_t attr;
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&hub->tick, &attr);
	pthread_condattr_destroy(&attr);
	int failed = pthread_create(&hub->thread, NULL, loop, hub);
	if (failed) {
		free(hub);
		return err_errno(err, ERR_NO_MEMORY, failed, "starting the hub's thread");
	}
	*ret = hub;
	return 0;
}

void hub_destroy(struct hub *hub)
{
	if (!hub)
		return;
	pthread_mutex_lock(&hub->lock);
	hub->ending = true;
	pthread_cond_signal(&hub->tick);
	pthread_mutex_unlock(&hub->lock);
	pthread_join(hub->thread, NULL);
	for (size_t b = 0; b < HUB_BUCKETS; b++) {
		while (hub->buckets[b]) {
			struct hub_topic *t = hub->buckets[b];
			assert(!t->waiters);
			hub->buckets[b] = t->next;
			free(t);
		}
	}
	pthread_cond_destroy(&hub->tick);
	pthread_mutex_destroy(&hub->lock);
	free(hub);
}

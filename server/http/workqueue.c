/* SPDX-License-Identifier: Apache-2.0
 * A few lists under one lock: at some ten thousand requests a second it is far from contended. */
#include "server/http/workqueue.h"

#include "core/base/err.h"
#include "server/http/stats.h"

#include <assert.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

enum {
	FAIR_EVERY = 8, /* every so many takes, the last lane goes first: nobody starves */
	WORKER_STACK_BYTES = 1024 * 1024,
};

struct lane {
	struct work *head;
	struct work **tail;
	int depth;
};

struct workqueue {
	pthread_mutex_t lock;
	pthread_cond_t more;
	struct lane lanes[WORKQUEUE_LANES];
	int lane_max;
	struct http_stats *stats;
	unsigned int takes;
	bool ending;
	int thread_count;
	pthread_t threads[];
};

static void count(struct workqueue *q, int by)
{
	if (q->stats)
		http_stats_gauge_add(q->stats, GAUGE_QUEUE_DEPTH, by);
}

static struct work *take_from(struct lane *l)
{
	struct work *w = l->head;
	if (!w)
		return NULL;
	l->head = w->next;
	if (!l->head)
		l->tail = &l->head;
	l->depth--;
	w->next = NULL;
	return w;
}

static struct work *take(struct workqueue *q)
{
	bool turned = ++q->takes % FAIR_EVERY == 0;
	for (int i = 0; i < WORKQUEUE_LANES; i++) {
		struct work *w = take_from(&q->lanes[turned ? WORKQUEUE_LANES - 1 - i : i]);
		if (w)
			return w;
	}
	return NULL;
}

static void *work_loop(void *arg)
{
	struct workqueue *q = arg;
	pthread_mutex_lock(&q->lock);
	for (;;) {
		struct work *w = take(q);
		if (w) {
			pthread_mutex_unlock(&q->lock);
			count(q, -1);
			w->run(w);
			pthread_mutex_lock(&q->lock);
		} else if (q->ending) {
			break;
		} else {
			pthread_cond_wait(&q->more, &q->lock);
		}
	}
	pthread_mutex_unlock(&q->lock);
	return NULL;
}

int workqueue_create(int threads, int lane_max, struct http_stats *stats, struct workqueue **ret)
{
	struct workqueue *q = calloc(1, sizeof(*q) + (size_t)threads * sizeof(pthread_t));
	if (!q)
		return ERR_NO_MEMORY;
	pthread_mutex_init(&q->lock, NULL);
	pthread_cond_init(&q->more, NULL);
	q->lane_max = lane_max;
	q->stats = stats;
	for (int i = 0; i < WORKQUEUE_LANES; i++)
		q->lanes[i].tail = &q->lanes[i].head;
	pthread_attr_t attr;
	pthread_attr_init(&attr);
	(void)pthread_attr_setstacksize(&attr, WORKER_STACK_BYTES);
	int failed = 0;
	while (q->thread_count < threads && !failed) {
		failed = pthread_create(&q->threads[q->thread_count], &attr, work_loop, q);
		q->thread_count += !failed;
	}
	pthread_attr_destroy(&attr);
	if (failed) {
		workqueue_destroy(q);
		return ERR_NO_MEMORY;
	}
	*ret = q;
	return 0;
}

void workqueue_destroy(struct workqueue *q)
{
	if (!q)
		return;
	pthread_mutex_lock(&q->lock);
	q->ending = true;
	pthread_cond_broadcast(&q->more);
	pthread_mutex_unlock(&q->lock);
	for (int i = 0; i < q->thread_count; i++)
		pthread_join(q->threads[i], NULL);
	pthread_cond_destroy(&q->more);
	pthread_mutex_destroy(&q->lock);
	free(q);
}

static void append(struct workqueue *q, enum workqueue_lane lane, struct work *w)
{
	struct lane *l = &q->lanes[lane];
	w->next = NULL;
	*l->tail = w;
	l->tail = &w->next;
	l->depth++;
	count(q, 1);
	pthread_cond_signal(&q->more);
}

int workqueue_push(struct workqueue *q, enum workqueue_lane lane, struct work *w)
{
	assert(lane != LANE_AGAIN);
	pthread_mutex_lock(&q->lock);
	bool full = q->lanes[lane].depth >= q->lane_max || q->ending;
	if (!full)
		append(q, lane, w);
	pthread_mutex_unlock(&q->lock);
	return full ? ERR_OVERLOADED : 0;
}

void workqueue_push_again(struct workqueue *q, struct work *w)
{
	pthread_mutex_lock(&q->lock);
	append(q, LANE_AGAIN, w);
	pthread_mutex_unlock(&q->lock);
}

/* SPDX-License-Identifier: Apache-2.0
 * Independent pieces of work on several threads, while a data set is opened. What comes out does
 * not depend on how many there are: of several failures the one that came first in order is told.
 */
#include "workers/engine/data/data_private.h"

#include <pthread.h>

struct crew {
	pthread_mutex_t lock;
	int64_t next, count; /* next: to be handed out */
	data_parallel_fn fn;
	void *ctx;
	int64_t failed; /* the least that failed; count: none */
	int code;
	struct err *err;
};

static void *work(void *arg)
{
	struct crew *c = arg;
	pthread_mutex_lock(&c->lock);
	while (c->next < c->count && c->next < c->failed) {
		int64_t i = c->next++;
		pthread_mutex_unlock(&c->lock);
		struct err err = { 0 };
		int rc = c->fn(c->ctx, i, &err);
		pthread_mutex_lock(&c->lock);
		if (rc && i < c->failed) {
			c->failed = i;
			c->code = rc;
			if (c->err)
				*c->err = err;
		}
	}
	pthread_mutex_unlock(&c->lock);
	return NULL;
}

int data_parallel(int threads, int64_t count, data_parallel_fn fn, void *ctx, struct err *err)
{
	struct crew c = { .lock = PTHREAD_MUTEX_INITIALIZER,
		.count = count,
		.failed = count,
		.fn = fn,
		.ctx = ctx,
		.err = err };
	pthread_t helper[DATA_THREADS_MAX];
	int helpers = 0;
	/* The caller works too; without a thread it works alone. */
	while (helpers < DATA_THREADS_MAX && helpers + 1 < threads && helpers + 1 < count &&
		pthread_create(&helper[helpers], NULL, work, &c) == 0)
		helpers++;
	work(&c);
	for (int i = 0; i < helpers; i++)
		pthread_join(helper[i], NULL);
	return c.code;
}

/* SPDX-License-Identifier: Apache-2.0
 * Reading ahead. Threads claim single samples of the micro-batches that are due, the earliest
 * first; the caller of loader_take claims too while it waits. What a sample is depends on its
 * position in the stream alone. One owner thread; the lock guards everything but the batches. */
#include "workers/engine/loader.h"

#include "core/base/clock.h"
#include "workers/engine/rng.h"

#include <pthread.h>
#include <stdlib.h>

enum { LOADER_THREADS_MAX = 64, NOTHING = -1 };

struct loader_slot {
	int64_t position; /* of the micro-batch in the stream; NOTHING */
	int64_t claimed;  /* samples that somebody reads or has read */
	int64_t reading;  /* samples that somebody reads now */
};

struct loader {
	const struct data *data;
	struct loader_options o;
	pthread_mutex_t lock;
	pthread_cond_t due;  /* a sample may be claimed, or stop */
	pthread_cond_t done; /* a slot has nobody reading */
	struct loader_slot slot[LOADER_DEPTH];
	int held; /* the slot that the caller has; NOTHING */
	bool stop;
	int threads;
	pthread_t thread[LOADER_THREADS_MAX];
};

/* The slot whose next sample is due first; NOTHING when all is claimed. */
static int next_due(const struct loader *l)
{
	int best = NOTHING;
	for (int i = 0; i < LOADER_DEPTH; i++) {
		const struct loader_slot *s = &l->slot[i];
		if (s->position == NOTHING || s->claimed == l->o.micro_batch)
			continue;
		if (best == NOTHING || s->position < l->slot[best].position)
			best = i;
	}
	return best;
}

/* Reads one sample of a slot; called and returns with the lock, which is open meanwhile. */
static void read_one(struct loader *l, int which)
{
	struct loader_slot *s = &l->slot[which];
	int64_t i = s->claimed++, at = s->position + i;
	s->reading++;
	pthread_mutex_unlock(&l->lock);
	int64_t index = data_sample_at(data_info(l->data)->samples, l->o.seed, l->o.shuffle, at);
	uint64_t draw = rng_key(l->o.seed, RNG_AUGMENT, (uint64_t)at);
	data_read(l->data, index, i, draw ? draw : 1, &l->o.slot[which]);
	pthread_mutex_lock(&l->lock);
	s->reading--;
	if (s->reading == 0)
		pthread_cond_broadcast(&l->done);
}

static void *work(void *arg)
{
	struct loader *l = arg;
	if (l->o.prepare_thread)
		l->o.prepare_thread();
	pthread_mutex_lock(&l->lock);
	while (!l->stop) {
		int which = next_due(l);
		if (which == NOTHING)
			pthread_cond_wait(&l->due, &l->lock);
		else
			read_one(l, which);
	}
	pthread_mutex_unlock(&l->lock);
	return NULL;
}

int loader_open(
	const struct data *data, const struct loader_options *o, struct loader **ret, struct err *err)
{
	if (o->threads < 0 || o->threads > LOADER_THREADS_MAX || o->micro_batch < 1)
		return err_set(err, ERR_INVALID_VALUE, NULL,
			"data is read ahead by 0 to %d threads in micro-batches of at least 1, not by %d in "
			"%lld",
			LOADER_THREADS_MAX, o->threads, (long long)o->micro_batch);
	struct loader *l = calloc(1, sizeof(*l));
	if (!l)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory to read data ahead");
	l->data = data;
	l->o = *o;
	l->held = NOTHING;
	for (int i = 0; i < LOADER_DEPTH; i++)
		l->slot[i].position = NOTHING;
	pthread_mutex_init(&l->lock, NULL);
	pthread_cond_init(&l->due, NULL);
	pthread_cond_init(&l->done, NULL);
	for (; l->threads < o->threads; l->threads++) {
		int rc = pthread_create(&l->thread[l->threads], NULL, work, l);
		if (rc) {
			loader_close(l);
			return err_errno(err, ERR_NO_MEMORY, rc, "a thread that reads data cannot start");
		}
	}
	*ret = l;
	return 0;
}

void loader_close(struct loader *l)
{
	if (!l)
		return;
	pthread_mutex_lock(&l->lock);
	l->stop = true;
	pthread_cond_broadcast(&l->due);
	pthread_mutex_unlock(&l->lock);
	for (int i = 0; i < l->threads; i++)
		pthread_join(l->thread[i], NULL);
	pthread_cond_destroy(&l->done);
	pthread_cond_destroy(&l->due);
	pthread_mutex_destroy(&l->lock);
	free(l);
}

static int find(const struct loader *l, int64_t position)
{
	for (int i = 0; i < LOADER_DEPTH; i++)
		if (l->slot[i].position == position)
			return i;
	return NOTHING;
}

/* Forgets what is ahead, waits for those who still read it, and makes the position due. Returns its
 * slot. */
static int restart(struct loader *l, int64_t position)
{
	for (int i = 0; i < LOADER_DEPTH; i++) {
		struct loader_slot *s = &l->slot[i];
		s->position = NOTHING;
		while (s->reading > 0)
			pthread_cond_wait(&l->done, &l->lock);
	}
	l->slot[0] = (struct loader_slot){ .position = position };
	return 0;
}

/* The slots that the caller does not hold get the micro-batches that follow. */
static void foresee(struct loader *l)
{
	int64_t stride = l->o.stride > 0 ? l->o.stride : l->o.micro_batch;
	int64_t next = l->slot[l->held].position + stride;
	for (int i = 1; i < LOADER_DEPTH; i++, next += stride) {
		int which = (l->held + i) % LOADER_DEPTH;
		if (l->slot[which].position != next)
			l->slot[which] = (struct loader_slot){ .position = next };
	}
	pthread_cond_broadcast(&l->due);
}

const struct data_batch *loader_take(struct loader *l, int64_t position, int64_t *ret_wait_us)
{
	int64_t begin = clock_mono_us(clock_system());
	pthread_mutex_lock(&l->lock);
	int which = find(l, position);
	if (which == NOTHING)
		which = restart(l, position);
	struct loader_slot *s = &l->slot[which];
	pthread_cond_broadcast(&l->due);
	while (s->claimed < l->o.micro_batch || s->reading > 0) {
		if (s->claimed < l->o.micro_batch)
			read_one(l, which);
		else
			pthread_cond_wait(&l->done, &l->lock);
	}
	l->held = which;
	if (l->threads > 0)
		foresee(l);
	pthread_mutex_unlock(&l->lock);
	*ret_wait_us = clock_mono_us(clock_system()) - begin;
	return &l->o.slot[which];
}

/* SPDX-License-Identifier: Apache-2.0
 * Token buckets in a fixed, set-associative table: constant memory whatever the number of tenants.
 * Called by event loops, so nothing here blocks for long. */
#include "server/limits/rate.h"

#include "core/base/err.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum {
	WAYS = 8,
	SETS = RATE_BUCKETS_MAX / WAYS,
	US_PER_S = 1000000,
};

struct bucket {
	char key[RATE_KEY_MAX];
	double tokens;
	int64_t at_us; /* when tokens was right */
};

struct limiter {
	const struct clock *clock;
	double per_s;
	double burst;
	pthread_mutex_t lock;
	struct bucket buckets[RATE_BUCKETS_MAX];
};

int limiter_create(const struct clock *clock, int64_t per_s, int64_t burst, struct limiter **ret)
{
	struct limiter *l = calloc(1, sizeof(*l));
	if (!l)
		return ERR_NO_MEMORY;
	l->clock = clock;
	l->per_s = (double)per_s;
	l->burst = (double)burst;
	pthread_mutex_init(&l->lock, NULL);
	*ret = l;
	return 0;
}

void limiter_destroy(struct limiter *l)
{
	if (!l)
		return;
	pthread_mutex_destroy(&l->lock);
	free(l);
}

static uint32_t hash(const char *key)
{
	uint32_t h = 2166136261u; /* FNV-1a */
	for (; *key; key++)
		h = (h ^ (unsigned char)*key) * 16777619u;
	return h;
}

/* The key's bucket; a new one takes the place of the set's longest unused. */
static struct bucket *find(struct limiter *l, const char *key, int64_t now_us)
{
	struct bucket *set = &l->buckets[(size_t)(hash(key) % SETS) * WAYS];
	struct bucket *oldest = &set[0];
	for (int i = 0; i < WAYS; i++) {
		if (strncmp(set[i].key, key, sizeof(set[i].key) - 1) == 0)
			return &set[i];
		if (set[i].key[0] == '\0') {
			oldest = &set[i];
			break;
		}
		if (set[i].at_us < oldest->at_us)
			oldest = &set[i];
	}
	memset(oldest->key, 0, sizeof(oldest->key));
	memcpy(oldest->key, key, strnlen(key, sizeof(oldest->key) - 1));
	oldest->tokens = l->burst;
	oldest->at_us = now_us;
	return oldest;
}

static int64_t seconds_for(const struct limiter *l, double tokens)
{
	double s = tokens / l->per_s;
	int64_t whole = (int64_t)s;
	return (double)whole < s ? whole + 1 : whole;
}

void limiter_take(struct limiter *l, const char *key, struct rate_verdict *ret)
{
	memset(ret, 0, sizeof(*ret));
	ret->allowed = true;
	if (l->per_s <= 0.0)
		return;
	int64_t now_us = clock_mono_us(l->clock);
	pthread_mutex_lock(&l->lock);
	struct bucket *b = find(l, key, now_us);
	double passed_s = (double)(now_us - b->at_us) / US_PER_S;
	b->tokens += passed_s * l->per_s;
	if (b->tokens > l->burst)
		b->tokens = l->burst;
	b->at_us = now_us;
	ret->allowed = b->tokens >= 1.0;
	if (ret->allowed)
		b->tokens -= 1.0;
	ret->limit = (int64_t)l->burst;
	ret->remaining = (int64_t)b->tokens;
	ret->reset_s = seconds_for(l, l->burst - b->tokens);
	ret->retry_after_s = ret->allowed ? 0 : seconds_for(l, 1.0 - b->tokens);
	pthread_mutex_unlock(&l->lock);
	if (!ret->allowed && ret->retry_after_s < 1)
		ret->retry_after_s = 1;
}

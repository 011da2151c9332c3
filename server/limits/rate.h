/* SPDX-License-Identifier: Apache-2.0
 * A token bucket for each tenant, in this process. Asked by the daemon's gate before a body is
 * read. Thread-safe. */
#pragma once

#include "core/base/attr.h"
#include "core/base/clock.h"

#include <stdbool.h>
#include <stdint.h>

enum {
	RATE_BUCKETS_MAX = 4096, /* tenants remembered; the longest unused is forgotten first */
	RATE_KEY_MAX = 48,
};

struct limiter;

/* per_s 0 = no limit. */
int limiter_create(
	const struct clock *clock, int64_t per_s, int64_t burst, struct limiter **ret) must_check;
void limiter_destroy(struct limiter *l);

struct rate_verdict {
	bool allowed;
	int64_t limit;         /* the bucket's size */
	int64_t remaining;     /* whole tokens left */
	int64_t reset_s;       /* until the bucket is full again */
	int64_t retry_after_s; /* when refused: until the next token */
};

/* Takes one token of the key's bucket. */
void limiter_take(struct limiter *l, const char *key, struct rate_verdict *ret);

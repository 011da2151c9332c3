/* SPDX-License-Identifier: Apache-2.0
 * The waiting side of hub.h: used by exchange.c (long polls) and stream.c. A waiter is registered
 * for one wake-up and owned by whoever was woken after that. Thread-safe. */
#pragma once

#include "core/base/clock.h"
#include "core/base/err.h"
#include "core/db/db.h"
#include "server/http/hub.h"

#include <stdbool.h>
#include <stdint.h>

enum {
	HUB_TOPIC_MAX = 64,
	HUB_POLL_MS = 200,   /* between two looks at the database */
	HUB_RETRY_MS = 1000, /* after one that failed */
	HUB_KEEP_MS = 60000, /* a topic without waiters is remembered: its number need not be learnt
							again */
};

struct hub_topic;

struct hub_waiter {
	/* Called once, on any thread, with the hub locked: hand over to a queue, nothing else. */
	void (*wake)(struct hub_waiter *w);
	char topic[HUB_TOPIC_MAX];
	int64_t since;       /* hub_mark before the database was read */
	int64_t deadline_us; /* monotonic; woken then at the latest */
	/* The hub's. */
	struct hub_topic *of;
	struct hub_waiter *prev, *next;
};

/* pool: the hub's own connection. */
int hub_create(
	struct db_pool *pool, const struct clock *clock, struct hub **ret, struct err *err) must_check;
/* Nobody may wait any more. NULL accepted. */
void hub_destroy(struct hub *hub);

int64_t hub_mark(struct hub *hub);
/* Wakes at once when the topic changed after w->since. INVALID_VALUE for a topic that is not
 * "job:<id>" or "agent:<id>". */
int hub_wait(struct hub *hub, struct hub_waiter *w) must_check;
/* True when the waiter was still registered and now is not: it will not be woken. */
bool hub_cancel(struct hub *hub, struct hub_waiter *w);
/* From now on everybody who waits is woken at once. */
void hub_quit(struct hub *hub);

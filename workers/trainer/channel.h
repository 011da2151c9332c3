/* SPDX-License-Identifier: Apache-2.0
 * The trainer's side of its talk with the agent (docs/protocol.md): numbered messages up, kept
 * until the yard has them; orders down. Its own thread does the talking, so training never waits
 * for a slow agent. channel_post and the questions may be called by any thread. */
#pragma once

#include "core/base/attr.h"
#include "core/base/clock.h"
#include "core/base/err.h"
#include "workers/trainer/lease.h"

#include <stdbool.h>
#include <stdint.h>

enum {
	CHANNEL_LINE_MAX = 64 * 1024,       /* bytes of one message, either way */
	CHANNEL_DROPPABLE_MAX = 512 * 1024, /* bytes waiting above which droppable ones are dropped */
	CHANNEL_ALIVE_MS = 1000,            /* at most one `alive` line in this time */
};

enum channel_stop { CHANNEL_STOP_NONE, CHANNEL_STOP_CANCEL, CHANNEL_STOP_PAUSE };

struct channel;

struct channel_options {
	int fd;                  /* the connection inherited from the agent, -1 = none; taken over */
	const char *socket_path; /* where a restarted agent connects; NULL = nowhere */
	int64_t first_seq;       /* of the first message */
	const struct clock *clock;
	struct lease *lease; /* extended by the agent's lines */
};

int channel_create(
	const struct channel_options *o, struct channel **ret, struct err *err) must_check;
/* Stops the thread and closes everything. NULL is fine. */
void channel_destroy(struct channel *c);
void channel_destroyp(struct channel **c);

/* Queues one message: a JSON object without `seq` (`{"t":"step",…}`), which gets the next number. A
 * droppable one is given up when too much is waiting; *ret_seq is then 0. ret_seq may be NULL. */
int channel_post(struct channel *c, const char *json, bool droppable, int64_t *ret_seq,
	struct err *err) must_check;
/* All messages up to this are stored by the yard. */
int64_t channel_acked_seq(struct channel *c);
/* Waits until everything is acknowledged, at most max_ms; -1: for as long as the lease lasts. True
 * when it is. */
bool channel_drain(struct channel *c, int64_t max_ms);

/* The loop moved: the agent hears of it at most once a second. Never blocks. */
void channel_alive(struct channel *c, int64_t step);
enum channel_stop channel_stop(struct channel *c);
/* True once for each order to take a checkpoint. */
bool channel_take_checkpoint(struct channel *c);

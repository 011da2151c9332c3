/* SPDX-License-Identifier: Apache-2.0
 * The scheduler's thread: one leader among any number of servers (an advisory lock on a connection
 * of its own; losing the connection ends the leadership), which expires leases, places queued jobs
 * and drops trimmed content several times a second. Started and stopped by main. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "core/db/db.h"

#include <stdbool.h>

struct app;
struct scheduler;

enum {
	SCHEDULER_PASS_MS = 200,
	SCHEDULER_RETRY_MS = 1000, /* between tries to become leader or to reconnect */
};

/* Starts the thread. config names the database; its size is ignored (one connection is used). */
int scheduler_start(struct app *app, const struct db_config *config, struct scheduler **ret,
	struct err *err) must_check;
/* Ends the thread after the pass at hand and gives the leadership up. NULL accepted. */
void scheduler_stop(struct scheduler *s);
/* Something may be ready to place: run a pass now. NULL accepted; never blocks. Thread-safe. */
void scheduler_wake(struct scheduler *s);
/* For /metrics. */
bool scheduler_is_leader(const struct scheduler *s);

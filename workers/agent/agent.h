/* SPDX-License-Identifier: Apache-2.0
 * The agent: the runs of this machine and the threads around them. The main thread owns trainers
 * and phases, one thread polls, one reports, and short-lived ones move files. One lock guards the
 * runs; nobody holds it while talking to a server. */
#pragma once

#include "core/base/attr.h"
#include "core/base/clock.h"
#include "core/base/err.h"
#include "workers/agent/device.h"
#include "workers/agent/run.h"
#include "workers/agent/settings.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct json_val;

enum {
	AGENT_TICK_MS = 200,       /* deadlines are looked at this often */
	AGENT_REPORT_GAP_MS = 200, /* at least this between two reports with messages */
	AGENT_REPORT_TIMEOUT_MS = 5000,
	AGENT_POLL_WAIT_MS = 20000,
	AGENT_REPORT_BYTES_MAX = 128 * 1024, /* bytes of messages in one report */
	AGENT_STOP_GRACE_MS = 10000, /* a trainer whose end is stored may take this long to leave */
	AGENT_ATTACH_MS = 10000,     /* a live trainer must accept a connection within this */
	AGENT_BEAT_MIN_MS = 100,
};

struct agent {
	const struct settings_agent *settings;
	const struct clock *clock;
	int wake; /* eventfd: the main thread looks again */

	pthread_mutex_t lock;
	pthread_cond_t report_due; /* monotonic clock */
	struct run *runs;
	struct device_set devices;
	bool registered;
	char id[RUN_ID_MAX];
	int64_t beat_ms, self_kill_ms;
	int64_t polled_us; /* monotonic: when the poll began whose list was taken last; 0 = none yet */
	int64_t swept_us;  /* last look at the cache */
	bool urgent;       /* something to report before the next beat */
	bool left;         /* a run is gone, and the yard has not been told */
	int isolate;       /* reports that carry the messages of one run only (report.c) */
};

/* agent.c */
int agent_init(struct agent *a, const struct settings_agent *s, struct err *err) must_check;
/* Finds the attempts of an earlier agent in the work folder. */
int agent_recover(struct agent *a, struct err *err) must_check;
/* Runs until SIGTERM or SIGINT. Trainers stay. */
int agent_serve(struct agent *a, struct err *err) must_check;
/* Any thread. */
void agent_wake(struct agent *a);
/* With the lock held: reports soon. */
void agent_report_soon(struct agent *a);
struct run *agent_find(struct agent *a, const char *id);

/* The threads; each runs for good. */
void *poll_thread(void *agent);
void *report_thread(void *agent);

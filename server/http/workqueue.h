/* SPDX-License-Identifier: Apache-2.0
 * The worker threads that run handlers, and their bounded queue. Event loops push, workers run.
 * Thread-safe. */
#pragma once

#include "core/base/attr.h"

/* Agents first: a late beat costs a running job, a late answer costs a retry. */
enum workqueue_lane { LANE_AGENT, LANE_AGAIN, LANE_API, WORKQUEUE_LANES };

struct work {
	void (*run)(struct work *w);
	struct work *next;
};

struct workqueue;
struct http_stats;

/* lane_max bounds LANE_AGENT and LANE_API, each. LANE_AGAIN holds streams and long polls, which
 * are counted before they begin and are in it once at most. stats gets GAUGE_QUEUE_DEPTH; NULL
 * accepted. */
int workqueue_create(
	int threads, int lane_max, struct http_stats *stats, struct workqueue **ret) must_check;
/* Runs what is queued, then ends the threads. NULL accepted. */
void workqueue_destroy(struct workqueue *q);
/* OVERLOADED when the lane is full; never for LANE_AGAIN. */
int workqueue_push(struct workqueue *q, enum workqueue_lane lane, struct work *w) must_check;
/* For LANE_AGAIN: cannot fail. */
void workqueue_push_again(struct workqueue *q, struct work *w);

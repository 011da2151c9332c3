/* SPDX-License-Identifier: Apache-2.0
 * Counters of the HTTP side, in Prometheus' text form for /metrics. Written by event loops and
 * workers; lock-free. */
#pragma once

#include "core/base/attr.h"
#include "core/base/buf.h"

#include <stdint.h>

struct http_stats;
struct route;

enum http_gauge {
	GAUGE_IN_FLIGHT,   /* requests between their headers and the end of their reply */
	GAUGE_CONNECTIONS, /* of both ports */
	GAUGE_STREAMS,
	GAUGE_WAITS,
	GAUGE_QUEUE_DEPTH,
	HTTP_GAUGES,
};

/* Two route tables: those of the two ports. */
int http_stats_create(const struct route *const tables[static 2], const size_t counts[static 2],
	struct http_stats **ret) must_check;
void http_stats_destroy(struct http_stats *s);

/* One request was answered. route NULL = none matched; us < 0 = it was meant to take long (streams,
 * long polls) and is left out of the latencies. */
void http_stats_count(
	struct http_stats *s, const struct route *route, int status, int64_t us, int64_t bytes);
/* Adds and returns the new value. */
int64_t http_stats_gauge_add(struct http_stats *s, enum http_gauge g, int64_t by);
int64_t http_stats_gauge(const struct http_stats *s, enum http_gauge g);

int http_stats_write(const struct http_stats *s, struct buf *out);

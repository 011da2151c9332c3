/* SPDX-License-Identifier: Apache-2.0
 * Counters by route and status, a latency histogram by route, and gauges. */
#include "server/http/stats.h"

#include "core/base/err.h"
#include "server/http/route.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { US_PER_S = 1000000 };

static const int statuses[] = { 200, 201, 202, 204, 206, 304, 400, 401, 403, 404, 405, 408, 409,
	411, 413, 415, 416, 422, 429, 431, 500, 503, 0 /* any other */ };
static const int64_t bounds_us[] = { 1000, 2500, 5000, 10000, 25000, 50000, 100000, 250000, 500000,
	1000000, 2500000, 10000000, 30000000 };

enum { STATUSES = ARRAY_LEN(statuses), BOUNDS = ARRAY_LEN(bounds_us) };

struct row {
	const struct route *route; /* NULL: no route matched */
	atomic_int_least64_t by_status[STATUSES];
	atomic_int_least64_t by_bound[BOUNDS + 1];
	atomic_int_least64_t sum_us;
};

struct http_stats {
	const struct route *tables[2];
	size_t counts[2];
	atomic_int_least64_t gauges[HTTP_GAUGES];
	atomic_int_least64_t bytes;
	size_t row_count;
	struct row rows[];
};

int http_stats_create(const struct route *const tables[static 2], const size_t counts[static 2],
	struct http_stats **ret)
{
	size_t rows = counts[0] + counts[1] + 1;
	struct http_stats *s = calloc(1, sizeof(*s) + rows * sizeof(struct row));
	if (!s)
		return ERR_NO_MEMORY;
	s->row_count = rows;
	size_t at = 0;
	for (int t = 0; t < 2; t++) {
		s->tables[t] = tables[t];
		s->counts[t] = counts[t];
		for (size_t i = 0; i < counts[t]; i++)
			s->rows[at++].route = &tables[t][i];
	}
	*ret = s;
	return 0;
}

void http_stats_destroy(struct http_stats *s)
{
	free(s);
}

static struct row *row_of(struct http_stats *s, const struct route *route)
{
	size_t base = 0;
	for (int t = 0; t < 2; t++) {
		if (route && route >= s->tables[t] && route < s->tables[t] + s->counts[t])
			return &s->rows[base + (size_t)(route - s->tables[t])];
		base += s->counts[t];
	}
	return &s->rows[s->row_count - 1];
}

void http_stats_count(
	struct http_stats *s, const struct route *route, int status, int64_t us, int64_t bytes)
{
	struct row *row = row_of(s, route);
	size_t i = 0;
	while (i < STATUSES - 1 && statuses[i] != status)
		i++;
	atomic_fetch_add_explicit(&row->by_status[i], 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&s->bytes, bytes, memory_order_relaxed);
	if (us < 0)
		return;
	size_t b = 0;
	while (b < BOUNDS && us > bounds_us[b])
		b++;
	atomic_fetch_add_explicit(&row->by_bound[b], 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&row->sum_us, us, memory_order_relaxed);
}

int64_t http_stats_gauge_add(struct http_stats *s, enum http_gauge g, int64_t by)
{
	return atomic_fetch_add_explicit(&s->gauges[g], by, memory_order_relaxed) + by;
}

int64_t http_stats_gauge(const struct http_stats *s, enum http_gauge g)
{
	return atomic_load_explicit(&s->gauges[g], memory_order_relaxed);
}

static const char *row_name(const struct row *row)
{
	return row->route ? row->route->operation_id : "none";
}

static void write_requests(const struct http_stats *s, struct buf *out)
{
	(void)buf_str(out,
		"# HELP trainyard_http_requests_total Requests answered.\n"
		"# TYPE trainyard_http_requests_total counter\n");
	for (size_t i = 0; i < s->row_count; i++) {
		for (size_t j = 0; j < STATUSES; j++) {
			int64_t n = atomic_load_explicit(&s->rows[i].by_status[j], memory_order_relaxed);
			if (n > 0)
				(void)buf_printf(out,
					"trainyard_http_requests_total{route=\"%s\",status=\"%d\"} %" PRId64 "\n",
					row_name(&s->rows[i]), statuses[j], n);
		}
	}
}

static void write_histogram(const struct row *row, struct buf *out)
{
	static const char name[] = "trainyard_http_request_seconds";
	int64_t total = 0;
	for (size_t b = 0; b <= BOUNDS; b++)
		total += atomic_load_explicit(&row->by_bound[b], memory_order_relaxed);
	if (total == 0)
		return;
	int64_t below = 0;
	for (size_t b = 0; b < BOUNDS; b++) {
		below += atomic_load_explicit(&row->by_bound[b], memory_order_relaxed);
		(void)buf_printf(out, "%s_bucket{route=\"%s\",le=\"%g\"} %" PRId64 "\n", name,
			row_name(row), (double)bounds_us[b] / US_PER_S, below);
	}
	(void)buf_printf(
		out, "%s_bucket{route=\"%s\",le=\"+Inf\"} %" PRId64 "\n", name, row_name(row), total);
	int64_t sum_us = atomic_load_explicit(&row->sum_us, memory_order_relaxed);
	(void)buf_printf(out, "%s_sum{route=\"%s\"} %" PRId64 ".%06" PRId64 "\n", name, row_name(row),
		sum_us / US_PER_S, sum_us % US_PER_S);
	(void)buf_printf(out, "%s_count{route=\"%s\"} %" PRId64 "\n", name, row_name(row), total);
}

int http_stats_write(const struct http_stats *s, struct buf *out)
{
	static const char *const gauge_names[HTTP_GAUGES] = {
		[GAUGE_IN_FLIGHT] = "requests_in_flight",
		[GAUGE_CONNECTIONS] = "connections",
		[GAUGE_STREAMS] = "streams",
		[GAUGE_WAITS] = "waiting_polls",
		[GAUGE_QUEUE_DEPTH] = "queue_depth",
	};
	write_requests(s, out);
	(void)buf_str(out,
		"# HELP trainyard_http_request_seconds From the headers to the reply's end.\n"
		"# TYPE trainyard_http_request_seconds histogram\n");
	for (size_t i = 0; i < s->row_count; i++)
		write_histogram(&s->rows[i], out);
	(void)buf_printf(out,
		"# TYPE trainyard_http_sent_bytes_total counter\n"
		"trainyard_http_sent_bytes_total %" PRId64 "\n",
		(int64_t)atomic_load_explicit(&s->bytes, memory_order_relaxed));
	for (int g = 0; g < HTTP_GAUGES; g++)
		(void)buf_printf(out, "# TYPE trainyard_http_%s gauge\ntrainyard_http_%s %" PRId64 "\n",
			gauge_names[g], gauge_names[g], http_stats_gauge(s, (enum http_gauge)g));
	return out->failed;
}

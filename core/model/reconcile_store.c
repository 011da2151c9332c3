/* SPDX-License-Identifier: Apache-2.0
 * The statement that adds up every device. One connection, one thread. */
#include "core/model/reconcile_store.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define US(expr) "(extract(epoch from " expr ") * 1000000)::bigint"
#define LENGTH US("upper(g.period) - lower(g.period)")
#define STATE_SUM(state) "coalesce(sum(" LENGTH ") filter (where g.state = '" state "'), 0)"
#define SUM_BILLED STATE_SUM("billed")
#define SUM_UNBILLED STATE_SUM("unbilled")
#define SUM_IDLE STATE_SUM("idle")
#define SUM_LOST STATE_SUM("lost")
#define IN_SERVICE US("d.hi - d.registered_at")
#define OPEN_TIME US("d.hi - d.tiled_to")

/* A device's tiling begins at registration and ends where its open interval begins, or where it was
 * deregistered. A segment's neighbour before it must end where it begins. $1: only bad ones;
 * $2: only devices of this invoice. */
static const char devices_sql[] =
	"with t as materialized (select yard_now() as now), d as materialized ("
	" select d.*, coalesce(d.deregistered_at, d.open_since) as tiled_to,"
	"  coalesce(d.deregistered_at, greatest(t.now, d.open_since)) as hi from devices d, t"
	" where $2::text is null or d.id in (select s.device_id from invoice_segments i"
	"  join segments s on s.id = i.segment_id where i.invoice_id = $2)"
	"), g as (select x.* from d cross join lateral (select s.*,"
	"  lag(upper(s.period)) over (order by lower(s.period), s.id) as before"
	"  from segments s where s.device_id = d.id) x"
	"), sums as (select d.id, min(lower(g.period)) as first, max(upper(g.period)) as last,"
	"  " SUM_BILLED " as billed, " SUM_UNBILLED " as unbilled,"
	"  " SUM_IDLE " as idle, " SUM_LOST " as lost,"
	"  count(*) filter (where lower(g.period) > g.before) as gaps,"
	"  count(*) filter (where lower(g.period) < g.before) as doubled,"
	"  count(*) filter (where date_trunc('milliseconds', lower(g.period)) <> lower(g.period)"
	"   or date_trunc('milliseconds', upper(g.period)) <> upper(g.period)) as fractions,"
	"  count(*) filter (where g.state = 'billed' and (p.instance_type <> d.instance_type"
	"   or p.effective_from > lower(g.period) or exists (select from prices n"
	"    where n.instance_type = d.instance_type and n.currency = p.currency"
	"    and n.effective_from > p.effective_from and n.effective_from < upper(g.period))))"
	"   as mispriced,"
	"  count(*) filter (where g.state = 'billed' and"
	"   date_trunc('month', lower(g.period) at time zone 'UTC') <>"
	"   date_trunc('month', (upper(g.period) - interval '1 microsecond') at time zone 'UTC'))"
	"   as over_month,"
	"  count(*) filter (where g.attempt_id is not null and h.attempt_id is null) as unattested"
	" from d left join g on g.device_id = d.id left join prices p on p.id = g.price_id"
	" left join attempts a on a.id = g.attempt_id and a.job_id = g.job_id"
	"  and a.tenant_id = g.tenant_id"
	" left join attempt_devices h on h.attempt_id = a.id and h.device_id = d.id"
	" group by d.id"
	"), all_of as (select d.id, d.instance_type, d.deregistered_at is null as serving,"
	"  " IN_SERVICE " as in_service, s.billed, s.unbilled, s.idle, s.lost,"
	"  " OPEN_TIME " as open,"
	"  s.gaps + (coalesce(s.first, d.tiled_to) > d.registered_at)::int"
	"   + (coalesce(s.last, d.tiled_to) < d.tiled_to)::int as gaps,"
	"  s.doubled + coalesce((s.first < d.registered_at)::int, 0)"
	"   + coalesce((s.last > d.tiled_to)::int, 0) as doubled,"
	"  s.fractions + (date_trunc('milliseconds', d.registered_at) <> d.registered_at)::int"
	"   as fractions, s.mispriced, s.over_month,"
	"  s.unattested + ((d.open_state <> 'idle') <> (d.open_attempt_id is not null))::int"
	"   as unattested"
	" from d join sums s on s.id = d.id"
	"), checked as (select a.*,"
	"  in_service - billed - unbilled - idle - lost - open as difference from all_of a) "
	"select id, instance_type, serving, in_service, billed, unbilled, idle, lost, open, difference,"
	" gaps, doubled, fractions, mispriced, over_month, unattested from checked "
	"where not $1 or difference <> 0"
	" or gaps + doubled + fractions + mispriced + over_month + unattested > 0 "
	"order by id";

void reconcile_store_finish(struct reconcile *r)
{
	free(r->devices);
	*r = (struct reconcile){ 0 };
}

bool reconcile_store_is_bad(const struct reconcile_device *d)
{
	return d->difference_us || d->gaps || d->overlaps || d->fractions || d->mispriced ||
		d->over_month || d->unattested;
}

int reconcile_store_devices(struct db_conn *conn, const char *invoice_id, bool only_bad,
	struct reconcile *ret, struct err *err)
{
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc = db_exec(conn, &r, err, devices_sql, DB_BOOL(only_bad), DB_TEXT(invoice_id));
	if (rc < 0)
		return rc;
	struct reconcile all = { .count = (size_t)db_rows(r) };
	all.devices = calloc(all.count + 1, sizeof(*all.devices));
	if (!all.devices)
		return err_set(err, ERR_NO_MEMORY, NULL, "out of memory");
	for (int i = 0; i < db_rows(r); i++) {
		struct reconcile_device *d = &all.devices[i];
		*d = (struct reconcile_device){
			.in_service_now = db_bool(r, i, 2),
			.in_service_us = db_i64(r, i, 3),
			.billed_us = db_i64(r, i, 4),
			.unbilled_us = db_i64(r, i, 5),
			.idle_us = db_i64(r, i, 6),
			.lost_us = db_i64(r, i, 7),
			.open_us = db_i64(r, i, 8),
			.difference_us = db_i64(r, i, 9),
			.gaps = db_i64(r, i, 10),
			.overlaps = db_i64(r, i, 11),
			.fractions = db_i64(r, i, 12),
			.mispriced = db_i64(r, i, 13),
			.over_month = db_i64(r, i, 14),
			.unattested = db_i64(r, i, 15),
		};
		(void)snprintf(d->id, sizeof(d->id), "%s", db_str(r, i, 0));
		(void)snprintf(d->instance_type, sizeof(d->instance_type), "%s", db_str(r, i, 1));
		all.bad += reconcile_store_is_bad(d);
	}
	*ret = all;
	return 0;
}

void reconcile_store_explain(const struct reconcile_device *d, struct buf *out)
{
	const struct {
		int64_t count;
		const char *what;
	} parts[] = {
		{ d->gaps, "gaps between segments" },
		{ d->overlaps, "overlaps of segments" },
		{ d->fractions, "bounds that are not whole milliseconds" },
		{ d->mispriced, "billed segments at a price that was not in force" },
		{ d->over_month, "billed segments across a month's end" },
		{ d->unattested, "segments or holders without their attempt" },
	};
	(void)buf_printf(out, "%s: ", d->id);
	if (d->difference_us)
		(void)buf_printf(out, "%" PRId64 ".%03d ms of service are %s",
			(d->difference_us < 0 ? -d->difference_us : d->difference_us) / 1000,
			abs((int)(d->difference_us % 1000)),
			d->difference_us > 0 ? "in no segment" : "counted twice");
	const char *separator = d->difference_us ? "; " : "";
	for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
		if (parts[i].count == 0)
			continue;
		(void)buf_printf(out, "%s%" PRId64 " %s", separator, parts[i].count, parts[i].what);
		separator = "; ";
	}
	(void)buf_char(out, '\n');
}

/* SPDX-License-Identifier: Apache-2.0
 * The SQL of devices. */
#include "core/model/device_store.h"

#include "core/base/clock.h"
#include "core/model/segment.h"
#include "core/model/sql_text.h"

#include <stdio.h>
#include <string.h>

/* A device that is in service now. */
struct current {
	const char *id;
	int64_t index;
	int64_t memory_bytes;
	bool same_type;
	bool idle;
	const char *uuid;
};

static struct current current_of(const struct db_result *r, int row)
{
	return (struct current){
		.id = db_str(r, row, 0),
		.index = db_i64(r, row, 1),
		.memory_bytes = db_i64(r, row, 2),
		.same_type = db_bool(r, row, 3),
		.idle = db_bool(r, row, 4),
		.uuid = db_str(r, row, 5),
	};
}

static const char *uuid_of(const struct device_listed *d)
{
	return d->uuid == NULL ? "" : d->uuid;
}

static struct device_listed *find_listed(
	struct device_listed *listed, int count, const struct current *c)
{
	for (int i = 0; i < count; i++)
		if (listed[i].index == c->index && c->same_type &&
			listed[i].memory_bytes == c->memory_bytes && strcmp(uuid_of(&listed[i]), c->uuid) == 0)
			return &listed[i];
	return NULL;
}

static int withdraw(struct db_conn *conn, const struct current *c, struct err *err)
{
	if (c->idle)
		return segment_deregister(conn, c->id, err);
	return db_exec(
		conn, NULL, err, "update devices set withdrawn = true where id = $1", DB_TEXT(c->id));
}

static int keep(
	struct db_conn *conn, const struct current *c, struct device_listed *d, struct err *err)
{
	snprintf(d->id, sizeof(d->id), "%s", c->id);
	return db_exec(conn, NULL, err,
		"update devices set name = $2, withdrawn = false where id = $1"
		" and (name <> $2 or withdrawn)",
		DB_TEXT(c->id), DB_TEXT(d->name));
}

/* Enters service idle, at one instant. While an old device of the same index is still busy there
 * is no place: the next registration finds it free. What an operator has not returned stays
 * cordoned, whatever place and number the GPU has now. */
static int enter(
	struct db_conn *conn, const char *agent_id, struct device_listed *d, struct err *err)
{
	char id[IDENT_MAX];
	ident_new(clock_system(), "dev", id);
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc = db_exec(conn, &r, err,
		"with instant as materialized (select yard_now() as t)"
		" insert into devices (id, agent_id, device_index, name, instance_type, region,"
		"  memory_bytes, registered_at, open_since, uuid, cordoned_at, cordon_reason)"
		" select $1, g.id, $3, $4, g.instance_type, g.region, $5, t, t, $6, o.cordoned_at,"
		"  o.cordon_reason from agents g cross join instant left join lateral (select *"
		"   from devices x where x.agent_id = g.id and x.uuid = $6 and $6 <> ''"
		"   order by x.id desc limit 1) o on true"
		" where g.id = $2"
		" on conflict (agent_id, device_index) where deregistered_at is null do nothing"
		" returning id",
		DB_TEXT(id), DB_TEXT(agent_id), DB_I64(d->index), DB_TEXT(d->name), DB_I64(d->memory_bytes),
		DB_TEXT(uuid_of(d)));
	if (rc == 0 && db_rows(r) > 0)
		snprintf(d->id, sizeof(d->id), "%s", id);
	return rc;
}

int device_store_sync(struct db_conn *conn, const char *agent_id, struct device_listed *listed,
	int count, struct err *err)
{
	for (int i = 0; i < count; i++)
		listed[i].id[0] = '\0';
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc = db_exec(conn, &r, err,
		"select d.id, d.device_index, d.memory_bytes,"
		" d.instance_type = g.instance_type and d.region = g.region, d.open_state = 'idle',"
		" d.uuid"
		" from devices d join agents g on g.id = d.agent_id"
		" where d.agent_id = $1 and d.deregistered_at is null order by d.id for update of d",
		DB_TEXT(agent_id));
	for (int i = 0; rc == 0 && i < db_rows(r); i++) {
		struct current c = current_of(r, i);
		struct device_listed *d = find_listed(listed, count, &c);
		rc = d == NULL ? withdraw(conn, &c, err) : keep(conn, &c, d, err);
	}
	for (int i = 0; rc == 0 && i < count; i++)
		if (listed[i].id[0] == '\0')
			rc = enter(conn, agent_id, &listed[i], err);
	return rc;
}

/* ---------------------------------------------------------------- faults */

static int note(struct db_conn *conn, const char *device_id, const char *kind, const char *reason,
	struct err *err)
{
	return db_exec(conn, NULL, err,
		"insert into device_events (device_id, kind, reason) values ($1, $2, $3)",
		DB_TEXT(device_id), DB_TEXT(kind), DB_TEXT(reason));
}

int device_store_cordon(struct db_conn *conn, const char *agent_id, int64_t index, const char *uuid,
	const char *reason, bool *ret_new, struct err *err)
{
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc = db_exec(conn, &r, err,
		"update devices set cordoned_at = yard_now(), cordon_reason = $4 where agent_id = $1"
		" and device_index = $2 and uuid = $3 and deregistered_at is null and cordoned_at is null"
		" returning id",
		DB_TEXT(agent_id), DB_I64(index), DB_TEXT(uuid), DB_TEXT(reason));
	bool any = rc == 0 && db_rows(r) > 0;
	if (any)
		rc = note(conn, db_str(r, 0, 0), "cordoned", reason, err);
	if (rc == 0)
		*ret_new = any;
	return rc;
}

int device_store_doomed(struct db_conn *conn, const char *agent_id, const char *agent_has,
	struct db_result **ret, struct err *err)
{
	return db_exec(conn, ret, err,
		"select distinct on (a.id) a.id, a.epoch, ad.rank, d.cordon_reason"
		" from devices d join attempt_devices ad on ad.device_id = d.id and not ad.released"
		" join attempts a on a.id = ad.attempt_id and a.status <> 'ended'"
		" where d.agent_id = $1 and d.cordoned_at is not null and a.id <> all ($2::text[])"
		" order by a.id, ad.rank",
		DB_TEXT(agent_id), DB_TEXT(agent_has));
}

int device_store_return(
	struct db_conn *conn, const char *device_id, bool *ret_was_cordoned, struct err *err)
{
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc = db_exec(conn, &r, err,
		"select cordoned_at is not null from devices where id = $1 for update", DB_TEXT(device_id));
	if (rc < 0)
		return rc;
	if (db_rows(r) == 0)
		return err_set(err, ERR_NOT_FOUND, NULL, "There is no device %.60s.", device_id);
	bool cordoned = db_bool(r, 0, 0);
	if (cordoned)
		rc = db_exec(conn, NULL, err,
			"update devices set cordoned_at = null, cordon_reason = null where id = $1",
			DB_TEXT(device_id));
	if (rc == 0 && cordoned)
		rc = note(conn, device_id, "returned", "", err);
	if (rc == 0)
		*ret_was_cordoned = cordoned;
	return rc;
}

/* ---------------------------------------------------------------- operators' list */

#define MS(expr) "round(extract(epoch from (" expr ")) * 1000)::bigint"
#define SEGMENT_MS(state)                                                                      \
	"coalesce((select sum(" MS(                                                                \
		"upper(s.period) - lower(s.period)") ") from segments s"                               \
											 " where s.device_id = d.id and s.state = '" state \
											 "'), 0)::bigint"

/* clang-format off */
static const char list_sql[] =
	"select d.id, d.device_index, d.name, d.instance_type, d.region, d.memory_bytes,"
	" d.open_state, " SQL_TIME("d.open_since") ", d.open_attempt_id,"
	" " SQL_TIME("d.registered_at") ", " SQL_TIME("d.deregistered_at") ","
	" g.id, g.name, g.status, " SQL_TIME("g.last_seen_at") ","
	" " SEGMENT_MS("billed") ", " SEGMENT_MS("unbilled") ","
	" " SEGMENT_MS("idle") ", " SEGMENT_MS("lost") ","
	" case when d.deregistered_at is not null then 0"
	"  else " MS("greatest(now.t, d.open_since) - d.open_since") " end,"
	" " MS("coalesce(d.deregistered_at, greatest(now.t, d.open_since)) - d.registered_at") ","
	" case when $4 then (select coalesce(jsonb_agg(x.o order by x.id), '[]') from ("
	"  select s.id, jsonb_build_object('from', " SQL_TIME("lower(s.period)") ","
	"   'to', " SQL_TIME("upper(s.period)") ", 'state', s.state, 'reason', s.reason,"
	"   'attempt_id', s.attempt_id, 'job_id', s.job_id, 'price_id', s.price_id) as o"
	"  from segments s where s.device_id = d.id order by s.id desc limit $5) x) end,"
	" nullif(d.uuid, ''), " SQL_TIME("d.cordoned_at") ", d.cordon_reason, g.cuda::text,"
	" (select coalesce(jsonb_agg(x.o order by x.id), '[]') from ("
	"  select e.id, jsonb_build_object('at', " SQL_TIME("e.created_at") ", 'kind', e.kind,"
	"   'reason', e.reason) as o from device_events e where e.device_id = d.id"
	"   order by e.id desc limit $6) x)"
	" from devices d join agents g on g.id = d.agent_id,"
	" (select yard_now() as t offset 0) now"
	" where d.id < $1 and d.id > $2";
/* clang-format on */

static void put_time(struct json_writer *w, const struct db_result *r, int row)
{
	json_key(w, "time");
	json_begin_object(w);
	json_field_i64(w, "billed_ms", db_i64(r, row, 15));
	json_field_i64(w, "unbilled_ms", db_i64(r, row, 16));
	json_field_i64(w, "idle_ms", db_i64(r, row, 17));
	json_field_i64(w, "lost_ms", db_i64(r, row, 18));
	json_field_i64(w, "open_ms", db_i64(r, row, 19));
	json_field_i64(w, "in_service_ms", db_i64(r, row, 20));
	json_end_object(w);
}

static void put_cordon(struct json_writer *w, const struct db_result *r, int row)
{
	json_key(w, "cordon");
	if (db_is_null(r, row, 23)) {
		json_put_null(w);
		return;
	}
	json_begin_object(w);
	json_field_str(w, "since", db_str(r, row, 23));
	json_field_str(w, "reason", db_str(r, row, 24));
	json_end_object(w);
}

static void put_device(struct json_writer *w, const struct db_result *r, int row)
{
	json_begin_object(w);
	json_field_str(w, "id", db_str(r, row, 0));
	json_field_str(w, "object", "device");
	json_field_i64(w, "index", db_i64(r, row, 1));
	json_field_str(w, "name", db_str(r, row, 2));
	json_field_str(w, "uuid", db_str(r, row, 22));
	json_field_str(w, "instance_type", db_str(r, row, 3));
	json_field_str(w, "region", db_str(r, row, 4));
	json_field_i64(w, "memory_bytes", db_i64(r, row, 5));
	json_field_str(w, "state", db_str(r, row, 6));
	json_field_str(w, "state_since", db_str(r, row, 7));
	json_field_str(w, "attempt_id", db_str(r, row, 8));
	put_cordon(w, r, row);
	json_field_str(w, "registered_at", db_str(r, row, 9));
	json_field_str(w, "deregistered_at", db_str(r, row, 10));
	json_key(w, "agent");
	json_begin_object(w);
	json_field_str(w, "id", db_str(r, row, 11));
	json_field_str(w, "name", db_str(r, row, 12));
	json_field_str(w, "status", db_str(r, row, 13));
	json_field_str(w, "last_seen_at", db_str(r, row, 14));
	json_field_raw(w, "cuda", db_str(r, row, 25));
	json_end_object(w);
	put_time(w, r, row);
	json_field_raw(w, "events", db_str(r, row, 26));
	if (!db_is_null(r, row, 21))
		json_field_raw(w, "segments", db_str(r, row, 21));
	json_end_object(w);
}

int device_store_list(struct db_conn *conn, const struct page *page, bool with_segments,
	struct json_writer *w, struct err *err)
{
	struct page_bounds b;
	page_bounds(page, "dev", &b);
	char sql[sizeof(list_sql) + 64];
	snprintf(
		sql, sizeof(sql), "%s order by d.id %s limit $3", list_sql, b.ascending ? "asc" : "desc");
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc = db_exec(conn, &r, err, sql, DB_TEXT(b.below), DB_TEXT(b.above), DB_I64(b.fetch),
		DB_BOOL(with_segments), DB_I64(DEVICE_STORE_SEGMENTS_MAX), DB_I64(DEVICE_STORE_EVENTS_MAX));
	if (rc < 0)
		return rc;
	page_begin(w);
	for (int i = 0; i < page_count(page, r); i++)
		put_device(w, r, page_row(page, r, i));
	page_end(w, page, r, 0);
	return 0;
}

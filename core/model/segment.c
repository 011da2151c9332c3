/* SPDX-License-Identifier: Apache-2.0
 * The statements that close and open device intervals. devices.open_* and segments are written
 * here and nowhere else (a device's first open interval begins in device_store.c). */
#include "core/model/segment.h"

static const char *const open_words[] = {
	[SEGMENT_IDLE] = "idle",
	[SEGMENT_STARTING] = "starting",
	[SEGMENT_TRAINING] = "training",
	[SEGMENT_STOPPING] = "stopping",
};
static const char *const state_words[] = {
	[SEGMENT_BILLED] = "billed",
	[SEGMENT_UNBILLED] = "unbilled",
	[SEGMENT_WAS_IDLE] = "idle",
	[SEGMENT_LOST] = "lost",
};

/* $1 attempt, $2 state closed as, $3 reason, $4 next open state, $5 the holder afterwards is the
 * attempt, $6 the machine, null = all. One instant for all of these devices, never before any of
 * their intervals began. Rows are locked in the order of ids. `materialized` keeps the instant one:
 * it is volatile. */
static const char switch_sql[] =
	"with held as materialized (select d.id, d.instance_type, d.open_state, d.open_since,"
	"   d.withdrawn, a.id as attempt_id, a.job_id, a.tenant_id"
	"  from attempts a join attempt_devices ad on ad.attempt_id = a.id and not ad.released"
	"  join devices d on d.id = ad.device_id"
	"  where a.id = $1 and ($6::text is null or d.agent_id = $6) order by d.id for update of d),"
	" instant as materialized (select greatest(yard_now(), max(open_since)) as t from held),"
	" billed as (insert into segments"
	"   (device_id, period, state, reason, attempt_id, job_id, tenant_id, price_id)"
	"  select h.id, p.slice, case when p.price_id is null then 'unbilled' else 'billed' end,"
	"   case when p.price_id is null then 'no_price' else $3 end,"
	"   h.attempt_id, h.job_id, h.tenant_id, p.price_id"
	"  from held h, instant i, price_slices(h.instance_type, h.open_since, i.t) p"
	"  where $2 = 'billed' and h.open_since < i.t),"
	" other as (insert into segments"
	"   (device_id, period, state, reason, attempt_id, job_id, tenant_id)"
	"  select h.id, tstzrange(h.open_since, i.t, '[)'), $2, $3,"
	"   case when $2 <> 'idle' then h.attempt_id end, case when $2 <> 'idle' then h.job_id end,"
	"   case when $2 <> 'idle' then h.tenant_id end"
	"  from held h, instant i where $2 <> 'billed' and h.open_since < i.t)"
	" update devices d set open_state = $4, open_since = i.t,"
	"  open_attempt_id = case when $5 then h.attempt_id end,"
	"  deregistered_at = case when h.withdrawn and $4 = 'idle' then i.t end"
	" from held h, instant i where d.id = h.id";

static int switch_devices(struct db_conn *conn, const char *attempt_id, const char *agent_id,
	enum segment_open to, enum segment_state closed_as, const char *reason, struct err *err)
{
	return db_exec(conn, NULL, err, switch_sql, DB_TEXT(attempt_id),
		DB_TEXT(state_words[closed_as]), DB_TEXT(reason), DB_TEXT(open_words[to]),
		DB_BOOL(to != SEGMENT_IDLE), DB_TEXT(agent_id));
}

int segment_switch(struct db_conn *conn, const char *attempt_id, enum segment_open to,
	enum segment_state closed_as, const char *reason, struct err *err)
{
	return switch_devices(conn, attempt_id, NULL, to, closed_as, reason, err);
}

int segment_take(struct db_conn *conn, const char *attempt_id, struct err *err)
{
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc = db_exec(conn, &r, err,
		"select d.open_state = 'idle' and d.deregistered_at is null and not d.withdrawn"
		" from attempt_devices ad join devices d on d.id = ad.device_id"
		" where ad.attempt_id = $1 and not ad.released order by d.id for update of d",
		DB_TEXT(attempt_id));
	if (rc < 0)
		return rc;
	for (int i = 0; i < db_rows(r); i++)
		if (!db_bool(r, i, 0))
			return err_set(err, ERR_DB_CONFLICT, NULL, "A device was taken meanwhile.");
	return switch_devices(conn, attempt_id, NULL, SEGMENT_STARTING, SEGMENT_WAS_IDLE, "idle", err);
}

int segment_release(struct db_conn *conn, const char *attempt_id, enum segment_state closed_as,
	const char *reason, struct err *err)
{
	return segment_release_machine(conn, attempt_id, NULL, closed_as, reason, err);
}

int segment_release_machine(struct db_conn *conn, const char *attempt_id, const char *agent_id,
	enum segment_state closed_as, const char *reason, struct err *err)
{
	int rc = switch_devices(conn, attempt_id, agent_id, SEGMENT_IDLE, closed_as, reason, err);
	if (rc < 0)
		return rc;
	return db_exec(conn, NULL, err,
		"update attempt_devices ad set released = true from devices d where ad.attempt_id = $1"
		" and not ad.released and d.id = ad.device_id and ($2::text is null or d.agent_id = $2)",
		DB_TEXT(attempt_id), DB_TEXT(agent_id));
}

int segment_deregister(struct db_conn *conn, const char *device_id, struct err *err)
{
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc = db_exec(conn, &r, err,
		"with d as materialized (select id, open_since, greatest(yard_now(), open_since) as t"
		"  from devices where id = $1 and open_state = 'idle' and deregistered_at is null"
		"  for update),"
		" s as (insert into segments (device_id, period, state, reason)"
		"  select id, tstzrange(open_since, t, '[)'), 'idle', 'idle' from d where open_since < t)"
		" update devices set open_since = d.t, deregistered_at = d.t from d"
		" where devices.id = d.id returning devices.id",
		DB_TEXT(device_id));
	if (rc < 0)
		return rc;
	if (db_rows(r) == 0)
		return err_set(err, ERR_CONFLICT, NULL, "Device %s is not idle.", device_id);
	return 0;
}

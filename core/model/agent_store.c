/* SPDX-License-Identifier: Apache-2.0
 * The SQL of agents. */
#include "core/model/agent_store.h"

#include "core/base/clock.h"
#include "core/spec/region.h"

#include <stdio.h>
#include <string.h>

static int check_region(const struct agent_machine *m, struct err *err)
{
	if (!region_known(m->key_region) || !region_known(m->region))
		return err_set(err, ERR_RESIDENCY, "$.region", "The region '%.40s' is not known: refused.",
			region_known(m->region) ? m->key_region : m->region);
	if (strcmp(m->region, m->key_region) != 0)
		return err_set(err, ERR_RESIDENCY, "$.region",
			"The machine says it is in '%.40s', its credential vouches for '%.40s'.", m->region,
			m->key_region);
	return 0;
}

static int check_type(struct db_conn *conn, const char *instance_type, struct err *err)
{
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc = db_exec(
		conn, &r, err, "select from instance_types where name = $1", DB_TEXT(instance_type));
	if (rc == 0 && db_rows(r) == 0)
		return err_set(err, ERR_INVALID_VALUE, "$.instance_type",
			"There is no instance type '%.64s'.", instance_type);
	return rc;
}

int agent_store_register(struct db_conn *conn, const struct agent_machine *m,
	char ret_id[static IDENT_MAX], struct err *err)
{
	int rc = check_region(m, err);
	if (rc == 0)
		rc = check_type(conn, m->instance_type, err);
	if (rc < 0)
		return rc;
	char id[IDENT_MAX];
	ident_new(clock_system(), "agent", id);
	cleanup(db_result_freep) struct db_result *r = NULL;
	rc = db_exec(conn, &r, err,
		"insert into agents as g"
		" (id, key_id, name, region, instance_type, boot_id, engine_build, rates, host, cuda)"
		" values ($1, $2, $3, $4, $5, $6, $7, coalesce($8::jsonb, '{}'),"
		"  coalesce($9, '127.0.0.1'), $10::jsonb)"
		" on conflict (key_id) do update set name = excluded.name, region = excluded.region,"
		" instance_type = excluded.instance_type, boot_id = excluded.boot_id,"
		" engine_build = excluded.engine_build, rates = excluded.rates, host = excluded.host,"
		" cuda = excluded.cuda,"
		" status = 'ready',"
		" last_seen_at = yard_now()"
		" where g.instance_type = excluded.instance_type or not exists"
		"  (select from attempts a where a.agent_id = g.id and a.status <> 'ended') and not exists"
		"  (select from attempt_parts p where p.agent_id = g.id and not p.released)"
		" returning g.id",
		DB_TEXT(id), DB_TEXT(m->key_id), DB_TEXT(m->name), DB_TEXT(m->region),
		DB_TEXT(m->instance_type), DB_TEXT(m->boot_id), DB_TEXT(m->engine_build),
		DB_TEXT(m->rates_json), DB_TEXT(m->host), DB_TEXT(m->cuda_json));
	if (rc < 0)
		return rc;
	if (db_rows(r) == 0)
		return err_set(err, ERR_CONFLICT, "$.instance_type",
			"The instance type cannot change while the machine runs a job.");
	snprintf(ret_id, IDENT_MAX, "%s", db_str(r, 0, 0));
	return 0;
}

int agent_store_seen(struct db_conn *conn, const char *key_id, const char *agent_id,
	int64_t *ret_version, struct err *err)
{
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc = db_exec(conn, &r, err,
		"update agents set last_seen_at = yard_now(),"
		" status = case when status = 'lost' then 'ready' else status end"
		" where id = $1 and key_id = $2 returning version",
		DB_TEXT(agent_id), DB_TEXT(key_id));
	if (rc < 0)
		return rc;
	if (db_rows(r) == 0)
		return err_set(err, ERR_NOT_FOUND, "$.agent_id",
			"This credential has no agent %.60s: register first.", agent_id);
	*ret_version = db_i64(r, 0, 0);
	return 0;
}

int agent_store_mark_lost(struct db_conn *conn, int *ret_count, struct err *err)
{
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc = db_exec(conn, &r, err,
		"update agents g set status = 'lost' where g.status = 'ready'"
		" and (g.last_seen_at < yard_now() - $1 * interval '1 millisecond' or"
		"  (g.last_seen_at < yard_now() - $2 * interval '1 millisecond' and exists (select"
		"   from devices d join attempt_devices ad on ad.device_id = d.id and not ad.released"
		"   join attempts a on a.id = ad.attempt_id where d.agent_id = g.id and coalesce("
		"    (select p.lease_until from attempt_parts p where p.attempt_id = a.id"
		"     and p.agent_id = g.id), a.lease_until)"
		"   < yard_now() + $3 * interval '1 millisecond')))"
		" returning g.id",
		DB_I64(AGENT_STORE_SILENT_MS), DB_I64(AGENT_STORE_HOLDER_SILENT_MS),
		DB_I64(AGENT_STORE_LAPSE_MS));
	if (rc == 0)
		*ret_count = db_rows(r);
	return rc;
}

int agent_store_find(
	struct db_conn *conn, const char *key_id, char ret_id[static IDENT_MAX], struct err *err)
{
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc = db_exec(conn, &r, err, "select id from agents where key_id = $1", DB_TEXT(key_id));
	if (rc < 0)
		return rc;
	if (db_rows(r) == 0)
		return err_set(err, ERR_NOT_FOUND, NULL, "This credential has no agent: register first.");
	snprintf(ret_id, IDENT_MAX, "%s", db_str(r, 0, 0));
	return 0;
}

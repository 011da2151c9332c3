/* SPDX-License-Identifier: Apache-2.0
 * The SQL of an attempt's further machines. */
#include "core/model/attempt_part.h"

int attempt_part_insert(struct db_conn *conn, const char *attempt_id, int part,
	const char *agent_id, int64_t lease_ms, struct err *err)
{
	return db_exec(conn, NULL, err,
		"insert into attempt_parts (attempt_id, part, agent_id, lease_until)"
		" values ($1, $2, $3, yard_now() + $4 * interval '1 millisecond')",
		DB_TEXT(attempt_id), DB_I64(part), DB_TEXT(agent_id), DB_I64(lease_ms));
}

int attempt_part_find(struct db_conn *conn, const char *attempt_id, const char *agent_id,
	int64_t *ret_part, int64_t *ret_report_seq, struct err *err)
{
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc = db_exec(conn, &r, err,
		"select part, report_seq from attempt_parts"
		" where attempt_id = $1 and agent_id = $2 and not released",
		DB_TEXT(attempt_id), DB_TEXT(agent_id));
	if (rc < 0)
		return rc;
	if (db_rows(r) == 0)
		return err_set(err, ERR_LEASE_LOST, NULL, "Attempt %s is over or belongs to somebody else.",
			attempt_id);
	*ret_part = db_i64(r, 0, 0);
	*ret_report_seq = db_i64(r, 0, 1);
	return 0;
}

int attempt_part_flush(
	struct db_conn *conn, const char *attempt_id, int64_t part, int64_t report_seq, struct err *err)
{
	return db_exec(conn, NULL, err,
		"update attempt_parts set report_seq = $3 where attempt_id = $1 and part = $2",
		DB_TEXT(attempt_id), DB_I64(part), DB_I64(report_seq));
}

/* Locked in one order, so that two attempts of the same machines do not wait for each other. */
int attempt_part_notify(struct db_conn *conn, const char *attempt_id, struct err *err)
{
	return db_exec(conn, NULL, err,
		"update agents set version = version + 1 where id in (select g.id from agents g"
		" where g.id = (select agent_id from attempts where id = $1)"
		"  or g.id in (select agent_id from attempt_parts where attempt_id = $1)"
		" order by g.id for update)",
		DB_TEXT(attempt_id));
}

int attempt_part_release(struct db_conn *conn, const char *attempt_id, struct err *err)
{
	int rc = db_exec(conn, NULL, err,
		"update attempt_parts set released = true where attempt_id = $1 and not released",
		DB_TEXT(attempt_id));
	if (rc < 0)
		return rc;
	return db_exec(conn, NULL, err, "delete from attempt_rendezvous where attempt_id = $1",
		DB_TEXT(attempt_id));
}

/* SPDX-License-Identifier: Apache-2.0
 * The SQL of leaving machines. The attempt's row is locked before its devices, so that of two who
 * free a machine the second finds nothing held. */
#include "core/model/attempt_leave.h"

/* Each machine of attempt $1 and the end of its lease. */
#define MACHINES                                                \
	"(select agent_id, lease_until from attempts where id = $1" \
	" union all select agent_id, lease_until from attempt_parts where attempt_id = $1)"

/* Devices that are still held for attempts that have ended, by machine. */
#define HELD                                                                         \
	"select distinct ad.attempt_id, d.agent_id from attempt_devices ad"              \
	" join devices d on d.id = ad.device_id join attempts a on a.id = ad.attempt_id" \
	" where not ad.released and a.status = 'ended'"

static int is_alone(struct db_conn *conn, const char *attempt_id, bool *ret, struct err *err)
{
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc = db_exec(conn, &r, err,
		"select not exists (select from attempt_parts where attempt_id = $1)", DB_TEXT(attempt_id));
	if (rc == 0)
		*ret = db_bool(r, 0, 0);
	return rc;
}

int attempt_leave_begin(struct db_conn *conn, const struct attempt *a, bool told,
	enum segment_state closed_as, const char *reason, bool *ret_alone, struct err *err)
{
	bool alone = true;
	int rc = is_alone(conn, a->id, &alone, err);
	if (rc == 0)
		*ret_alone = alone;
	if (rc < 0 || alone)
		return rc;
	/* One instant for all machines' training, whenever each of them is free. */
	rc = segment_switch(conn, a->id, SEGMENT_STOPPING, closed_as, reason, err);
	if (rc < 0)
		return rc;
	cleanup(db_result_freep) struct db_result *r = NULL;
	rc = db_exec(conn, &r, err,
		"select m.agent_id from " MACHINES " m where m.lease_until < yard_now() or ($2 and"
		" m.agent_id = coalesce((select agent_id from attempt_parts where attempt_id = $1"
		"  and part = $3), $4)) order by 1",
		DB_TEXT(a->id), DB_BOOL(told), DB_I64(a->part), DB_TEXT(a->agent_id));
	for (int i = 0; rc == 0 && i < db_rows(r); i++)
		rc = segment_release_machine(
			conn, a->id, db_str(r, i, 0), SEGMENT_UNBILLED, "stopping", err);
	return rc;
}

static int free_all(
	struct db_conn *conn, const struct db_result *held, int *ret_freed, struct err *err)
{
	for (int i = 0; i < db_rows(held); i++) {
		int rc = db_exec(conn, NULL, err, "select from attempts where id = $1 for update",
			DB_TEXT(db_str(held, i, 0)));
		if (rc == 0)
			rc = segment_release_machine(
				conn, db_str(held, i, 0), db_str(held, i, 1), SEGMENT_UNBILLED, "stopping", err);
		if (rc < 0)
			return rc;
	}
	*ret_freed = db_rows(held);
	return 0;
}

int attempt_leave_told(struct db_conn *conn, const char *agent_id, const char *still_has,
	int *ret_freed, struct err *err)
{
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc = db_exec(conn, &r, err,
		HELD " and d.agent_id = $1 and a.id <> all($2::text[]) order by 1 limit $3",
		DB_TEXT(agent_id), DB_TEXT(still_has), DB_I64(ATTEMPT_LEAVE_MAX));
	return rc < 0 ? rc : free_all(conn, r, ret_freed, err);
}

int attempt_leave_lapsed(struct db_conn *conn, int *ret_freed, struct err *err)
{
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc = db_exec(conn, &r, err,
		HELD " and coalesce((select p.lease_until from attempt_parts p where p.attempt_id = a.id"
			 "  and p.agent_id = d.agent_id), a.lease_until) < yard_now() order by 1, 2 limit $1",
		DB_I64(ATTEMPT_LEAVE_MAX));
	return rc < 0 ? rc : free_all(conn, r, ret_freed, err);
}

int attempt_leave_lost_rank(
	struct db_conn *conn, const struct attempt *a, int64_t *ret_rank, struct err *err)
{
	bool alone = true;
	int rc = is_alone(conn, a->id, &alone, err);
	if (rc < 0)
		return rc;
	*ret_rank = ATTEMPT_NO_NUMBER;
	if (alone)
		return 0;
	cleanup(db_result_freep) struct db_result *r = NULL;
	rc = db_exec(conn, &r, err,
		"select coalesce(min(ad.rank), $2) from attempt_devices ad"
		" join devices d on d.id = ad.device_id join " MACHINES " m on m.agent_id = d.agent_id"
		" where ad.attempt_id = $1 and m.lease_until < yard_now()",
		DB_TEXT(a->id), DB_I64(ATTEMPT_NO_NUMBER));
	if (rc == 0)
		*ret_rank = db_i64(r, 0, 0);
	return rc;
}

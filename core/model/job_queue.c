/* SPDX-License-Identifier: Apache-2.0
 * The SQL of the queue. */
#include "core/model/job_queue.h"

#include <stdio.h>
#include <string.h>

static void copy(char *dst, size_t max, const char *src)
{
	snprintf(dst, max, "%s", src == NULL ? "" : src);
}

static const char queue_sql[] =
	"select j.id, j.tenant_id, j.instance_type, j.device_count,"
	" (extract(epoch from yard_now() - j.queued_at) * 1000)::bigint, j.residency::text,"
	" (select coalesce((select d.agent_id from attempt_devices ad join devices d"
	"   on d.id = ad.device_id where ad.attempt_id = a.id and ad.rank = a.rank), a.agent_id)"
	"  from attempts a where a.job_id = j.id and a.outcome in ('failed', 'lost')"
	"  and a.number = j.attempt_count), j.blocked_code, j.blocked_message,"
	" (extract(epoch from yard_now() - greatest(j.queued_at, (select max(a.ended_at)"
	"  from attempts a where a.job_id = j.id))) * 1000)::bigint,"
	" exists (select from attempts a where a.job_id = j.id and a.number = j.attempt_count"
	"  and not exists (select from attempt_devices ad where ad.attempt_id = a.id"
	"   and not ad.released) and (a.outcome = 'lost' or (a.outcome in ('failed', 'preempted') and "
	"exists"
	"   (select from attempt_devices ad join devices d on d.id = ad.device_id join agents g"
	"    on g.id = d.agent_id where ad.attempt_id = a.id and g.status = 'lost')))),"
	" " ELASTIC_COLUMNS(
		"j") " from jobs j where j.status = 'queued' and j.cancel_requested_at is null and not "
			 "exists"
			 " (select from attempts a where a.job_id = j.id and a.status <> 'ended')"
			 " order by j.priority desc, j.queued_at, j.id limit $1";

int job_queue_read(struct db_conn *conn, struct job_queue_job ret[static JOB_QUEUE_SCAN_MAX],
	int *ret_count, struct err *err)
{
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc = db_exec(conn, &r, err, queue_sql, DB_I64(JOB_QUEUE_SCAN_MAX));
	if (rc < 0)
		return rc;
	for (int i = 0; i < db_rows(r); i++) {
		struct job_queue_job *j = &ret[i];
		*j = (struct job_queue_job){ .device_count = db_i64(r, i, 3),
			.waited_ms = db_i64(r, i, 4),
			.paused_ms = db_i64(r, i, 9),
			.after_lost = db_bool(r, i, 10) };
		j->elastic = elastic_of(j->device_count, db_i64(r, i, 11), db_i64(r, i, 12));
		copy(j->id, sizeof(j->id), db_str(r, i, 0));
		copy(j->tenant_id, sizeof(j->tenant_id), db_str(r, i, 1));
		copy(j->instance_type, sizeof(j->instance_type), db_str(r, i, 2));
		copy(j->last_agent_id, sizeof(j->last_agent_id), db_str(r, i, 6));
		copy(j->blocked_code, sizeof(j->blocked_code), db_str(r, i, 7));
		copy(j->blocked_message, sizeof(j->blocked_message), db_str(r, i, 8));
		/* A set that cannot be read stays empty, and an empty set is refused everywhere. */
		if (residency_set_parse(db_str(r, i, 5), &j->residency, NULL) < 0)
			j->residency.count = 0;
	}
	*ret_count = db_rows(r);
	return 0;
}

int job_queue_agents(struct db_conn *conn, struct job_queue_agent ret[static JOB_QUEUE_AGENTS_MAX],
	int *ret_count, struct err *err)
{
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc = db_exec(conn, &r, err,
		"select g.id, g.region, g.instance_type, count(*),"
		" count(*) filter (where d.open_state = 'idle'),"
		" case when g.host ~ '^(127\\.|localhost$|::1$)' then g.boot_id else '' end"
		" from agents g join devices d on d.agent_id = g.id and d.deregistered_at is null"
		"  and not d.withdrawn and d.cordoned_at is null and d.instance_type = g.instance_type and "
		"d.region = g.region"
		" where g.status = 'ready' group by g.id order by g.id limit $1",
		DB_I64(JOB_QUEUE_AGENTS_MAX));
	if (rc < 0)
		return rc;
	for (int i = 0; i < db_rows(r); i++) {
		struct job_queue_agent *g = &ret[i];
		*g = (struct job_queue_agent){ .total = db_i64(r, i, 3), .idle = db_i64(r, i, 4) };
		copy(g->id, sizeof(g->id), db_str(r, i, 0));
		copy(g->region, sizeof(g->region), db_str(r, i, 1));
		copy(g->instance_type, sizeof(g->instance_type), db_str(r, i, 2));
		copy(g->reach, sizeof(g->reach), db_str(r, i, 5));
	}
	*ret_count = db_rows(r);
	return 0;
}

int job_queue_block(struct db_conn *conn, const struct job_queue_job *job, const char *code,
	const char *message, const char *const *refused_places, struct err *err)
{
	if (strcmp(job->blocked_code, code) == 0 && strcmp(job->blocked_message, message) == 0)
		return 0;
	int rc = db_exec(conn, NULL, err,
		"update jobs set blocked_code = $2, blocked_message = $3"
		" where id = $1 and status = 'queued'",
		DB_TEXT(job->id), DB_TEXT(code), DB_TEXT(message));
	for (; rc == 0 && refused_places != NULL && *refused_places != NULL; refused_places++) {
		bool allowed;
		struct residency_question question = {
			.ask = RESIDENCY_DISPATCH,
			.tenant_id = job->tenant_id,
			.subject = job->id,
			.allowed_set = &job->residency,
			.place = *refused_places,
		};
		rc = residency_decide(conn, &question, &allowed, err);
	}
	return rc;
}

/* SPDX-License-Identifier: Apache-2.0
 * The steps of a pass. No state. */
#include "server/scheduler/pass.h"

#include "core/base/log.h"
#include "core/model/agent_store.h"
#include "core/model/attempt_leave.h"
#include "core/model/attempt_store.h"
#include "core/model/checkpoint_store.h"
#include "core/model/job_queue.h"
#include "core/model/rendezvous_store.h"
#include "server/scheduler/placement.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Somebody else was faster: not this pass's business any more. */
static bool is_lost_race(int code)
{
	return code == ERR_DB_CONFLICT || code == ERR_DB_UNIQUE || code == ERR_LEASE_LOST ||
		code == ERR_RESIDENCY || code == ERR_CONFLICT;
}

static void log_failed(
	const struct pass_hooks *hooks, enum pass_step step, const char *subject, const struct err *err)
{
	struct pass_failures *f = hooks->failures;
	int64_t now_us = clock_mono_us(hooks->clock);
	if (now_us < f->next_us[step]) {
		f->unlogged++;
		return;
	}
	f->next_us[step] = now_us + PASS_LOG_EVERY_MS * 1000LL;
	f->logged++;
	log_error("scheduler.step_failed", LOG_STR("subject", subject), LOG_ERR(err),
		LOG_INT("unlogged", f->unlogged));
}

/* Ends a transaction that did rc: 1 committed, 0 not (somebody else was faster, or this one thing
 * fails: that must not keep the pass from the others), negative when the database is gone. */
static int settle(struct db_conn *conn, const struct pass_hooks *hooks, int rc, enum pass_step step,
	const char *subject, struct err *err)
{
	if (rc == 0)
		rc = db_commit(conn, err);
	if (rc == 0)
		return 1;
	db_rollback(conn);
	if (rc == ERR_DATABASE)
		return rc;
	if (!is_lost_race(rc))
		log_failed(hooks, step, subject, err);
	return 0;
}

static void touch(const struct pass_hooks *hooks, const char *kind, const char *id)
{
	char topic[IDENT_MAX + 8];
	snprintf(topic, sizeof(topic), "%s:%s", kind, id);
	hooks->touch(hooks->ctx, topic);
}

/* ---------------------------------------------------------------- leases */

static int expire_one(
	struct db_conn *conn, const struct pass_hooks *hooks, const char *attempt_id, struct err *err)
{
	struct attempt_end end = {
		.outcome = ATTEMPT_LOST,
		.reason = "agent_lost",
		.message = "The machine stopped answering and its lease ran out.",
		.rank = ATTEMPT_NO_NUMBER,
		.exit_code = ATTEMPT_NO_NUMBER,
		.signal = ATTEMPT_NO_NUMBER,
	};
	struct attempt a;
	int rc = db_begin(conn, err);
	if (rc < 0)
		return rc;
	rc = attempt_store_lock_expired(conn, attempt_id, &a, err);
	if (rc == 0)
		rc = attempt_leave_lost_rank(conn, &a, &end.rank, err);
	if (rc == 0)
		rc = attempt_end(conn, &a, &end, err);
	return settle(conn, hooks, rc, PASS_EXPIRE, attempt_id, err);
}

/* Machines of attempts that ended elsewhere, and have not answered since. */
static int free_lapsed(struct db_conn *conn, const struct pass_hooks *hooks, struct err *err)
{
	int freed = 0;
	int rc = db_begin(conn, err);
	if (rc < 0)
		return rc;
	rc = attempt_leave_lapsed(conn, &freed, err);
	rc = settle(conn, hooks, rc, PASS_EXPIRE, "machines", err);
	return rc < 0 ? rc : 0;
}

static void touch_agent(void *ctx, const char *agent_id)
{
	touch(ctx, "agent", agent_id);
}

int pass_expire(
	struct db_conn *conn, const struct pass_hooks *hooks, int *ret_expired, struct err *err)
{
	int lost = 0, expired = 0;
	int rc = agent_store_mark_lost(conn, &lost, err);
	cleanup(db_result_freep) struct db_result *r = NULL;
	if (rc == 0)
		rc = attempt_store_expired(conn, &r, err);
	for (int i = 0; rc == 0 && i < db_rows(r); i++) {
		int done = expire_one(conn, hooks, db_str(r, i, 0), err);
		if (done < 0)
			return done;
		if (done == 0)
			continue;
		expired++;
		log_warn("attempt.expired", LOG_STR("attempt_id", db_str(r, i, 0)),
			LOG_STR("agent_id", db_str(r, i, 1)), LOG_STR("job_id", db_str(r, i, 2)));
		touch(hooks, "agent", db_str(r, i, 1));
		touch(hooks, "job", db_str(r, i, 2));
		const struct attempt_fence fence = { .attempt_id = db_str(r, i, 0),
			.agent_id = db_str(r, i, 1) };
		rc = rendezvous_store_others(conn, &fence, touch_agent, (void *)hooks, err);
	}
	if (rc == 0)
		rc = free_lapsed(conn, hooks, err);
	if (rc == 0)
		*ret_expired = expired;
	return rc;
}

/* ---------------------------------------------------------------- places */

struct yard {
	struct job_queue_job jobs[JOB_QUEUE_SCAN_MAX];
	struct job_queue_agent agents[JOB_QUEUE_AGENTS_MAX];
	int job_count, agent_count;
};

static int place_one(struct db_conn *conn, const struct pass_hooks *hooks,
	const struct job_queue_job *job, struct job_queue_agent *agents, const struct placement *p,
	struct err *err)
{
	struct attempt_placed placed = { 0 };
	struct attempt_place places[ATTEMPT_PARTS_MAX];
	for (int i = 0; i < p->part_count; i++)
		places[i] = (struct attempt_place){ .agent_id = agents[p->parts[i].agent].id,
			.devices = p->parts[i].devices };
	int rc = db_begin(conn, err);
	if (rc < 0)
		return rc;
	rc = attempt_store_place_parts(conn, job->id, places, p->part_count, &placed, err);
	rc = settle(conn, hooks, rc, PASS_PLACE, job->id, err);
	if (rc <= 0)
		return rc;
	for (int i = 0; i < p->part_count; i++) {
		struct job_queue_agent *agent = &agents[p->parts[i].agent];
		agent->idle -= p->parts[i].devices;
		log_info("job.assigned", LOG_STR("job_id", job->id),
			LOG_STR("attempt_id", placed.attempt_id), LOG_INT("attempt", placed.number),
			LOG_STR("agent_id", agent->id), LOG_INT("devices", p->parts[i].devices));
		touch(hooks, "agent", agent->id);
	}
	touch(hooks, "job", job->id);
	return rc;
}

static int block_one(struct db_conn *conn, const struct pass_hooks *hooks,
	const struct job_queue_job *job, const struct placement *p, struct err *err)
{
	int rc = db_begin(conn, err);
	if (rc < 0)
		return rc;
	rc = job_queue_block(conn, job, p->code, p->message, p->refused, err);
	return settle(conn, hooks, rc, PASS_BLOCK, job->id, err);
}

static bool is_news(const struct job_queue_job *job, const struct placement *p)
{
	return strcmp(job->blocked_code, p->code) != 0 || strcmp(job->blocked_message, p->message) != 0;
}

static int place_all(struct db_conn *conn, const struct pass_hooks *hooks, struct yard *y,
	int *ret_placed, struct err *err)
{
	int placed = 0;
	for (int i = 0; i < y->job_count; i++) {
		struct placement p;
		int rc = 0;
		placement_choose_elastic(
			&y->jobs[i], y->agents, y->agent_count, hooks->elastic_wait_ms, &p);
		if (p.agent != PLACEMENT_NONE)
			rc = place_one(conn, hooks, &y->jobs[i], y->agents, &p, err);
		else if (is_news(&y->jobs[i], &p))
			rc = block_one(conn, hooks, &y->jobs[i], &p, err);
		if (rc < 0)
			return rc;
		placed += p.agent != PLACEMENT_NONE && rc > 0;
	}
	*ret_placed = placed;
	return 0;
}

int pass_place(
	struct db_conn *conn, const struct pass_hooks *hooks, int *ret_placed, struct err *err)
{
	cleanup(freep) struct yard *y = malloc(sizeof(*y));
	if (y == NULL)
		return err_set(err, ERR_NO_MEMORY, NULL, "No memory for a scheduler pass.");
	int rc = job_queue_read(conn, y->jobs, &y->job_count, err);
	if (rc < 0)
		return rc;
	if (y->job_count == 0) {
		*ret_placed = 0;
		return 0;
	}
	rc = job_queue_agents(conn, y->agents, &y->agent_count, err);
	return rc < 0 ? rc : place_all(conn, hooks, y, ret_placed, err);
}

/* ---------------------------------------------------------------- content */

int pass_drop(
	struct db_conn *conn, const struct pass_hooks *hooks, int *ret_dropped, struct err *err)
{
	int dropped = 0;
	int rc = db_begin(conn, err);
	if (rc < 0)
		return rc;
	rc = checkpoint_store_drop(conn, hooks->remove, hooks->ctx, &dropped, err);
	rc = settle(conn, hooks, rc, PASS_DROP, "content", err);
	if (rc < 0)
		return rc;
	*ret_dropped = rc > 0 ? dropped : 0;
	return 0;
}

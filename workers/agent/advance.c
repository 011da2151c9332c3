/* SPDX-License-Identifier: Apache-2.0
 * The life of a run. Trainers are started and found in advance_start.c, their ends are looked at in
 * advance_ended.c. */
#include "workers/agent/advance.h"

#include "core/base/log.h"
#include "workers/agent/advance_private.h"
#include "workers/agent/meet.h"
#include "workers/agent/talk.h"
#include "workers/agent/transfer.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

enum { STALL_MIN_MS = 1000, CONNECT_AGAIN_MS = 500 };

void advance_kill(struct run *r)
{
	for (int i = 0; i < r->rank_count; i++) {
		struct run_rank *k = &r->ranks[i];
		if (k->pid == 0 && !k->ended)
			(void)start_adopt(r, i); /* an earlier agent's, not found yet */
		if (k->pid > 0 && !k->ended)
			process_kill(k->pid, k->child, k->lock);
	}
}

void advance_over(struct agent *a, struct run *r, const char *why)
{
	if (r->over)
		return;
	log_info("attempt.over", LOG_STR("attempt_id", r->id), LOG_STR("why", why));
	r->over = true;
	atomic_store(&r->abandon, true);
	advance_kill(r);
	agent_wake(a);
}

void advance_end(struct agent *a, struct run *r, const struct run_end *end)
{
	struct err err = { 0 };
	if (r->end_seq != 0 || r->over)
		return;
	log_info("attempt.end", LOG_STR("attempt_id", r->id), LOG_STR("outcome", end->outcome),
		LOG_STR("reason", end->reason), LOG_STR("message", end->message));
	if (run_push_end(r, end, &err) < 0) {
		log_error("attempt.end_unsent", LOG_STR("attempt_id", r->id), LOG_ERR(&err));
		return;
	}
	agent_report_soon(a);
}

void advance_judge(struct agent *a, struct run *r, const struct run_end *verdict)
{
	if (r->has_verdict || r->end_seq != 0)
		return;
	r->has_verdict = true;
	r->verdict = *verdict;
	advance_kill(r);
	if (run_quiet(r))
		advance_end(a, r, &r->verdict);
}

void advance_fail(struct agent *a, struct run *r, const char *reason, const char *message)
{
	struct run_end end = { .outcome = "failed", .reason = reason, .rank = -1 };
	end.exit.known = false;
	end.log = r->phase == RUN_TRAINING ? r->ranks[0].log : NULL;
	snprintf(end.message, sizeof(end.message), "%s", message);
	advance_judge(a, r, &end);
}

/* ------------------------------------------------------------------------------ deadlines */

static void check_deadlines(struct agent *a, struct run *r)
{
	int64_t now = clock_boot_us(a->clock);
	int64_t stall_us = (r->stall_ms > STALL_MIN_MS ? r->stall_ms : STALL_MIN_MS) * 1000;
	char text[160];
	if (run_quiet(r) || r->has_verdict)
		return;
	if (r->lease_until_us > 0 && now >= r->lease_until_us) {
		snprintf(text, sizeof(text),
			"the yard did not answer for %lld ms: the trainers were killed",
			(long long)a->self_kill_ms);
		advance_fail(a, r, "platform_error", text);
	} else if (r->end_acked_us != 0) {
		if (clock_mono_us(a->clock) - r->end_acked_us > AGENT_STOP_GRACE_MS * 1000LL)
			advance_kill(r);
	} else if (r->end_seq == 0 && r->stall_ms > 0 && now - r->progress_us > stall_us) {
		struct run_end end = {
			.outcome = "failed", .reason = "stalled", .rank = -1, .log = r->ranks[0].log
		};
		snprintf(end.message, sizeof(end.message), "no progress for %lld ms behind step %lld",
			(long long)(stall_us / 1000), (long long)r->last_step);
		if (r->desired == RUN_CANCEL) {
			end.outcome = "cancelled";
			end.reason = NULL;
		}
		advance_judge(a, r, &end);
	}
}

/* A living trainer without a connection is called again: it listens for as long as it lives. */
static void keep_connected(struct agent *a, struct run *r)
{
	int64_t now = clock_boot_us(a->clock);
	for (int i = 0; i < r->rank_count; i++) {
		struct run_rank *k = &r->ranks[i];
		if (k->pid <= 0 || k->ended || k->link.fd >= 0 ||
			now - k->tried_us < CONNECT_AGAIN_MS * 1000LL)
			continue;
		k->tried_us = now;
		if (link_connect(&k->link, k->dir, NULL) == 0)
			talk_hello(a, r, k);
	}
}

/* ------------------------------------------------------------------------------ phases */

static void leave_early(struct agent *a, struct run *r)
{
	struct run_end end = { .outcome = r->desired == RUN_CANCEL ? "cancelled" : "paused",
		.rank = -1 };
	atomic_store(&r->abandon, true);
	if (!r->busy)
		advance_end(a, r, &end);
}

static void advance_new(struct agent *a, struct run *r)
{
	struct err err = { 0 };
	if (!r->acked_known || r->listing == NULL)
		return;
	if (start_was_made(r)) {
		/* The agent before us may have ended before the yard had it. */
		if (run_push_starting(r, &err) == 0)
			start_find_again(a, r);
		return;
	}
	if (r->acked_seq > RUN_STARTING_SEQ) {
		advance_fail(a, r, "platform_error",
			"the attempt's folder is gone from its machine: it cannot go on");
		return;
	}
	if (r->desired != RUN_RUN) {
		leave_early(a, r);
		return;
	}
	if (!start_residency_ok(a, r)) {
		advance_fail(a, r, "residency", "the job's residency does not allow this machine's region");
		return;
	}
	int rc = start_folder(a, r, &err);
	if (rc == 0)
		rc = run_push_starting(r, &err);
	if (rc == 0)
		rc = transfer_start_fetch(a, r, &err);
	if (rc < 0) {
		advance_fail(a, r, "platform_error", err.message);
		return;
	}
	r->phase = RUN_PREPARING;
	agent_report_soon(a);
}

/* Trainers are started when all machines of the attempt can: a rank waits for the others only for
 * so long. */
static void advance_prepared(struct agent *a, struct run *r)
{
	struct err err = { 0 };
	if (r->desired != RUN_RUN) {
		leave_early(a, r);
		return;
	}
	if (!fault_devices_ready(a, r))
		return;
	int rc = r->parts > 1 ? meet_tell_prepared(r, &err) : 0;
	if (rc == 0)
		rc = meet_start(a, r, &err);
	if (rc == 0 && r->parts > 1 && !meet_all_prepared(r))
		return;
	if (rc == 0)
		rc = start_trainers(a, r, &err);
	if (rc < 0)
		advance_fail(a, r, "platform_error", err.message);
}

static void advance_training(struct agent *a, struct run *r)
{
	struct err err = { 0 };
	if (meet_start(a, r, &err) < 0) /* after a restart of the agent; again at the next tick */
		log_warn("rendezvous.not_started", LOG_STR("attempt_id", r->id), LOG_ERR(&err));
	ended_check(a, r);
	check_deadlines(a, r);
	if (r->desired != r->stop_sent && r->end_seq == 0) {
		talk_stop(r);
		r->stop_sent = r->desired;
	}
	keep_connected(a, r);
}

void advance_run(struct agent *a, struct run *r)
{
	struct err err = { 0 };
	if (r->over) {
		advance_kill(r);
		ended_reap(a, r);
		return;
	}
	switch (r->phase) {
	case RUN_NEW:
		if (r->end_seq == 0)
			advance_new(a, r);
		break;
	case RUN_PREPARING:
		if (r->desired != RUN_RUN)
			leave_early(a, r);
		break;
	case RUN_PREPARED:
		if (r->end_seq == 0)
			advance_prepared(a, r);
		break;
	case RUN_TRAINING: advance_training(a, r); break;
	}
	if (!r->busy && run_first_unready(r) != NULL && r->listing != NULL &&
		transfer_start_store(a, r, &err) < 0)
		log_error("transfer.not_started", LOG_STR("attempt_id", r->id), LOG_ERR(&err));
}

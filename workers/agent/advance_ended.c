/* SPDX-License-Identifier: Apache-2.0
 * What the ends of an attempt's trainers mean. When one dies, the others notice and leave too: the
 * attempt is judged by the one that was first, not by those that only missed it. */
#include "workers/agent/advance_private.h"

#include "core/base/log.h"
#include "core/json/reader.h"
#include "workers/agent/talk.h"

#include <stdio.h>
#include <string.h>

enum {
	/* How long ranks may miss another one before that is told as it is: the one that was lost may
	 * be a moment late to be seen. */
	LOST_GRACE_MS = 3000,
	/* The same where rank 0 is another machine's, which tells the attempt's end as a rule. */
	LOST_PART_GRACE_MS = 10000,
};

static bool left_with(const struct run_rank *k, int status)
{
	return k->ended && k->exit.known && k->exit.exit_code == status;
}

static void describe_death(struct run *r, int i, struct run_end *end)
{
	const struct run_rank *k = &r->ranks[i];
	const struct process_exit *e = &k->exit;
	const int rank = r->first_rank + i;
	*end = (struct run_end){
		.outcome = "failed", .reason = "trainer_died", .rank = rank, .exit = *e, .log = k->log
	};
	if (e->exit_code == PROCESS_EXIT_NO_LEASE) {
		end->reason = "platform_error";
		snprintf(end->message, sizeof(end->message),
			"the trainer of rank %d left because its lease ran out", rank);
	} else if (!e->known)
		snprintf(end->message, sizeof(end->message),
			"the trainer of rank %d ended while its agent was away", rank);
	else if (e->signal >= 0)
		snprintf(end->message, sizeof(end->message),
			"the trainer of rank %d was ended by signal %d (%s)", rank, e->signal,
			strsignal(e->signal));
	else
		snprintf(end->message, sizeof(end->message),
			"the trainer of rank %d left with status %d without saying how it ended", rank,
			e->exit_code);
}

/* What rank 0 has said of it, as a part of a sentence. */
static void quote_held(const struct run *r, size_t max, char *ret)
{
	cleanup(json_doc_freep) struct json_doc *doc = NULL;
	ret[0] = '\0';
	if (r->held_end != NULL &&
		json_doc_parse(r->held_end, strlen(r->held_end), LINK_LINE_MAX, &doc, NULL) == 0)
		snprintf(ret, max, " (%.400s)", json_str_or(json_get(json_doc_root(doc), "message"), ""));
}

/* Ranks have lost another one that has not ended, here at least. Whoever is still there is the one:
 * what a rank was waiting for may itself have waited for another. */
static void describe_loss(struct run *r, struct run_end *end)
{
	char said[ERR_MESSAGE_MAX];
	*end = (struct run_end){ .outcome = "failed", .reason = "platform_error", .rank = -1 };
	quote_held(r, sizeof(said), said);
	for (int i = 0; i < r->rank_count; i++) {
		const struct run_rank *k = &r->ranks[i];
		if (!k->ended && (r->first_rank + i > 0 || r->held_end == NULL)) {
			end->rank = r->first_rank + i;
			end->log = k->log;
		} else if (end->rank < 0) {
			end->log = k->log;
		}
	}
	if (end->rank >= 0)
		snprintf(end->message, sizeof(end->message),
			"rank %d does not answer the others of its job%s", end->rank, said);
	else
		snprintf(end->message, sizeof(end->message),
			"a rank of another machine was lost in a collective%s", said);
}

static bool reap(struct agent *a, struct run *r)
{
	bool any = false;
	for (int i = 0; i < r->rank_count; i++) {
		struct run_rank *k = &r->ranks[i];
		if (!k->ended && k->pid > 0 && process_ended(k->pid, k->child, k->lock, &k->exit)) {
			if (k->child && k->exit.exit_code == PROCESS_EXIT_BUSY && start_adopt(r, i))
				continue;
			k->ended = true;
			log_info("trainer.ended", LOG_STR("attempt_id", r->id),
				LOG_INT("rank", r->first_rank + i), LOG_INT("exit_code", k->exit.exit_code),
				LOG_INT("signal", k->exit.signal));
		}
		any = any || k->ended;
	}
	if (any)
		talk_read(a, r); /* what they said before they ended */
	return any;
}

void ended_reap(struct agent *a, struct run *r)
{
	(void)reap(a, r);
}

/* A rank that ended by itself: not because of another one, nor because all have ended. */
static int first_death(const struct run *r)
{
	for (int i = 0; i < r->rank_count; i++) {
		const struct run_rank *k = &r->ranks[i];
		bool follows =
			left_with(k, PROCESS_EXIT_LOST_RANK) || (left_with(k, 0) && r->first_rank + i > 0);
		if (k->ended && !follows)
			return i;
	}
	return -1;
}

static bool any_lost(const struct run *r)
{
	bool any = false;
	for (int i = 0; i < r->rank_count; i++)
		any = any || left_with(&r->ranks[i], PROCESS_EXIT_LOST_RANK);
	return any;
}

/* Rank 0 stays until its end is stored: all others have left. */
static bool all_others_left(const struct run *r)
{
	for (int i = 0; i < r->rank_count; i++)
		if (r->first_rank + i > 0 && !r->ranks[i].ended)
			return false;
	return true;
}

static void tell_held(struct agent *a, struct run *r)
{
	struct err err = { 0 };
	if (run_push(r, r->held_end, strlen(r->held_end), "", true, &err) < 0) {
		log_error("attempt.end_unsent", LOG_STR("attempt_id", r->id), LOG_ERR(&err));
		return;
	}
	agent_report_soon(a);
}

/* Ranks miss one that has not been seen to end. */
static void check_lost(struct agent *a, struct run *r)
{
	struct run_end end;
	int64_t now = clock_boot_us(a->clock);
	int64_t grace_ms = r->first_rank == 0 ? LOST_GRACE_MS : LOST_PART_GRACE_MS;
	if (r->held_end == NULL && !any_lost(r))
		return;
	if (r->lost_us == 0)
		r->lost_us = now;
	bool left = all_others_left(r);
	if (!(left && r->held_end != NULL && r->rank_count == r->world) &&
		now - r->lost_us < grace_ms * 1000)
		return;
	if (left && r->held_end != NULL) {
		tell_held(a, r);
		return;
	}
	describe_loss(r, &end);
	advance_judge(a, r, &end);
}

void ended_check(struct agent *a, struct run *r)
{
	struct run_end end;
	bool any = reap(a, r);
	if (r->end_seq != 0)
		return;
	if (r->has_verdict) {
		if (run_quiet(r))
			advance_end(a, r, &r->verdict);
		return;
	}
	int dead = any ? first_death(r) : -1;
	if (dead < 0) {
		check_lost(a, r);
		return;
	}
	describe_death(r, dead, &end);
	advance_judge(a, r, &end);
}

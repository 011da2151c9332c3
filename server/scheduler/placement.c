/* SPDX-License-Identifier: Apache-2.0
 * Placement by tightest fit, with reasons. No state. */
#include "server/scheduler/placement.h"

#include <stdio.h>
#include <string.h>

/* What was seen of the machines of the job's type. */
struct survey {
	int best;
	int machines;    /* of the type */
	int allowed;     /* of these, where residency allows it */
	int64_t largest; /* devices of the largest allowed one */
	int largest_index;
	int64_t together; /* devices of the allowed ones of the largest group */
	int group;        /* one of these */
	int refused_count;
};

static bool may_use(const struct job_queue_job *job, const struct job_queue_agent *g)
{
	char reason[RESIDENCY_REASON_MAX];
	return strcmp(g->instance_type, job->instance_type) == 0 &&
		residency_allows(&job->residency, g->region, reason);
}

/* Of one region, and the ranks reach each other. */
static bool same_group(const struct job_queue_agent *a, const struct job_queue_agent *b)
{
	return strcmp(a->region, b->region) == 0 && strcmp(a->reach, b->reach) == 0;
}

static bool failed_last(const struct job_queue_job *job, const struct job_queue_agent *g)
{
	return strcmp(g->id, job->last_agent_id) == 0;
}

static bool is_better(const struct job_queue_job *job, const struct job_queue_agent *a,
	const struct job_queue_agent *b)
{
	bool a_failed = failed_last(job, a), b_failed = failed_last(job, b);
	return a_failed != b_failed ? b_failed : a->idle < b->idle;
}

static void note_refused(struct survey *s, struct placement *p, const char *region)
{
	for (int i = 0; i < s->refused_count; i++)
		if (strcmp(p->refused[i], region) == 0)
			return;
	if (s->refused_count < PLACEMENT_REFUSED_MAX)
		p->refused[s->refused_count++] = region;
}

static void look(const struct job_queue_job *job, const struct job_queue_agent *agents, int count,
	struct survey *s, struct placement *p)
{
	char reason[RESIDENCY_REASON_MAX];
	for (int i = 0; i < count; i++) {
		const struct job_queue_agent *g = &agents[i];
		if (strcmp(g->instance_type, job->instance_type) != 0)
			continue;
		s->machines++;
		if (!residency_allows(&job->residency, g->region, reason)) {
			if (g->idle >= job->device_count)
				note_refused(s, p, g->region);
			continue;
		}
		s->allowed++;
		if (g->total > s->largest && !g->reserved) {
			s->largest = g->total;
			s->largest_index = i;
		}
		if (g->idle >= job->device_count && !g->reserved &&
			(s->best == PLACEMENT_NONE || is_better(job, g, &agents[s->best])))
			s->best = i;
	}
}

/* ---------------------------------------------------------------- gangs */

/* The machine of this one's group with the most devices (free ones, or all) that is not taken yet;
 * the one that was lost last comes last. */
static int next_largest(const struct job_queue_job *job, const struct job_queue_agent *agents,
	int count, int of, bool idle, const struct placement *p)
{
	int best = PLACEMENT_NONE;
	for (int i = 0; i < count; i++) {
		const struct job_queue_agent *g = &agents[i];
		bool taken = g->reserved || !may_use(job, g) || !same_group(g, &agents[of]);
		for (int k = 0; k < p->part_count; k++)
			taken = taken || p->parts[k].agent == i;
		int64_t has = idle ? g->idle : g->total;
		if (taken || has == 0)
			continue;
		bool lost = failed_last(job, g);
		if (best != PLACEMENT_NONE && lost != failed_last(job, &agents[best])) {
			best = lost ? best : i;
			continue;
		}
		if (best == PLACEMENT_NONE || has > (idle ? agents[best].idle : agents[best].total))
			best = i;
	}
	return best;
}

/* As few machines of the group as have enough together; false, and p has all of them. */
static bool gather(const struct job_queue_job *job, const struct job_queue_agent *agents, int count,
	int of, bool idle, struct placement *p)
{
	int64_t missing = job->device_count;
	p->part_count = 0;
	while (missing > 0 && p->part_count < ATTEMPT_PARTS_MAX) {
		int i = next_largest(job, agents, count, of, idle, p);
		if (i == PLACEMENT_NONE)
			break;
		int64_t has = idle ? agents[i].idle : agents[i].total;
		int64_t take = has < missing ? has : missing;
		p->parts[p->part_count++] = (struct placement_part){ .agent = i, .devices = take };
		missing -= take;
	}
	return missing == 0;
}

/* The first of its group in the list. */
static bool leads(const struct job_queue_job *job, const struct job_queue_agent *agents, int i)
{
	if (!may_use(job, &agents[i]))
		return false;
	for (int k = 0; k < i; k++)
		if (may_use(job, &agents[k]) && same_group(&agents[k], &agents[i]))
			return false;
	return true;
}

static bool has_failed(const struct job_queue_job *job, const struct job_queue_agent *agents,
	const struct placement *p)
{
	for (int i = 0; i < p->part_count; i++)
		if (failed_last(job, &agents[p->parts[i].agent]))
			return true;
	return false;
}

/* Without the machine that was lost last, then with the fewest machines. */
static bool is_better_gang(const struct job_queue_job *job, const struct job_queue_agent *agents,
	const struct placement *a, const struct placement *b)
{
	bool a_failed = has_failed(job, agents, a), b_failed = has_failed(job, agents, b);
	return a_failed != b_failed ? b_failed : a->part_count < b->part_count;
}

/* The group that needs the fewest machines. Notes the largest one, in case none has enough. */
static void choose_gang(const struct job_queue_job *job, const struct job_queue_agent *agents,
	int count, struct survey *s, struct placement *p)
{
	struct placement tried = *p;
	s->group = PLACEMENT_NONE;
	for (int i = 0; i < count; i++) {
		if (!leads(job, agents, i))
			continue;
		int64_t together = 0;
		for (int k = 0; k < count; k++)
			if (may_use(job, &agents[k]) && same_group(&agents[k], &agents[i]))
				together += agents[k].total;
		if (together > s->together) {
			s->together = together;
			s->group = i;
		}
		if (gather(job, agents, count, i, true, &tried) &&
			(p->part_count == 0 || is_better_gang(job, agents, &tried, p))) {
			memcpy(p->parts, tried.parts, sizeof(p->parts));
			p->part_count = tried.part_count;
		}
	}
	if (p->part_count > 0)
		p->agent = p->parts[0].agent;
}

/* Later jobs leave enough machines of the largest group alone. */
static void reserve_group(const struct job_queue_job *job, struct job_queue_agent *agents,
	int count, const struct survey *s)
{
	struct placement wanted = { .part_count = 0 };
	if (!gather(job, agents, count, s->group, false, &wanted))
		return;
	for (int i = 0; i < wanted.part_count; i++)
		agents[wanted.parts[i].agent].reserved = true;
}

/* ---------------------------------------------------------------- reasons */

static void join(const char *const *words, char *ret, size_t max)
{
	size_t used = 0;
	ret[0] = '\0';
	for (; *words != NULL && used < max; words++)
		used += (size_t)snprintf(ret + used, max - used, "%s%s", used > 0 ? ", " : "", *words);
}

static void explain(const struct job_queue_job *job, const struct survey *s, struct placement *p)
{
	const char *type = job->instance_type;
	long long want = (long long)job->device_count;
	if (s->refused_count > 0) {
		char places[PLACEMENT_REFUSED_MAX * (SPEC_REGION_MAX + 2)], set[RESIDENCY_TEXT_MAX];
		join(p->refused, places, sizeof(places));
		residency_set_format(&job->residency, set);
		snprintf(p->code, sizeof(p->code), "residency");
		snprintf(p->message, sizeof(p->message),
			"The only free %s devices are in %.150s, where the job's residency %.100s does not let"
			" it run.",
			type, places, set);
	} else if (s->machines == 0) {
		snprintf(p->code, sizeof(p->code), "no_machine");
		snprintf(p->message, sizeof(p->message), "No machine with %s devices is connected.", type);
	} else if (s->allowed == 0) {
		snprintf(p->code, sizeof(p->code), "residency");
		snprintf(p->message, sizeof(p->message),
			"No machine with %s devices is in a region where the job's residency lets it run.",
			type);
	} else if (s->largest < job->device_count && s->together < job->device_count) {
		snprintf(p->code, sizeof(p->code), "no_machine");
		snprintf(p->message, sizeof(p->message),
			"No connected machine has %lld %s devices that this job may use, nor have several of "
			"one region together.",
			want, type);
	} else if (s->largest < job->device_count) {
		snprintf(p->code, sizeof(p->code), "no_capacity");
		snprintf(p->message, sizeof(p->message),
			"Waiting for %lld %s devices to become free on machines of one region.", want, type);
	} else {
		snprintf(p->code, sizeof(p->code), "no_capacity");
		snprintf(p->message, sizeof(p->message),
			"Waiting for %lld %s device%s to become free on one machine.", want, type,
			want == 1 ? "" : "s");
	}
}

void placement_choose(const struct job_queue_job *job, struct job_queue_agent *agents, int count,
	struct placement *ret)
{
	struct survey s = { .best = PLACEMENT_NONE, .largest_index = PLACEMENT_NONE };
	*ret = (struct placement){ .agent = PLACEMENT_NONE };
	look(job, agents, count, &s, ret);
	if (s.best != PLACEMENT_NONE) {
		ret->agent = s.best;
		ret->parts[0] = (struct placement_part){ .agent = s.best, .devices = job->device_count };
		ret->part_count = 1;
		return;
	}
	choose_gang(job, agents, count, &s, ret);
	if (ret->agent != PLACEMENT_NONE)
		return;
	explain(job, &s, ret);
	if (job->waited_ms < PLACEMENT_GUARD_MS)
		return;
	if (s.largest >= job->device_count)
		agents[s.largest_index].reserved = true;
	else if (s.together >= job->device_count)
		reserve_group(job, agents, count, &s);
}

void placement_choose_elastic(const struct job_queue_job *job, struct job_queue_agent *agents,
	int count, int64_t elastic_wait_ms, struct placement *ret)
{
	const struct elastic *e = &job->elastic;
	bool may_shrink =
		e->min_data < e->data && (job->after_lost || job->paused_ms >= elastic_wait_ms);
	struct job_queue_job tried = *job;
	tried.waited_ms = 0; /* what is reserved is the whole's, and only when nothing has a place */
	for (int64_t data = e->data; may_shrink && data > 0; data = elastic_next(e, data)) {
		tried.device_count = data * e->others;
		placement_choose(&tried, agents, count, ret);
		if (ret->agent != PLACEMENT_NONE)
			return;
	}
	placement_choose(job, agents, count, ret);
}

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
	int refused_count;
};

static bool is_better(const struct job_queue_job *job, const struct job_queue_agent *a,
	const struct job_queue_agent *b)
{
	bool a_failed = strcmp(a->id, job->last_agent_id) == 0;
	bool b_failed = strcmp(b->id, job->last_agent_id) == 0;
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
	} else if (s->largest < job->device_count) {
		snprintf(p->code, sizeof(p->code), "no_machine");
		snprintf(p->message, sizeof(p->message),
			"No connected machine has %lld %s devices that this job may use.", want, type);
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
	ret->agent = s.best;
	if (s.best != PLACEMENT_NONE)
		return;
	explain(job, &s, ret);
	if (s.largest >= job->device_count && job->waited_ms >= PLACEMENT_GUARD_MS)
		agents[s.largest_index].reserved = true;
}

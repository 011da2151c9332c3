/* SPDX-License-Identifier: Apache-2.0
 * The order of a pipeline's passes. Called by the plan and by the engine; pure, so any thread. */
#include "workers/plan/plan_schedule.h"

static int64_t least(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

/* Forward passes before the first backward pass, less the one that comes with it. */
static int64_t warm_up(const struct plan_schedule *s)
{
	int64_t after = s->ranks - s->rank - 1, all = s->micros * s->chunks;
	if (s->chunks == 1)
		return least(after, all);
	return least(2 * after + (int64_t)(s->chunks - 1) * s->ranks, all);
}

struct plan_item plan_schedule_forward(const struct plan_schedule *s, int64_t k)
{
	int64_t group = k / ((int64_t)s->ranks * s->chunks), first = group * s->ranks;
	int64_t width = least(s->ranks, s->micros - first); /* the last group may be narrower */
	int64_t at = k - first * s->chunks;
	return (struct plan_item){ PLAN_FORWARD, (int)(at / width), first + at % width };
}

struct plan_item plan_schedule_backward(const struct plan_schedule *s, int64_t k)
{
	struct plan_item item = plan_schedule_forward(s, k);
	item.phase = PLAN_BACKWARD;
	item.chunk = s->chunks - 1 - item.chunk;
	return item;
}

struct plan_item plan_schedule_at(const struct plan_schedule *s, int64_t i)
{
	int64_t all = s->micros * s->chunks, warm = warm_up(s), steady = i - warm;
	if (steady < 0)
		return plan_schedule_forward(s, i);
	if (steady >= 2 * (all - warm))
		return plan_schedule_backward(s, i - all);
	return steady % 2 == 0 ? plan_schedule_forward(s, warm + steady / 2)
						   : plan_schedule_backward(s, steady / 2);
}

/* The same comes again with every group of micro-batches, and the first few groups have it all. */
enum { GROUPS = 4 };

int64_t plan_schedule_slots(const struct plan_schedule *s, int chunk)
{
	struct plan_schedule few = *s;
	few.micros = least(s->micros, (int64_t)GROUPS * s->ranks);
	int64_t now = 0, most = 0;
	for (int64_t i = 0; i < plan_schedule_count(&few); i++) {
		struct plan_item item = plan_schedule_at(&few, i);
		if (item.chunk != chunk)
			continue;
		now += item.phase == PLAN_FORWARD ? 1 : -1;
		most = now > most ? now : most;
	}
	return most;
}

double plan_schedule_bubble(const struct plan_schedule *s)
{
	double idle = s->ranks - 1;
	return idle / (idle + (double)s->micros * s->chunks);
}

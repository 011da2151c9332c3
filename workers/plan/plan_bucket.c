/* SPDX-License-Identifier: Apache-2.0
 * Buckets: what the ranks of the data axis keep a part of each (ZeRO, Rajbhandari et al. 2020), and
 * the buffers for it. Called by plan_parallel.c, once the parameters are known. */
#include "core/base/num.h"
#include "workers/plan/plan_private.h"

#include <stdlib.h>

/* Parameters that may share a bucket: one role, one type of weights, gathered or not. */
enum { KEYS = 4 };

static bool narrow(const struct plan *p, const struct plan_param *pr)
{
	return p->type != PLAN_F32 && p->buffers[pr->weight].type == p->type;
}

/* Stage 3 leaves the vectors of a 16-bit plan in place: they are fp32, and few. */
static bool gathers(const struct plan *p, const struct plan_param *pr)
{
	return p->mesh.zero == 3 && (p->type == PLAN_F32 || narrow(p, pr));
}

bool plan_bucket_wants(const struct plan *p, const struct plan_param *pr)
{
	if (p->mesh.zero == 0 || pr->sparse)
		return false;
	if (pr->role == PLAN_TRAINED)
		return true;
	return pr->role == PLAN_FROZEN && p->mesh.zero == 3 && (p->type == PLAN_F32 || pr->rank > 1);
}

static int key_of(const struct plan *p, const struct plan_param *pr)
{
	return (pr->role == PLAN_TRAINED ? 0 : 1) + (narrow(p, pr) ? 0 : 2);
}

/* Chunks of a pipeline make their gradients at different times, and what both ends keep they add up
 * by itself. */
static bool together(const struct plan_param *a, const struct plan_param *b)
{
	return a->chunk == b->chunk && !a->ends && !b->ends;
}

/* The bucket that takes the parameter: the open one of its kind, unless a unit begins and the
 * bucket is large enough, or gathered: then it is one unit's. */
static int choose(struct plan_build *b, int open[KEYS], int open_unit[KEYS], int param)
{
	struct plan *p = b->p;
	const struct plan_param *pr = &p->params[param];
	int key = key_of(p, pr);
	if (open[key] >= 0) {
		const struct plan_bucket *k = &p->buckets[open[key]];
		bool full = gathers(p, pr) || plan_bucket_is_full(b, k->count);
		if (together(&p->params[k->first], pr) && (open_unit[key] == pr->unit || !full))
			return open[key];
	}
	p->buckets[p->bucket_count] = (struct plan_bucket){ .trained = pr->role == PLAN_TRAINED,
		.first = param, /* until there is the list */
		.type = p->buffers[pr->weight].type,
		.weights = -1,
		.own_weights = gathers(p, pr) ? 0 : -1,
		.gradient = -1,
		.own_gradient = -1,
		.own_part = -1,
		.own_master = -1,
		.own_moment1 = -1,
		.own_moment2 = -1,
		.own_average = -1 };
	return open[key] = p->bucket_count++;
}

/* Sets bucket and place of each parameter; the same places on all ranks of the tensor axis, so that
 * what those keep alike is cut alike. */
static void assign(struct plan_build *b)
{
	struct plan *p = b->p;
	int open[KEYS] = { -1, -1, -1, -1 }, open_unit[KEYS] = { 0 };
	for (int i = 0; i < p->param_count; i++) {
		struct plan_param *pr = &p->params[i];
		if (!plan_bucket_wants(p, pr))
			continue;
		pr->bucket = choose(b, open, open_unit, i);
		open_unit[key_of(p, pr)] = pr->unit;
		struct plan_bucket *k = &p->buckets[pr->bucket];
		pr->bucket_begin = k->count;
		k->count += num_round_up(pr->room, PLAN_BUCKET_UNIT);
	}
}

static void list(struct plan *p)
{
	int at = 0;
	for (int k = 0; k < p->bucket_count; k++) {
		p->buckets[k].first = at;
		for (int i = 0; i < p->param_count; i++)
			if (p->params[i].bucket == k)
				p->bucket_params[at++] = i;
		p->buckets[k].end = at;
	}
}

static int persistent(struct plan_build *b, enum plan_buffer_kind kind, enum plan_type type,
	int64_t count, int bucket, const char *what)
{
	return plan_build_persistent(b, kind, type, count, "bucket.%d.%s", bucket, what);
}

static void add_state(struct plan_build *b, struct plan_bucket *k, int i)
{
	const struct spec_hyper *h = &b->spec->hyper;
	const int zero = b->p->mesh.zero;
	bool adam = h->optimizer == SPEC_ADAMW;
	if (zero == 1)
		k->gradient = persistent(b, PLAN_GRADIENTS, PLAN_F32, k->count, i, "gradients");
	else
		k->own_gradient = persistent(b, PLAN_GRADIENTS, PLAN_F32, k->shard, i, "gradients.own");
	if (k->type != PLAN_F32)
		k->own_master = persistent(b, PLAN_OPTIMIZER, PLAN_F32, k->shard, i, "master.own");
	if (adam || h->momentum > 0)
		k->own_moment1 = persistent(b, PLAN_OPTIMIZER, PLAN_F32, k->shard, i, "moment1.own");
	if (adam)
		k->own_moment2 = persistent(b, PLAN_OPTIMIZER, PLAN_F32, k->shard, i, "moment2.own");
	if (h->ema_decay > 0)
		k->own_average = persistent(b, PLAN_OPTIMIZER, PLAN_F32, k->shard, i, "average.own");
}

void plan_bucket_build(struct plan_build *b)
{
	struct plan *p = b->p;
	if (b->code)
		return;
	p->buckets = calloc((size_t)p->param_count + 1, sizeof(*p->buckets));
	p->bucket_params = calloc((size_t)p->param_count + 1, sizeof(*p->bucket_params));
	if (!p->buckets || !p->bucket_params) {
		plan_build_fail(b, ERR_NO_MEMORY, NULL, "no memory for the plan");
		return;
	}
	assign(b);
	list(p);
	for (int i = 0; i < p->bucket_count && !b->code; i++) {
		struct plan_bucket *k = &p->buckets[i];
		k->count = num_round_up(k->count, (int64_t)PLAN_BUCKET_UNIT * p->mesh.data);
		k->shard = k->count / p->mesh.data;
		if (plan_bucket_gathered(k))
			k->own_weights = persistent(b, PLAN_WEIGHTS, k->type, k->shard, i, "weights.own");
		else
			k->weights = persistent(b, PLAN_WEIGHTS, k->type, k->count, i, "weights");
		if (k->trained)
			add_state(b, k, i);
	}
}

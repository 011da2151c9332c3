/* SPDX-License-Identifier: Apache-2.0
 * The search for the best mesh: tries all that divide the devices and the model, keeps the best of
 * every pair (tensor, pipeline), orders them. Knows no rule of thumb. One thread. */
#include "workers/plan/scale_private.h"

#include <stdlib.h>
#include <string.h>

enum { DIVISORS_MAX = 1536 }; /* no number below 2^31 has more */
/* What is estimated to need so many times the memory does not fit, however wrong the estimate. */
static const double HOPELESS = 1.5;

struct search {
	const struct scale_model *m;
	const struct scale_cluster *c;
	const struct scale_bounds *b;
	struct err *err;
	int code;
	struct scale_choice pair; /* the best so far of the pair that is being tried */
	bool found;
	struct scale_choice best; /* the best of the pairs before */
	bool has_best;
	int64_t tried;
};

/* Of two that fit the faster, of two that do not the smaller, and what fits before what does not.
 * Simpler ones come first, so that what is as good does not replace them. */
static bool beats(const struct scale_cost *a, const struct scale_cost *b)
{
	if (a->fits != b->fits)
		return a->fits;
	return a->fits ? a->step_s < SCALE_BETTER * b->step_s : a->memory_bytes < b->memory_bytes;
}

/* Asking costs a thousand estimates: one mesh of each pair is asked for, so that an axis that is
 * not there is known, and then those that would lead all pairs and are not far too large. */
static bool is_worth_asking(const struct search *s, const struct scale_choice *next)
{
	if (!s->b->measure)
		return false;
	if (!s->found)
		return true;
	if (next->cost.memory_bytes > HOPELESS * s->c->device.memory_bytes)
		return false;
	return !s->has_best || beats(&next->cost, &s->best.cost);
}

/* The real bytes of a mesh. */
static int measure(struct search *s, struct scale_choice *next)
{
	struct err ignored = { 0 };
	double bytes = 0;
	int rc = s->b->measure(s->b->ctx, &next->mesh, &bytes, &ignored);
	if (rc == 0) {
		next->cost.memory_bytes = bytes;
		next->cost.fits = bytes <= s->c->device.memory_bytes;
	} else if (rc != ERR_INVALID_VALUE && rc != ERR_PLAN_TOO_LARGE) {
		*s->err = ignored;
		s->code = rc;
	}
	return rc;
}

/* False: nor will it be another that differs by checkpointing or micro-batch. */
static bool try_mesh(struct search *s, const struct scale_mesh *mesh)
{
	struct scale_choice next = { .mesh = *mesh };
	struct err ignored = { 0 };
	if (scale_estimate(s->m, s->c, mesh, &next.cost, &ignored))
		return true;
	s->tried++;
	if (s->found && !beats(&next.cost, &s->pair.cost))
		return true;
	int rc = is_worth_asking(s, &next) ? measure(s, &next) : 0;
	if (rc)
		return rc == ERR_PLAN_TOO_LARGE;
	if (!s->found || beats(&next.cost, &s->pair.cost)) {
		s->pair = next;
		s->found = true;
	}
	return true;
}

/* The divisors of n, the largest first. */
static int divisors(int64_t n, int64_t *ret)
{
	int count = 0;
	for (int64_t i = 1; i * i <= n && count < DIVISORS_MAX; i++)
		if (n % i == 0)
			ret[count++] = n / i;
	for (int i = count - 1; i >= 0 && count < DIVISORS_MAX; i--)
		if (n / ret[i] != ret[i])
			ret[count++] = n / ret[i];
	return count;
}

/* Chunks of equal size, or a power of two of them. */
static bool chunks_ok(const struct scale_model *m, int pipeline, int v)
{
	if (v == 1)
		return true;
	return pipeline > 1 && (int64_t)pipeline * v <= m->layers &&
		((v & (v - 1)) == 0 || m->layers % (pipeline * v) == 0);
}

static bool micro_batch_ok(const struct scale_bounds *b, int64_t micro_batch)
{
	return (b->micro_batch == 0 || micro_batch == b->micro_batch) &&
		(b->micro_batch_most == 0 || micro_batch <= b->micro_batch_most);
}

/* All that share axes, ZeRO and chunks. */
static void try_kin(
	struct search *s, struct scale_mesh mesh, const int64_t *batches, int batch_count)
{
	int ways = s->m->layers > 0 ? SCALE_CHECKPOINTINGS : 1;
	for (int way = 0; way < ways; way++) {
		mesh.checkpointing = (enum spec_checkpointing)way;
		if (s->b->checkpointing_given && mesh.checkpointing != s->b->checkpointing)
			continue;
		for (int i = 0; i < batch_count; i++) {
			mesh.micro_batch = batches[i];
			if (micro_batch_ok(s->b, batches[i]) && (!try_mesh(s, &mesh) || s->code))
				return;
		}
	}
}

static void try_pair(struct search *s, int tensor, int pipeline)
{
	const struct scale_model *m = s->m;
	struct scale_mesh mesh = { .data = s->c->devices / (tensor * pipeline),
		.tensor = tensor,
		.pipeline = pipeline,
		.interleave = 1,
		.micro_batch = 1 };
	int64_t batches[DIVISORS_MAX];
	struct err ignored = { 0 };
	if (scale_mesh_check(m, s->c, &mesh, &ignored))
		return;
	int batch_count = divisors(m->batch / mesh.data, batches);
	int most_chunks = m->layers > 0 ? (int)(m->layers / pipeline) : 1;
	for (mesh.zero = 0; mesh.zero <= (mesh.data > 1 ? 3 : 0); mesh.zero++)
		for (mesh.interleave = 1; mesh.interleave <= most_chunks && !s->code; mesh.interleave++)
			if (chunks_ok(m, pipeline, mesh.interleave))
				try_kin(s, mesh, batches, batch_count);
}

static int compare(const void *a, const void *b)
{
	const struct scale_cost *x = &((const struct scale_choice *)a)->cost;
	const struct scale_cost *y = &((const struct scale_choice *)b)->cost;
	if (x->fits != y->fits)
		return x->fits ? -1 : 1;
	double left = x->fits ? x->step_s : x->memory_bytes;
	double right = y->fits ? y->step_s : y->memory_bytes;
	return left < right ? -1 : left > right;
}

/* Keeps the list in order; when it is full the last falls out. The best of all is chosen as within
 * a pair: a later pair has to be better by half a percent to lead. */
static void keep(struct search *s, struct scale_search *r)
{
	const struct scale_choice *pair = &s->pair;
	if (!s->has_best || beats(&pair->cost, &s->best.cost))
		s->best = *pair;
	s->has_best = true;
	if (r->choice_count < SCALE_RUNNERS_MAX) {
		r->choice[r->choice_count++] = *pair;
		return;
	}
	int worst = 0;
	for (int i = 1; i < r->choice_count; i++)
		if (compare(&r->choice[i], &r->choice[worst]) > 0)
			worst = i;
	if (compare(pair, &r->choice[worst]) < 0)
		r->choice[worst] = *pair;
}

static bool same_pair(const struct scale_mesh *a, const struct scale_mesh *b)
{
	return a->tensor == b->tensor && a->pipeline == b->pipeline;
}

static void lead(struct scale_search *r, const struct scale_choice *best)
{
	qsort(r->choice, (size_t)r->choice_count, sizeof(r->choice[0]), compare);
	int at = 0;
	while (at < r->choice_count - 1 && !same_pair(&r->choice[at].mesh, &best->mesh))
		at++;
	memmove(&r->choice[1], &r->choice[0], (size_t)at * sizeof(r->choice[0]));
	r->choice[0] = *best;
}

int scale_search(const struct scale_model *m, const struct scale_cluster *c,
	struct scale_search *ret, struct err *err)
{
	return scale_search_within(m, c, &(struct scale_bounds){ 0 }, ret, err);
}

int scale_search_within(const struct scale_model *m, const struct scale_cluster *c,
	const struct scale_bounds *b, struct scale_search *ret, struct err *err)
{
	struct search s = { .m = m, .c = c, .b = b, .err = err };
	*ret = (struct scale_search){ 0 };
	for (int pipeline = 1; pipeline <= c->devices; pipeline++)
		for (int tensor = 1; tensor <= c->devices / pipeline; tensor++) {
			if (c->devices % (pipeline * tensor))
				continue;
			s.found = false;
			try_pair(&s, tensor, pipeline);
			if (s.found)
				keep(&s, ret);
		}
	ret->tried = s.tried;
	if (s.code)
		return s.code;
	if (ret->choice_count == 0)
		return err_set(err, ERR_INVALID_VALUE, "$.parallelism",
			"no mesh of %d devices divides a batch of %lld and the model", c->devices,
			(long long)m->batch);
	lead(ret, &s.best);
	for (int i = 1; i < ret->choice_count; i++)
		scale_reason_lost(c, &ret->choice[0], &ret->choice[i]);
	scale_reason_won(c, &ret->choice[0]);
	if (!ret->choice[0].cost.fits)
		return err_set(err, ERR_PLAN_TOO_LARGE, "$.parallelism",
			"no mesh fits: the smallest needs %.2f GB of a device's %.2f",
			ret->choice[0].cost.memory_bytes / 1e9, c->device.memory_bytes / 1e9);
	return 0;
}

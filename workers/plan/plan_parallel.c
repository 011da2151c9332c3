/* SPDX-License-Identifier: Apache-2.0
 * What happens to gradients between ranks, and all of the data axis, woven into the operations that
 * a family has emitted: gradients are reduced while the backward pass goes on; with ZeRO the
 * operations work on buckets, and stage 3 gathers a layer's weights while the one before computes.
 * Called by plan_optimize.c. */
#include "workers/plan/plan_private.h"

#include <stdlib.h>
#include <string.h>

/* What comes before or after an operation of the family. The order of the enumeration is that of
 * events at one place. */
enum what { WAIT_REDUCE, REDUCE, LAST_WAIT, TABLE, FIRST_GATHER, WAIT_GATHER, GATHER, CLEAR };

struct event {
	int op; /* before it; op_count: at the end */
	enum what what;
	int item; /* range of gradients, use of gathered weights, or sparse table */
};

/* Gradients that are reduced as one: a bucket, or with stage 0 neighbours in the flat range. */
struct range {
	int bucket;       /* -1: stage 0 */
	int x;            /* buffer */
	int64_t count;    /* of x */
	int64_t flat;     /* stage 0: its first element in the flat range */
	int first, last;  /* operations that write them */
	int ticket, part; /* part: buffer of the micro-batch's own sum, -1 = none */
};

/* Operations that read a gathered bucket without many others in between: one copy of it. */
struct use {
	int bucket, first, last;
	int buffer, ticket;
};

struct weave {
	struct plan_build *b;
	struct plan_op *ops; /* the family's */
	int op_count, backward_begin;
	int *section; /* of each operation (plan_pipeline_section) */
	int *new_begin,
		*new_end;  /* where what is before an operation, and what ends there, have come to */
	int *param_of; /* by buffer: 1 + parameter whose name it is, 0 = none; negative: its gradient */
	int buffer_count;
	struct range *ranges;
	int range_count;
	struct use *uses;
	int use_count, use_cap;
	struct event *events;
	int event_count;
};

/* ------------------------------------------------------------------ what is where */

static void names(struct weave *w)
{
	const struct plan *p = w->b->p;
	for (int i = 0; i < p->param_count; i++) {
		const struct plan_param *pr = &p->params[i];
		if (pr->bucket >= 0)
			w->param_of[pr->weight] = i + 1;
		if (pr->gradient >= 0)
			w->param_of[pr->gradient] = -(i + 1);
	}
}

/* The range that a parameter's gradient is in. */
static int range_of(const struct weave *w, const int *by_param, int buffer)
{
	int at = buffer >= 0 && buffer < w->buffer_count ? w->param_of[buffer] : 0;
	return at < 0 ? by_param[-at - 1] : -1;
}

/* Stage 0: neighbours in the flat range, from its end, which the backward pass reaches first. */
static void flat_ranges(struct weave *w, int *by_param)
{
	const struct plan *p = w->b->p;
	struct range *r = NULL;
	int unit = 0, chunk = 0;
	int64_t end = p->flat_count;
	for (int i = p->param_count - 1; i >= 0; i--) {
		const struct plan_param *pr = &p->params[i];
		if (pr->flat < 0)
			continue;
		bool full = r && plan_bucket_is_full(w->b, r->count) && pr->unit != unit;
		if (!r || full || pr->chunk != chunk) {
			end = r ? end - r->count : end;
			r = &w->ranges[w->range_count++];
			*r = (struct range){ .bucket = -1, .first = w->op_count, .last = -1, .part = -1 };
		}
		unit = pr->unit;
		chunk = pr->chunk;
		r->x = pr->gradient;
		r->count = end - pr->flat;
		r->flat = pr->flat;
		by_param[i] = w->range_count - 1;
	}
}

static void bucket_ranges(struct weave *w, int *by_param)
{
	struct plan *p = w->b->p;
	bool parts = p->mesh.zero >= 2 && p->micro_steps > 1;
	for (int k = 0; k < p->bucket_count; k++) {
		struct plan_bucket *bucket = &p->buckets[k];
		if (!bucket->trained)
			continue;
		for (int i = bucket->first; i < bucket->end; i++)
			by_param[p->bucket_params[i]] = w->range_count;
		if (p->mesh.zero >= 2)
			bucket->gradient = plan_build_buffer(
				w->b, PLAN_WORKSPACE, PLAN_F32, bucket->count, "bucket.%d.gradients", k);
		if (parts)
			bucket->own_part = plan_build_buffer(
				w->b, PLAN_WORKSPACE, PLAN_F32, bucket->shard, "bucket.%d.gradients.part", k);
		w->ranges[w->range_count++] = (struct range){ .bucket = k,
			.x = bucket->gradient,
			.count = bucket->count,
			.first = w->op_count,
			.last = -1,
			.part = bucket->own_part };
	}
}

/* Ranges, and where each is written. */
static void find_ranges(struct weave *w, int *by_param)
{
	const struct plan *p = w->b->p;
	for (int i = 0; i < p->param_count; i++)
		by_param[i] = -1;
	if (p->mesh.zero == 0)
		flat_ranges(w, by_param);
	else
		bucket_ranges(w, by_param);
	for (int i = 0; i < w->op_count; i++)
		for (int k = 0; k < PLAN_OPERANDS_MAX; k++) {
			int r = range_of(w, by_param, w->ops[i].operand[k]);
			if (r < 0)
				continue;
			if (w->ranges[r].first > i)
				w->ranges[r].first = i;
			w->ranges[r].last = i;
		}
	for (int r = 0; r < w->range_count; r++)
		w->ranges[r].ticket = plan_parallel_ticket(w->b);
}

/* The gathered bucket whose weights an operand is, -1 = none. */
static int gathered_of(const struct weave *w, int buffer)
{
	const struct plan *p = w->b->p;
	int at = buffer >= 0 && buffer < w->buffer_count ? w->param_of[buffer] : 0;
	if (at <= 0)
		return -1;
	int bucket = p->params[at - 1].bucket;
	return plan_bucket_gathered(&p->buckets[bucket]) ? bucket : -1;
}

static struct use *add_use(struct weave *w, int bucket, int op)
{
	if (w->use_count == w->use_cap) {
		int next = w->use_cap ? 2 * w->use_cap : 64;
		void *mem = realloc(w->uses, (size_t)next * sizeof(*w->uses));
		if (!mem) {
			plan_build_fail(w->b, ERR_NO_MEMORY, NULL, "no memory for the plan");
			return NULL;
		}
		w->uses = mem;
		w->use_cap = next;
	}
	w->uses[w->use_count] = (struct use){ .bucket = bucket, .first = op, .last = op };
	return &w->uses[w->use_count++];
}

/* A copy stays while at most one other bucket is gathered meanwhile: so the last layer's serves its
 * forward and its backward pass, and a tied embedding's is not kept through all layers. since[k]:
 * uses there were when bucket k was last read. */
static void find_uses(struct weave *w, int *open, int *since)
{
	const struct plan *p = w->b->p;
	for (int k = 0; k < p->bucket_count; k++)
		open[k] = -1;
	for (int i = 0; i < w->op_count && !w->b->code; i++)
		for (int o = 0; o < PLAN_OPERANDS_MAX; o++) {
			int k = gathered_of(w, w->ops[i].operand[o]);
			if (k < 0)
				continue;
			bool same = open[k] >= 0 && w->section[w->uses[open[k]].last] == w->section[i];
			if (same && w->use_count - since[k] <= 1) {
				w->uses[open[k]].last = i;
			} else {
				open[k] = w->use_count;
				if (!add_use(w, k, i))
					return;
			}
			since[k] = w->use_count;
		}
	for (int i = 0; i < w->use_count; i++) {
		struct use *u = &w->uses[i];
		const struct plan_bucket *k = &p->buckets[u->bucket];
		u->ticket = plan_parallel_ticket(w->b);
		u->buffer = plan_build_buffer(
			w->b, PLAN_WORKSPACE, k->type, k->count, "bucket.%d.weights.gathered", u->bucket);
	}
}

/* ------------------------------------------------------------------ events */

static void event(struct weave *w, int op, enum what what, int item)
{
	w->events[w->event_count++] = (struct event){ op, what, item };
}

static int compare_events(const void *a, const void *b)
{
	const struct event *x = a, *y = b;
	if (x->op != y->op)
		return x->op < y->op ? -1 : 1;
	if (x->what != y->what)
		return (int)x->what - (int)y->what;
	return x->item - y->item;
}

static int compare_ranges(const void *a, const void *b)
{
	const struct range *x = a, *y = b;
	return x->last != y->last ? x->last - y->last : x->bucket - y->bucket;
}

/* The operation that stores a table's gradients. */
static int store_of(const struct weave *w, int ids)
{
	int last = 0;
	for (int i = 0; i < w->op_count; i++)
		for (int k = 0; k < PLAN_OPERANDS_MAX; k++)
			if (w->ops[i].operand[k] == ids)
				last = i;
	return last;
}

/* Behind the operations of a section. */
static int section_end(const struct weave *w, int op)
{
	int end = op;
	while (end < w->op_count && w->section[end] == w->section[op])
		end++;
	return end;
}

/* The gathered weights of a section are asked for in it, each while the one before is used; those
 * of one operation at once. */
static void gather_events(struct weave *w)
{
	for (int i = 0; i < w->use_count; i++) {
		const struct use *u = &w->uses[i];
		int k = i - 1;
		while (k >= 0 && w->uses[k].first == u->first)
			k--;
		if (k < 0 || w->section[w->uses[k].first] != w->section[u->first])
			event(w, u->first, FIRST_GATHER, i);
		else
			event(w, w->uses[k].first, GATHER, i);
		event(w, u->first, WAIT_GATHER, i);
	}
}

/* Stages 2 and 3 wait for a bucket's sum when the next bucket is made, so that no more than two
 * buckets of gradients are alive; stages 0 and 1 wait before the optimizer. */
static void find_events(struct weave *w)
{
	const struct plan *p = w->b->p;
	const bool every = p->mesh.zero >= 2;
	for (int r = 0; r < w->range_count; r++) {
		const struct range *g = &w->ranges[r];
		if (g->last < 0)
			continue; /* nothing writes them: they stay zero */
		event(w, g->last + 1, REDUCE, r);
		if (every)
			event(w, g->first, CLEAR, r);
		int next = r + 1; /* that is made later */
		while (next < w->range_count && w->ranges[next].last == g->last)
			next++;
		bool other =
			next < w->range_count && w->section[w->ranges[next].last] == w->section[g->last];
		if (every && other)
			event(w, w->ranges[next].last + 1, WAIT_REDUCE, r);
		else
			event(w, every ? section_end(w, g->last) : w->op_count, LAST_WAIT, r);
	}
	gather_events(w);
	/* Of tables that the ranks share, the family has moved it. */
	for (int t = 0; t < w->b->table_count && !p->pieces; t++)
		event(w, store_of(w, w->b->table[t].ids) + 1, TABLE, t);
	qsort(w->events, (size_t)w->event_count, sizeof(*w->events), compare_events);
}

/* ------------------------------------------------------------------ weaving */

/* The parameter's gradient is in the range, and the ranks of the tensor axis have parts of it. */
static bool sums(const struct weave *w, const struct range *g, const struct plan_param *pr)
{
	if (!pr->summed || pr->role != PLAN_TRAINED)
		return false;
	if (g->bucket >= 0)
		return pr->bucket == g->bucket;
	return pr->flat >= g->flat && pr->flat < g->flat + g->count;
}

/* What the ranks of the tensor axis add up first: neighbours as one. */
static void emit_sums(struct weave *w, const struct range *g)
{
	struct plan_build *b = w->b;
	const struct plan *p = b->p;
	const bool last_micro = p->mesh.zero < 2;
	int first = p->ticket_count;
	for (int i = 0; i < p->param_count; i++) {
		if (!sums(w, g, &p->params[i]))
			continue;
		const struct plan_param *from = &p->params[i];
		while (i + 1 < p->param_count && sums(w, g, &p->params[i + 1]))
			i++;
		const struct plan_param *to = &p->params[i];
		bool bucket = g->bucket >= 0;
		int64_t begin = bucket ? from->bucket_begin : from->flat;
		int64_t end = (bucket ? to->bucket_begin : to->flat) + to->count;
		struct plan_op *op = plan_parallel_call(b, PLAN_AXIS_TENSOR, PLAN_OP_ALL_REDUCE,
			"gradients", g->x, -1, end - begin, plan_parallel_ticket(b));
		op->shift[0] = begin - (bucket ? 0 : g->flat);
		op->last_micro = last_micro;
	}
	for (int ticket = first; ticket < p->ticket_count; ticket++)
		plan_parallel_wait(b, PLAN_AXIS_TENSOR, "gradients", g->x, -1, ticket)->last_micro =
			last_micro;
}

static void emit_reduce(struct weave *w, const struct range *g)
{
	struct plan_build *b = w->b;
	const struct plan *p = b->p;
	struct plan_op *op = NULL;
	if (p->mesh.tensor > 1)
		emit_sums(w, g);
	if (p->mesh.data == 1)
		return;
	if (p->mesh.zero == 0) {
		op = plan_parallel_call(
			b, PLAN_AXIS_DATA, PLAN_OP_ALL_REDUCE, "gradients", g->x, -1, g->count, g->ticket);
	} else {
		const struct plan_bucket *k = &p->buckets[g->bucket];
		int y = p->mesh.zero == 1 ? g->x : g->part >= 0 ? g->part : k->own_gradient;
		op = plan_parallel_call(
			b, PLAN_AXIS_DATA, PLAN_OP_REDUCE_SCATTER, "gradients", g->x, y, k->shard, g->ticket);
		if (p->mesh.zero == 1)
			op->shift[1] = p->mesh.data_rank * k->shard;
	}
	op->last_micro = p->mesh.zero < 2;
}

static void emit_wait_reduce(struct weave *w, const struct range *g)
{
	struct plan_build *b = w->b;
	if (b->p->mesh.data == 1)
		return;
	const struct plan_bucket *k = g->bucket >= 0 ? &b->p->buckets[g->bucket] : NULL;
	int y = g->part >= 0 ? g->part : k ? k->own_gradient : -1;
	plan_parallel_wait(b, PLAN_AXIS_DATA, "gradients", g->x, y, g->ticket)->last_micro =
		b->p->mesh.zero < 2;
	if (k && g->part >= 0)
		plan_build_op(b, PLAN_OP_ACCUMULATE, "gradients", PLAN_OPERANDS(g->part, k->own_gradient),
			PLAN_DIMS(k->shard), 0);
}

static void emit_clear(struct weave *w, const struct range *g)
{
	plan_build_op(w->b, PLAN_OP_CLEAR, "gradients", PLAN_OPERANDS(g->x), NULL, 0, 0)->bucket =
		g->bucket;
}

static void emit_gather(struct weave *w, const struct use *u)
{
	const struct plan_bucket *k = &w->b->p->buckets[u->bucket];
	plan_parallel_call(w->b, PLAN_AXIS_DATA, PLAN_OP_ALL_GATHER, "weights", k->own_weights,
		u->buffer, k->shard, u->ticket);
}

static void emit_wait_gather(struct weave *w, const struct use *u)
{
	plan_parallel_wait(w->b, PLAN_AXIS_DATA, "weights", w->b->p->buckets[u->bucket].own_weights,
		u->buffer, u->ticket);
}

/* A table's look-ups and their gradients lie in the order of the batch, whoever made them: a
 * micro-batch of each rank, then the next of each. */
static void emit_table(struct weave *w, struct plan_table *t)
{
	struct plan_build *b = w->b;
	const struct plan *p = b->p;
	const char *name = p->params[t->param].name;
	const int buffers[] = { t->ids, t->grads };
	const int64_t widths[] = { t->lookups, t->d };
	for (int i = 0; i < 2; i++) {
		t->ticket[i] = plan_parallel_ticket(b);
		int64_t count = p->micro_batch * widths[i];
		struct plan_op *op = plan_parallel_call(b, PLAN_AXIS_DATA, PLAN_OP_ALL_GATHER, name,
			buffers[i], buffers[i], count, t->ticket[i]);
		op->shift[0] = p->mesh.data_rank * count;
		op->dim[1] = p->mesh.data * count;
	}
}

static void emit(struct weave *w, const struct event *e)
{
	switch (e->what) {
	case REDUCE: emit_reduce(w, &w->ranges[e->item]); return;
	case LAST_WAIT:
	case WAIT_REDUCE: emit_wait_reduce(w, &w->ranges[e->item]); return;
	case CLEAR: emit_clear(w, &w->ranges[e->item]); return;
	case FIRST_GATHER:
	case GATHER: emit_gather(w, &w->uses[e->item]); return;
	case WAIT_GATHER: emit_wait_gather(w, &w->uses[e->item]); return;
	case TABLE: emit_table(w, &w->b->table[e->item]); return;
	}
}

/* The copy of a bucket that an operation reads. */
static int copy_at(const struct weave *w, int bucket, int op)
{
	for (int i = 0; i < w->use_count; i++)
		if (w->uses[i].bucket == bucket && w->uses[i].first <= op && op <= w->uses[i].last)
			return w->uses[i].buffer;
	return -1;
}

/* Names of parameters become places in their buckets. */
static void place_operands(const struct weave *w, struct plan_op *op, int index)
{
	const struct plan *p = w->b->p;
	for (int i = 0; i < PLAN_OPERANDS_MAX; i++) {
		int at = op->operand[i] >= 0 && op->operand[i] < w->buffer_count
			? w->param_of[op->operand[i]]
			: 0;
		if (at == 0)
			continue;
		const struct plan_param *pr = &p->params[(at < 0 ? -at : at) - 1];
		if (pr->bucket < 0)
			continue;
		const struct plan_bucket *k = &p->buckets[pr->bucket];
		op->operand[i] = at < 0       ? k->gradient
			: plan_bucket_gathered(k) ? copy_at(w, pr->bucket, index)
									  : k->weights;
		op->shift[i] += pr->bucket_begin;
	}
}

/* Lifetimes start anew. */
static void forget_lifetimes(struct plan *p)
{
	for (int i = 0; i < p->buffer_count; i++)
		if (p->buffers[i].last_op != PLAN_OPS_MAX)
			p->buffers[i].first_op = p->buffers[i].last_op = -1;
	for (int i = 0; i < p->param_count; i++) {
		struct plan_param *pr = &p->params[i];
		if (pr->bucket < 0)
			continue;
		p->buffers[pr->weight].bytes = 0;
		if (pr->gradient >= 0)
			p->buffers[pr->gradient].bytes = 0;
	}
}

/* A chunk's last operation takes what follows from it along; two sections that are joint meet
 * before that, since an evaluation runs the first alone. */
static void move_sections(const struct weave *w)
{
	struct plan *p = w->b->p;
	for (int c = 0; c < p->chunk_count; c++) {
		struct plan_section *f = &p->chunks[c].forward, *k = &p->chunks[c].backward;
		bool joint = plan_pipeline_is_joint(p, c);
		f->begin = w->new_end[f->begin];
		f->body = w->new_end[f->body];
		f->end = joint ? w->new_begin[f->end] : w->new_end[f->end];
		k->begin = joint ? w->new_begin[k->begin] : w->new_end[k->begin];
		k->body = joint ? w->new_begin[k->body] : w->new_end[k->body];
		k->end = w->new_end[k->end];
	}
	p->backward_begin = p->chunks[p->chunk_count - 1].backward.begin;
}

static bool follows(enum what what)
{
	return what < FIRST_GATHER;
}

static void weave(struct weave *w)
{
	struct plan_build *b = w->b;
	struct plan *p = b->p;
	int at = 0;
	p->ops = NULL;
	p->op_count = b->op_cap = 0;
	for (int i = 0; i <= w->op_count && !b->code; i++) {
		b->phase = i < w->backward_begin ? PLAN_FORWARD : PLAN_BACKWARD;
		w->new_begin[i] = p->op_count;
		while (at < w->event_count && w->events[at].op == i && follows(w->events[at].what))
			emit(w, &w->events[at++]);
		w->new_end[i] = p->op_count;
		while (at < w->event_count && w->events[at].op == i)
			emit(w, &w->events[at++]);
		if (i == w->op_count)
			break;
		struct plan_op op = w->ops[i];
		plan_cost(p, &op);
		place_operands(w, &op, i);
		plan_build_repeat(b, &op);
	}
}

static void run(struct weave *w)
{
	struct plan *p = w->b->p;
	size_t params = (size_t)p->param_count + 1, buckets = (size_t)p->bucket_count + 1;
	cleanup(freep) int *scratch = calloc(params + 2 * buckets, sizeof(int));
	w->param_of = calloc((size_t)w->buffer_count + 1, sizeof(int));
	w->ranges = calloc(params, sizeof(*w->ranges));
	w->section = calloc(3 * ((size_t)w->op_count + 1), sizeof(int));
	if (!scratch || !w->param_of || !w->ranges || !w->section) {
		plan_build_fail(w->b, ERR_NO_MEMORY, NULL, "no memory for the plan");
		return;
	}
	w->new_begin = w->section + w->op_count + 1;
	w->new_end = w->new_begin + w->op_count + 1;
	for (int i = 0; i < w->op_count; i++)
		w->section[i] = plan_pipeline_section(p, i);
	names(w);
	find_ranges(w, scratch);
	qsort(w->ranges, (size_t)w->range_count, sizeof(*w->ranges), compare_ranges);
	find_uses(w, scratch + params, scratch + params + buckets);
	w->events = calloc(3 * (size_t)w->range_count + 2 * (size_t)w->use_count + SPEC_TABLES_MAX,
		sizeof(*w->events));
	if (!w->events) {
		plan_build_fail(w->b, ERR_NO_MEMORY, NULL, "no memory for the plan");
		return;
	}
	find_events(w);
	if (w->b->code)
		return;
	forget_lifetimes(p);
	weave(w);
	if (!w->b->code)
		move_sections(w);
	for (int i = 0; i < p->param_count; i++)
		if (p->params[i].bucket >= 0)
			p->params[i].gradient = -1;
}

void plan_parallel(struct plan_build *b)
{
	struct plan *p = b->p;
	if (p->mesh.zero > 0)
		plan_bucket_build(b);
	if (b->code)
		return;
	struct weave w = { .b = b,
		.ops = p->ops,
		.op_count = p->op_count,
		.backward_begin = p->backward_begin,
		.buffer_count = p->buffer_count };
	run(&w);
	if (p->ops != w.ops)
		free(w.ops);
	free(w.param_of);
	free(w.section);
	free(w.ranges);
	free(w.uses);
	free(w.events);
}

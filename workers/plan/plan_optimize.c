/* SPDX-License-Identifier: Apache-2.0
 * The optimizer's operations, once per step: the norm of all gradients, then the updates, over the
 * flat ranges of the dense parameters and over each sparse table. Called by plan_compile after the
 * family. */
#include "workers/plan/plan_private.h"

#include <stdlib.h>

/* What a table's step works with; alive from the reduction to the update. */
struct sparse {
	int rows, sums, count; /* buffers */
	int64_t capacity;      /* look-ups of a whole batch */
};

/* Elements of a parameter in a flat range of a type: whole multiples of PLAN_ALIGN_BYTES. */
static int64_t flat_elements(int64_t count, enum plan_type type)
{
	int64_t unit = PLAN_ALIGN_BYTES / plan_type_bytes(type);
	return (count + unit - 1) / unit * unit;
}

static void sizes(struct plan *p)
{
	for (int i = 0; i < p->param_count; i++) {
		struct plan_param *pr = &p->params[i];
		if (pr->role != PLAN_TRAINED || pr->sparse || plan_bucket_wants(p, pr))
			continue;
		pr->flat = p->flat_count;
		p->flat_count += flat_elements(pr->count, PLAN_F32);
	}
}

static struct sparse sparse_reduce(struct plan_build *b, const struct plan_table *t)
{
	struct plan *p = b->p;
	const char *name = p->params[t->param].name;
	struct sparse s = { .capacity = plan_build_count(b, p->batch, t->lookups, 1) };
	s.rows = plan_build_buffer(b, PLAN_GRADIENTS, PLAN_I32, s.capacity, "%.64s.touched_rows", name);
	s.sums = plan_build_buffer(b, PLAN_GRADIENTS, PLAN_F32,
		plan_build_count(b, s.capacity, t->d, 1), "%.64s.row_sums", name);
	s.count = plan_build_buffer(b, PLAN_GRADIENTS, PLAN_I32, 1, "%.64s.touched_count", name);
	plan_build_op(b, PLAN_OP_SPARSE_REDUCE, name,
		PLAN_OPERANDS(t->ids, t->grads, s.rows, s.sums, s.count),
		PLAN_DIMS(p->batch, t->lookups, t->d, t->rows), plan_workspace_sparse(s.capacity))
		->uncounted = p->mesh.data_rank > 0 && !p->pieces;
	return s;
}

static void sparse_update(struct plan_build *b, const struct plan_table *t, const struct sparse *s)
{
	const struct plan_param *pr = &b->p->params[t->param];
	if (b->p->optimizer == SPEC_ADAMW)
		plan_build_op(b, PLAN_OP_SPARSE_ADAMW, pr->name,
			PLAN_OPERANDS(pr->master, pr->moment1, pr->moment2, s->rows, s->sums, s->count),
			PLAN_DIMS(s->capacity, t->d), 0);
	else
		plan_build_op(b, PLAN_OP_SPARSE_SGD, pr->name,
			PLAN_OPERANDS(pr->master, pr->moment1, s->rows, s->sums, s->count),
			PLAN_DIMS(s->capacity, t->d), 0);
}

/* A row of fp32 values and what belongs to it. */
struct dense {
	int master, gradient, moment1, moment2, average, weights; /* buffers; -1 = none */
	int64_t master_at, gradient_at, weights_at;               /* elements from their start */
	int64_t count;
	int bucket;
};

/* What is counted together: on the ranks of the tensor axis each has its part of some parameters
 * and the same of others, and both ends of a pipeline may have one. */
struct count {
	bool alike, elsewhere;
};

static struct count count_of(const struct plan *p, const struct plan_param *pr)
{
	return (struct count){ .alike = p->mesh.tensor > 1 && pr->cut.run == pr->cut.period,
		.elsewhere = pr->ends && p->mesh.pipeline_rank > 0 };
}

/* Squares of elements [begin, end) of the row. What ranks have alike is counted by the first of
 * each axis. */
static void norm_of(
	struct plan_build *b, const struct dense *d, int64_t begin, int64_t end, struct count c)
{
	const struct plan_mesh *m = &b->p->mesh;
	if (begin >= end)
		return;
	struct plan_op *op =
		plan_build_op(b, PLAN_OP_GRADIENT_NORM, "gradient_norm", PLAN_OPERANDS(d->gradient),
			PLAN_DIMS(end - begin), PLAN_ROW_BLOCKS * (int64_t)sizeof(double));
	op->shift[0] = d->gradient_at + begin;
	op->uncounted =
		(d->bucket < 0 && m->data_rank > 0) || (c.alike && m->tensor_rank > 0) || c.elsewhere;
}

/* Where a parameter begins in its row. */
static int64_t begin_of(const struct dense *d, const struct plan_param *pr)
{
	return d->bucket < 0 ? pr->flat : pr->bucket_begin;
}

/* The row's parameters are in the order of params; a run that is counted together is one
 * operation. */
static void dense_norm(struct plan_build *b, const struct dense *d)
{
	const struct plan *p = b->p;
	int64_t own = d->bucket < 0 ? 0 : p->mesh.data_rank * d->count, begin = 0;
	struct count open = { false, false };
	for (int i = 0; i < p->param_count; i++) {
		const struct plan_param *pr = &p->params[i];
		if (d->bucket < 0 ? pr->flat < 0 : pr->bucket != d->bucket)
			continue;
		struct count now = count_of(p, pr);
		int64_t at = begin_of(d, pr) - own;
		at = at < 0 ? 0 : at > d->count ? d->count : at;
		if (now.alike != open.alike || now.elsewhere != open.elsewhere) {
			norm_of(b, d, begin, at, open);
			begin = at;
		}
		open = now;
	}
	norm_of(b, d, begin, d->count, open);
}

static void dense_update(struct plan_build *b, const struct dense *d)
{
	struct plan_op *op = NULL;
	int weights = b->spec->hyper.stochastic_rounding ? -1 : d->weights; /* dense_round's */
	if (b->p->optimizer == SPEC_ADAMW) {
		op = plan_build_op(b, PLAN_OP_ADAMW, "adamw",
			PLAN_OPERANDS(d->master, d->gradient, d->moment1, d->moment2, weights),
			PLAN_DIMS(d->count), 0);
		op->shift[4] = d->weights_at;
	} else {
		op = plan_build_op(b, PLAN_OP_SGD, "sgd",
			PLAN_OPERANDS(d->master, d->gradient, d->moment1, weights), PLAN_DIMS(d->count), 0);
		op->shift[3] = d->weights_at;
	}
	op->shift[0] = d->master_at;
	op->shift[1] = d->gradient_at;
	op->bucket = d->bucket;
}

/* A parameter at a time, since the random bits are those of its elements: what of it lies in the
 * row. */
static void dense_round(struct plan_build *b, const struct dense *d)
{
	const struct plan *p = b->p;
	int64_t own = d->bucket < 0 ? 0 : p->mesh.data_rank * d->count;
	if (!b->spec->hyper.stochastic_rounding || d->weights < 0)
		return;
	for (int i = 0; i < p->param_count; i++) {
		const struct plan_param *pr = &p->params[i];
		bool whole = d->bucket < 0;
		if (whole ? pr->flat < 0 || pr->master == pr->weight : pr->bucket != d->bucket)
			continue;
		int64_t at = begin_of(d, pr), begin = at > own ? at : own;
		int64_t end = at + pr->count < own + d->count ? at + pr->count : own + d->count;
		if (begin >= end)
			continue;
		struct plan_op *op = plan_build_op(b, PLAN_OP_ROUND, pr->name,
			PLAN_OPERANDS(whole ? pr->master : d->master, whole ? pr->weight : d->weights),
			PLAN_DIMS(
				end - begin, pr->number, begin - at, pr->cut.first, pr->cut.run, pr->cut.period),
			0);
		op->shift[0] = whole ? 0 : d->master_at + begin - own;
		op->shift[1] = whole ? 0 : d->weights_at + begin - own;
	}
}

static void dense_average(struct plan_build *b, const struct dense *d)
{
	if (d->average >= 0)
		plan_build_op(b, PLAN_OP_AVERAGE, "average", PLAN_OPERANDS(d->master, d->average),
			PLAN_DIMS(d->count), 0)
			->shift[0] = d->master_at;
}

/* The own part of a bucket. */
static struct dense dense_of(const struct plan *p, int bucket)
{
	const struct plan_bucket *k = &p->buckets[bucket];
	bool gathered = plan_bucket_gathered(k), copied = k->own_master >= 0;
	int weights = gathered ? k->own_weights : k->weights;
	int64_t own = p->mesh.data_rank * k->shard, weights_at = gathered ? 0 : own;
	return (struct dense){ .master = copied ? k->own_master : weights,
		.master_at = copied ? 0 : weights_at,
		.weights = copied ? weights : -1,
		.weights_at = copied ? weights_at : 0,
		.gradient = p->mesh.zero == 1 ? k->gradient : k->own_gradient,
		.gradient_at = p->mesh.zero == 1 ? own : 0,
		.moment1 = k->own_moment1,
		.moment2 = k->own_moment2,
		.average = k->own_average,
		.count = k->shard,
		.bucket = bucket };
}

/* The first dense trained parameter, whose buffers begin the flat ranges, and the first of them
 * whose weight is a low-precision copy of the master. */
static const struct plan_param *first_of(const struct plan *p, bool copied)
{
	for (int i = 0; i < p->param_count; i++)
		if (p->params[i].flat >= 0 && (!copied || p->params[i].master != p->params[i].weight))
			return &p->params[i];
	return NULL;
}

/* The buffer of a gradient that the operation can write whole, or -1. */
static int gradient_of(const struct plan_op *op)
{
	return op->kind == PLAN_OP_LINEAR_BACKWARD_WEIGHT ? op->operand[2]
		: op->kind == PLAN_OP_CLASSIFIER              ? op->operand[6]
													  : -1;
}

/* Large gradients whose first operation can write them need not be zeroed for each step. */
static void first_writers(struct plan_build *b)
{
	struct plan *p = b->p;
	cleanup(freep) int *first = calloc((size_t)p->buffer_count, sizeof(*first)); /* 1 + operation */
	if (!first) {
		plan_build_fail(b, ERR_NO_MEMORY, NULL, "no memory for the plan");
		return;
	}
	for (int i = p->op_count - 1; i >= 0; i--)
		for (int k = 0; k < PLAN_OPERANDS_MAX; k++)
			if (p->ops[i].operand[k] >= 0)
				first[p->ops[i].operand[k]] = i + 1;
	for (int i = 0; i < p->param_count; i++) {
		struct plan_param *pr = &p->params[i];
		struct plan_op *op =
			pr->gradient >= 0 && first[pr->gradient] ? &p->ops[first[pr->gradient] - 1] : NULL;
		if (op && gradient_of(op) == pr->gradient)
			pr->overwritten = op->overwrites = true;
	}
}

/* The flat ranges of the parameters that are not cut. False: there are none. */
static bool dense_flat(const struct plan *p, struct dense *ret)
{
	const struct plan_param *first = first_of(p, false), *copied = first_of(p, true);
	if (!first)
		return false;
	*ret = (struct dense){ .master = first->master,
		.gradient = first->gradient,
		.moment1 = first->moment1,
		.moment2 = first->moment2,
		.average = first->average,
		.weights = copied ? copied->weight : -1,
		.count = p->flat_count,
		.bucket = -1 };
	return true;
}

/* Squares of the gradients, once they are those of all ranks. */
static void norms(struct plan_build *b, const struct dense *d, int count, struct sparse *sparse)
{
	const struct plan *p = b->p;
	plan_pipeline_ends(b);
	for (int i = 0; i < count; i++)
		dense_norm(b, &d[i]);
	for (int i = 0; i < b->table_count; i++) {
		const struct plan_table *t = &b->table[i];
		if (p->mesh.data > 1 && !p->pieces) {
			const char *name = p->params[t->param].name;
			plan_parallel_wait(b, PLAN_AXIS_DATA, name, t->ids, -1, t->ticket[0]);
			plan_parallel_wait(b, PLAN_AXIS_DATA, name, t->grads, -1, t->ticket[1]);
		}
		sparse[i] = sparse_reduce(b, t);
	}
	int64_t running = 0;
	for (int i = 0; i < p->param_count; i++)
		running += p->params[i].role == PLAN_STATE ? p->params[i].count : 0;
	if (p->mesh.data > 1 && running > 0)
		plan_build_op(b, PLAN_OP_RUNNING, "running_statistics", NULL, 0, PLAN_DIMS(running), 0)
			->axis = PLAN_AXIS_DATA;
	if (plan_mesh_size(&p->mesh) > 1)
		plan_build_op(b, PLAN_OP_EXCHANGE, "exchange", NULL, 0, PLAN_DIMS(1 + p->micro_steps), 0)
			->axis = PLAN_AXIS_ALL;
}

/* Stages 1 and 2: what the owner has updated goes to all, while the next bucket is updated. */
static void return_weights(struct plan_build *b, const struct dense *d, int *ret_ticket)
{
	const struct plan_bucket *k = d->bucket >= 0 ? &b->p->buckets[d->bucket] : NULL;
	*ret_ticket = -1;
	if (!k || plan_bucket_gathered(k))
		return;
	*ret_ticket = plan_parallel_ticket(b);
	plan_parallel_call(b, PLAN_AXIS_DATA, PLAN_OP_ALL_GATHER, "weights", k->weights, k->weights,
		k->shard, *ret_ticket)
		->shift[0] = b->p->mesh.data_rank * k->shard;
}

static void updates(struct plan_build *b, const struct dense *d, int count)
{
	cleanup(freep) int *tickets = calloc((size_t)count + 1, sizeof(*tickets));
	if (!tickets) {
		plan_build_fail(b, ERR_NO_MEMORY, NULL, "no memory for the plan");
		return;
	}
	for (int i = 0; i < count; i++) {
		dense_update(b, &d[i]);
		dense_round(b, &d[i]);
		return_weights(b, &d[i], &tickets[i]);
	}
	for (int i = 0; i < count; i++)
		dense_average(b, &d[i]);
	for (int i = 0; i < count; i++)
		if (tickets[i] >= 0)
			plan_parallel_wait(
				b, PLAN_AXIS_DATA, "weights", b->p->buckets[d[i].bucket].weights, -1, tickets[i]);
}

static void optimize(struct plan_build *b, struct dense *d)
{
	struct plan *p = b->p;
	struct sparse sparse[SPEC_TABLES_MAX];
	int count = 0;
	for (int i = 0; i < p->bucket_count; i++)
		if (p->buckets[i].trained)
			d[count++] = dense_of(p, i);
	if (p->bucket_count == 0 && dense_flat(p, &d[0]))
		count = 1;
	if (count == 0) {
		plan_build_fail(b, ERR_INVALID_VALUE, "$.model", "nothing in this model can be trained");
		return;
	}
	norms(b, d, count, sparse);
	updates(b, d, count);
	for (int i = 0; i < b->table_count; i++)
		sparse_update(b, &b->table[i], &sparse[i]);
	for (int i = 0; i < b->table_count; i++) {
		const struct plan_param *pr = &p->params[b->table[i].param];
		if (pr->average >= 0)
			plan_build_op(b, PLAN_OP_AVERAGE, pr->name, PLAN_OPERANDS(pr->master, pr->average),
				PLAN_DIMS(pr->count), 0);
	}
}

void plan_optimize(struct plan_build *b)
{
	struct plan *p = b->p;
	if (b->code)
		return;
	sizes(p);
	plan_pipeline_whole(b);
	first_writers(b);
	if (p->mesh.data > 1 || p->mesh.tensor > 1)
		plan_parallel(b);
	p->optimize_begin = p->op_count;
	b->phase = PLAN_OPTIMIZE;
	if (b->code)
		return;
	cleanup(freep) struct dense *d = calloc((size_t)p->bucket_count + 1, sizeof(*d));
	if (!d)
		plan_build_fail(b, ERR_NO_MEMORY, NULL, "no memory for the plan");
	else
		optimize(b, d);
}

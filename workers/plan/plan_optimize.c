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
		if (pr->role != PLAN_STATE)
			p->parameter_count += pr->count;
		if (pr->role == PLAN_TRAINED)
			p->trained_count += pr->count;
		if (pr->role != PLAN_TRAINED || pr->sparse)
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
		PLAN_DIMS(p->batch, t->lookups, t->d, t->rows), plan_workspace_sparse(s.capacity));
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

static void dense_update(struct plan_build *b, const struct plan_param *first, int weights)
{
	struct plan *p = b->p;
	if (p->optimizer == SPEC_ADAMW)
		plan_build_op(b, PLAN_OP_ADAMW, "adamw",
			PLAN_OPERANDS(first->master, first->gradient, first->moment1, first->moment2, weights),
			PLAN_DIMS(p->flat_count), 0);
	else
		plan_build_op(b, PLAN_OP_SGD, "sgd",
			PLAN_OPERANDS(first->master, first->gradient, first->moment1, weights),
			PLAN_DIMS(p->flat_count), 0);
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
	for (int i = p->optimize_begin - 1; i >= 0; i--)
		for (int k = 0; k < PLAN_OPERANDS_MAX; k++)
			if (p->ops[i].operand[k] >= 0)
				first[p->ops[i].operand[k]] = i + 1;
	for (int i = 0; i < p->param_count; i++) {
		struct plan_param *pr = &p->params[i];
		struct plan_op *op =
			pr->flat >= 0 && first[pr->gradient] ? &p->ops[first[pr->gradient] - 1] : NULL;
		if (op && gradient_of(op) == pr->gradient)
			pr->overwritten = op->overwrites = true;
	}
}

void plan_optimize(struct plan_build *b)
{
	struct plan *p = b->p;
	p->optimize_begin = p->op_count;
	b->phase = PLAN_OPTIMIZE;
	if (b->code)
		return;
	sizes(p);
	first_writers(b);
	const struct plan_param *first = first_of(p, false), *copied = first_of(p, true);
	if (!first) {
		plan_build_fail(b, ERR_INVALID_VALUE, "$.model", "nothing in this model can be trained");
		return;
	}
	plan_build_op(b, PLAN_OP_GRADIENT_NORM, "gradient_norm", PLAN_OPERANDS(first->gradient),
		PLAN_DIMS(p->flat_count), PLAN_ROW_BLOCKS * (int64_t)sizeof(double));
	struct sparse sparse[SPEC_TABLES_MAX];
	for (int i = 0; i < b->table_count; i++)
		sparse[i] = sparse_reduce(b, &b->table[i]);
	dense_update(b, first, copied ? copied->weight : -1);
	for (int i = 0; i < b->table_count; i++)
		sparse_update(b, &b->table[i], &sparse[i]);
	if (first->average < 0)
		return;
	plan_build_op(b, PLAN_OP_AVERAGE, "average", PLAN_OPERANDS(first->master, first->average),
		PLAN_DIMS(p->flat_count), 0);
	for (int i = 0; i < b->table_count; i++) {
		const struct plan_param *pr = &p->params[b->table[i].param];
		plan_build_op(b, PLAN_OP_AVERAGE, pr->name, PLAN_OPERANDS(pr->master, pr->average),
			PLAN_DIMS(pr->count), 0);
	}
}

/* SPDX-License-Identifier: Apache-2.0
 * The builder that families write operations, buffers and parameters into. Called by plan.c and the
 * family files only; one thread. */
#include "workers/plan/plan_private.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Largest single buffer: no device of ours comes near it, and sums of them cannot overflow. */
static const int64_t buffer_bytes_max = INT64_C(1) << 44;

void plan_build_fail(struct plan_build *b, int code, const char *param, const char *fmt, ...)
{
	if (b->code)
		return;
	char text[ERR_MESSAGE_MAX];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	b->code = err_set(b->err, code, param, "%s", text);
}

int64_t plan_build_floats(struct plan_build *b, int64_t x, int64_t y, int64_t z)
{
	int64_t n = 0;
	if (__builtin_mul_overflow(x, y, &n) || __builtin_mul_overflow(n, z, &n) ||
		__builtin_mul_overflow(n, INT64_C(4), &n) || n > buffer_bytes_max || n < 0) {
		plan_build_fail(b, ERR_PLAN_TOO_LARGE, "$.model",
			"a single tensor of the model would need more than 16 TiB");
		return 4;
	}
	return n;
}

/* Room for one more item of an array that doubles. */
static bool grow(struct plan_build *b, void **items, int count, int *cap, size_t item, int max)
{
	if (b->code)
		return false;
	if (count < *cap)
		return true;
	if (count >= max) {
		plan_build_fail(b, ERR_PLAN_TOO_LARGE, "$.model.config",
			"the model has too many parts (more than %d)", max);
		return false;
	}
	int next = *cap ? *cap * 2 : 256;
	void *mem = realloc(*items, (size_t)next * item);
	if (!mem) {
		plan_build_fail(b, ERR_NO_MEMORY, NULL, "no memory for the plan");
		return false;
	}
	*items = mem;
	*cap = next;
	return true;
}

static int add_buffer(struct plan_build *b, enum plan_buffer_kind kind, int64_t bytes, int last_op,
	const char *fmt, va_list ap)
{
	struct plan *p = b->p;
	void *items = p->buffers;
	bool ok = grow(
		b, &items, p->buffer_count, &b->buffer_cap, sizeof(struct plan_buffer), PLAN_BUFFERS_MAX);
	p->buffers = items;
	if (!ok)
		return -1;
	struct plan_buffer *buf = &p->buffers[p->buffer_count];
	*buf = (struct plan_buffer){ .kind = kind, .bytes = bytes, .first_op = -1, .last_op = last_op };
	vsnprintf(buf->name, sizeof(buf->name), fmt, ap);
	return p->buffer_count++;
}

int plan_build_buffer(
	struct plan_build *b, enum plan_buffer_kind kind, int64_t bytes, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	int i = add_buffer(b, kind, bytes, -1, fmt, ap);
	va_end(ap);
	return i;
}

/* first_op 0 and last_op PLAN_OPS_MAX mark it until plan_layout knows the number of operations. */
int plan_build_persistent(
	struct plan_build *b, enum plan_buffer_kind kind, int64_t bytes, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	int i = add_buffer(b, kind, bytes, PLAN_OPS_MAX, fmt, ap);
	va_end(ap);
	if (i >= 0)
		b->p->buffers[i].first_op = 0;
	return i;
}

int plan_build_param(struct plan_build *b, struct plan_build_param def, const char *fmt, ...)
{
	struct plan *p = b->p;
	void *items = p->params;
	bool ok =
		grow(b, &items, p->param_count, &b->param_cap, sizeof(struct plan_param), PLAN_BUFFERS_MAX);
	p->params = items;
	if (!ok)
		return -1;
	struct plan_param pr = { .rank = def.rank,
		.init = def.init,
		.init_scale = def.init_scale,
		.decay = def.rank > 1,
		.moment1 = -1,
		.moment2 = -1,
		.count = 1 };
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(pr.name, sizeof(pr.name), fmt, ap);
	va_end(ap);
	for (int i = 0; i < def.rank; i++) {
		pr.shape[i] = def.shape[i];
		pr.count = plan_build_floats(b, pr.count, def.shape[i], 1) / 4;
	}
	int64_t bytes = pr.count * 4;
	pr.weight = plan_build_persistent(b, PLAN_WEIGHTS, bytes, "%s", pr.name);
	pr.gradient = plan_build_persistent(b, PLAN_GRADIENTS, bytes, "%s", pr.name);
	bool adam = b->spec->hyper.optimizer == SPEC_ADAMW;
	if (adam || b->spec->hyper.momentum > 0)
		pr.moment1 = plan_build_persistent(b, PLAN_OPTIMIZER, bytes, "%s", pr.name);
	if (adam)
		pr.moment2 = plan_build_persistent(b, PLAN_OPTIMIZER, bytes, "%s", pr.name);
	if (b->code)
		return -1;
	p->params[p->param_count] = pr;
	return p->param_count++;
}

int plan_build_weight(const struct plan_build *b, int param)
{
	return b->code || param < 0 ? -1 : b->p->params[param].weight;
}

int plan_build_gradient(const struct plan_build *b, int param)
{
	return b->code || param < 0 ? -1 : b->p->params[param].gradient;
}

static void touch(struct plan_build *b, int buffer, int op)
{
	if (buffer < 0)
		return;
	struct plan_buffer *buf = &b->p->buffers[buffer];
	if (buf->first_op < 0)
		buf->first_op = op;
	if (buf->last_op < op)
		buf->last_op = op;
}

struct plan_op *plan_build_op(struct plan_build *b, enum plan_op_kind kind, const char *name,
	const int *operands, int operand_count, const int64_t *dims, int dim_count,
	int64_t workspace_bytes)
{
	struct plan *p = b->p;
	void *items = p->ops;
	bool ok = grow(b, &items, p->op_count, &b->op_cap, sizeof(struct plan_op), PLAN_OPS_MAX);
	p->ops = items;
	if (!ok)
		return &b->sink_op;
	int workspace = -1;
	if (workspace_bytes > 0)
		workspace = plan_build_buffer(
			b, PLAN_WORKSPACE, workspace_bytes, "%.40s.%s", name, plan_op_word(kind));
	if (b->code)
		return &b->sink_op;
	struct plan_op *op = &p->ops[p->op_count];
	*op = (struct plan_op){ .kind = kind, .phase = b->phase, .workspace = workspace };
	snprintf(op->name, sizeof(op->name), "%s", name);
	for (int i = 0; i < PLAN_OPERANDS_MAX; i++)
		op->operand[i] = i < operand_count ? operands[i] : -1;
	for (int i = 0; i < dim_count; i++)
		op->dim[i] = dims[i];
	for (int i = 0; i < operand_count; i++)
		touch(b, operands[i], p->op_count);
	touch(b, workspace, p->op_count);
	p->op_count++;
	return op;
}

/* What a backend may use for one matrix product: packed panels of its blocks, for any number of
 * threads. A backend that would want more must do with less. */
static int64_t dense_workspace(int64_t m, int64_t k, int64_t n)
{
	int64_t whole = 4 * (m * k + k * n + m * n) + 64 * 1024;
	int64_t cap = 2 * 1024 * 1024;
	return whole < cap ? whole : cap;
}

void plan_build_dense(struct plan_build *b, const struct plan_dense *d, int x, int y, int residual)
{
	struct plan_op *op = plan_build_op(b, PLAN_OP_LINEAR, d->name,
		PLAN_OPERANDS(
			x, plan_build_weight(b, d->weight), plan_build_weight(b, d->bias), y, residual),
		PLAN_DIMS(d->m, d->k, d->n), dense_workspace(d->m, d->k, d->n));
	op->act = d->act;
	op->transposed = d->transposed;
}

void plan_build_dense_backward(
	struct plan_build *b, const struct plan_dense *d, int x, int dy, int dx)
{
	struct plan_op *op = plan_build_op(b, PLAN_OP_LINEAR_BACKWARD_WEIGHT, d->name,
		PLAN_OPERANDS(x, dy, plan_build_gradient(b, d->weight), plan_build_gradient(b, d->bias)),
		PLAN_DIMS(d->m, d->k, d->n), 0);
	op->transposed = d->transposed;
	if (dx < 0)
		return;
	op = plan_build_op(b, PLAN_OP_LINEAR_BACKWARD_DATA, d->name,
		PLAN_OPERANDS(dy, plan_build_weight(b, d->weight), dx), PLAN_DIMS(d->m, d->k, d->n), 0);
	op->transposed = d->transposed;
}

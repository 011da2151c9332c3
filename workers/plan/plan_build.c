/* SPDX-License-Identifier: Apache-2.0
 * The builder that families write operations, buffers and inputs into. Called by plan.c and the
 * family files only; one thread. */
#include "workers/plan/plan_private.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Largest single tensor (64 TiB of fp32): no device of ours comes near it, and neither sums of them
 * nor their bytes can overflow. */
static const int64_t elements_max = INT64_C(1) << 44;

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

int64_t plan_build_count(struct plan_build *b, int64_t x, int64_t y, int64_t z)
{
	int64_t n = 0;
	if (__builtin_mul_overflow(x, y, &n) || __builtin_mul_overflow(n, z, &n) || n > elements_max ||
		n < 0) {
		plan_build_fail(b, ERR_PLAN_TOO_LARGE, "$.model",
			"a single tensor of the model would have more than 2^44 elements");
		return 1;
	}
	return n;
}

/* Most models need no more, and what is not written to costs nothing. */
enum { FIRST_CAP = 4096 };

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
	int next = *cap ? *cap * 2 : FIRST_CAP;
	void *mem = realloc(*items, (size_t)next * item);
	if (!mem) {
		plan_build_fail(b, ERR_NO_MEMORY, NULL, "no memory for the plan");
		return false;
	}
	*items = mem;
	*cap = next;
	return true;
}

static const char *own_name(struct plan_build *b, const char *name)
{
	const char *own = b->code ? NULL : arena_strdup(&b->p->names, name);
	if (!own)
		plan_build_fail(b, ERR_NO_MEMORY, NULL, "no memory for the plan");
	return own;
}

/* name lives as long as the plan does. */
static struct plan_buffer *add_named(struct plan_build *b, enum plan_buffer_kind kind,
	enum plan_type type, int64_t count, const char *name)
{
	struct plan *p = b->p;
	void *items = p->buffers;
	bool ok = grow(
		b, &items, p->buffer_count, &b->buffer_cap, sizeof(struct plan_buffer), PLAN_BUFFERS_MAX);
	p->buffers = items;
	if (!ok)
		return NULL;
	struct plan_buffer *buf = &p->buffers[p->buffer_count++];
	*buf = (struct plan_buffer){ .name = name,
		.kind = kind,
		.type = type,
		.bytes = count * plan_type_bytes(type),
		.slots = 1,
		.first_op = -1,
		.last_op = -1 };
	return buf;
}

static struct plan_buffer *add_buffer(struct plan_build *b, enum plan_buffer_kind kind,
	enum plan_type type, int64_t count, const char *fmt, va_list ap)
{
	char name[PLAN_NAME_MAX];
	vsnprintf(name, sizeof(name), fmt, ap);
	return add_named(b, kind, type, count, own_name(b, name));
}

/* first_op 0 and last_op PLAN_OPS_MAX mark it until plan_layout knows the number of operations. */
static void mark_persistent(struct plan_buffer *buf)
{
	if (!buf)
		return;
	buf->first_op = 0;
	buf->last_op = PLAN_OPS_MAX;
}

static int index_of(const struct plan_build *b, const struct plan_buffer *buf)
{
	return buf ? (int)(buf - b->p->buffers) : -1;
}

int plan_build_buffer(struct plan_build *b, enum plan_buffer_kind kind, enum plan_type type,
	int64_t count, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	struct plan_buffer *buf = add_buffer(b, kind, type, count, fmt, ap);
	va_end(ap);
	return index_of(b, buf);
}

int plan_build_persistent(struct plan_build *b, enum plan_buffer_kind kind, enum plan_type type,
	int64_t count, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	struct plan_buffer *buf = add_buffer(b, kind, type, count, fmt, ap);
	va_end(ap);
	mark_persistent(buf);
	return index_of(b, buf);
}

void plan_build_keep(struct plan_build *b, int buffer, int64_t slots)
{
	if (b->code || buffer < 0)
		return;
	mark_persistent(&b->p->buffers[buffer]);
	b->p->buffers[buffer].slots = slots;
}

int plan_build_again(
	struct plan_build *b, enum plan_buffer_kind kind, enum plan_type type, int64_t count, int named)
{
	const char *name = b->code ? NULL : b->p->buffers[named].name;
	struct plan_buffer *buf = add_named(b, kind, type, count, name);
	mark_persistent(buf);
	return index_of(b, buf);
}

int plan_build_activation(struct plan_build *b, int64_t count, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	struct plan_buffer *buf = add_buffer(b, PLAN_ACTIVATIONS, b->p->type, count, fmt, ap);
	va_end(ap);
	return index_of(b, buf);
}

int plan_build_statistic(struct plan_build *b, int64_t count, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	struct plan_buffer *buf = add_buffer(b, PLAN_ACTIVATIONS, PLAN_F32, count, fmt, ap);
	va_end(ap);
	return index_of(b, buf);
}

static int *input_of(struct plan_inputs *inputs, enum plan_input which)
{
	switch (which) {
	case PLAN_INPUT: return &inputs->input;
	case PLAN_LABELS: return &inputs->labels;
	case PLAN_POSITIONS: return &inputs->positions;
	case PLAN_STARTS: return &inputs->starts;
	case PLAN_BAGS: break;
	}
	return &inputs->bags;
}

void plan_build_input(
	struct plan_build *b, enum plan_input which, enum plan_type type, int64_t count)
{
	static const char *const word[] = { "input", "labels", "positions", "starts", "bags" };
	struct plan *p = b->p;
	*input_of(&p->inputs, which) =
		plan_build_persistent(b, PLAN_DATA, type, count, "%s", word[which]);
	*input_of(&p->arriving, which) =
		plan_build_persistent(b, PLAN_DATA, type, count, "%s.arriving", word[which]);
	for (int i = 0; i < PLAN_STAGING; i++)
		*input_of(&p->staging[i], which) =
			plan_build_persistent(b, PLAN_DATA, type, count, "%s.ahead%d", word[which], i);
}

int plan_build_cast(struct plan_build *b, const char *name, int x, int64_t count)
{
	if (b->p->type == PLAN_F32)
		return x;
	int y = plan_build_activation(b, count, "%.64s.cast", name);
	plan_build_op(b, PLAN_OP_CAST, name, PLAN_OPERANDS(x, y), PLAN_DIMS(count), 0);
	return y;
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
	/* Operations of one module follow each other. */
	const char *last = p->op_count > 0 ? p->ops[p->op_count - 1].name : "";
	const char *own = strcmp(last, name) == 0 ? last : own_name(b, name);
	int workspace = -1;
	if (workspace_bytes > 0)
		workspace = index_of(b, add_named(b, PLAN_WORKSPACE, PLAN_U8, workspace_bytes, own));
	if (b->code)
		return &b->sink_op;
	struct plan_op *op = &p->ops[p->op_count];
	*op = (struct plan_op){
		.name = own,
		.kind = kind,
		.phase = b->phase,
		.workspace = workspace,
		.recompute = b->recompute,
		.bucket = -1,
	};
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

void plan_build_repeat(struct plan_build *b, const struct plan_op *op)
{
	struct plan *p = b->p;
	void *items = p->ops;
	bool ok = grow(b, &items, p->op_count, &b->op_cap, sizeof(struct plan_op), PLAN_OPS_MAX);
	p->ops = items;
	if (!ok)
		return;
	for (int i = 0; i < PLAN_OPERANDS_MAX; i++)
		touch(b, op->operand[i], p->op_count);
	touch(b, op->workspace, p->op_count);
	p->ops[p->op_count++] = *op;
}

void plan_build_unit(struct plan_build *b)
{
	b->unit++;
	b->units_named = true;
}

static void add_dropout(struct plan_build *b, enum plan_op_kind kind, const char *name, int x,
	int y, const struct plan_mask *m)
{
	struct plan_cut c = m->cut.run > 0 ? m->cut : plan_cut_none(m->count);
	plan_build_op(b, kind, name, PLAN_OPERANDS(x, y),
		PLAN_DIMS(m->count, m->site, c.first, c.run, c.period), 0)
		->scalar = m->p;
}

void plan_build_dropout(
	struct plan_build *b, const char *name, int x, int y, const struct plan_mask *m)
{
	add_dropout(b, PLAN_OP_DROPOUT, name, x, y, m);
}

void plan_build_dropout_backward(
	struct plan_build *b, const char *name, int dy, int dx, const struct plan_mask *m)
{
	add_dropout(b, PLAN_OP_DROPOUT_BACKWARD, name, dy, dx, m);
}

void plan_build_backward(struct plan_build *b)
{
	b->p->backward_begin = b->p->op_count;
	b->phase = PLAN_BACKWARD;
}

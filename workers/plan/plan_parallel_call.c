/* SPDX-License-Identifier: Apache-2.0
 * A call between ranks and the wait for it, with what is sent. Called by whoever emits them. */
#include "workers/plan/plan_private.h"

int plan_parallel_ticket(struct plan_build *b)
{
	return b->p->ticket_count++;
}

/* Bytes that this rank sends to each of the others. */
static double sent(int ranks, enum plan_op_kind kind, int64_t count, enum plan_type type)
{
	double others = ranks - 1, bytes = (double)(count * plan_type_bytes(type));
	return kind == PLAN_OP_ALL_REDUCE ? 2 * others / ranks * bytes : others * bytes;
}

struct plan_op *plan_parallel_call(struct plan_build *b, enum plan_axis axis,
	enum plan_op_kind kind, const char *name, int x, int y, int64_t count, int ticket)
{
	struct plan_op *op = plan_build_op(b, kind, name, PLAN_OPERANDS(x, y), PLAN_DIMS(count, 0), 0);
	op->axis = axis;
	op->ticket = ticket;
	if (!b->code)
		op->wire_bytes =
			sent(plan_parallel_ways(&b->p->mesh, axis), kind, count, b->p->buffers[x].type);
	return op;
}

struct plan_op *plan_parallel_wait(
	struct plan_build *b, enum plan_axis axis, const char *name, int x, int y, int ticket)
{
	struct plan_op *op = plan_build_op(b, PLAN_OP_WAIT, name, PLAN_OPERANDS(x, y), NULL, 0, 0);
	op->axis = axis;
	op->ticket = ticket;
	return op;
}

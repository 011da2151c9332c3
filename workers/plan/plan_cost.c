/* SPDX-License-Identifier: Apache-2.0
 * FLOPs and bytes of one operation (PLAN_FLOP_CONVENTION). Called by plan_compile. */
#include "workers/plan/plan_private.h"

static double flops(const struct plan_op *op)
{
	const int64_t *d = op->dim;
	switch (op->kind) {
	case PLAN_OP_LINEAR:
	case PLAN_OP_LINEAR_BACKWARD_DATA:
	case PLAN_OP_LINEAR_BACKWARD_WEIGHT: return 2.0 * (double)d[0] * (double)d[1] * (double)d[2];
	/* Two products of T x T x C per sequence, of which the causal half counts. */
	case PLAN_OP_ATTENTION: return 2.0 * (double)d[0] * (double)d[1] * (double)d[1] * (double)d[2];
	case PLAN_OP_ATTENTION_BACKWARD:
		return 4.0 * (double)d[0] * (double)d[1] * (double)d[1] * (double)d[2];
	case PLAN_OP_CONV:
	case PLAN_OP_CONV_BACKWARD_DATA:
	case PLAN_OP_CONV_BACKWARD_WEIGHT:
		return 2.0 * 9.0 * (double)d[0] * (double)d[1] * (double)d[2] * (double)d[3] * (double)d[4];
	default: return 0;
	}
}

static double bytes(const struct plan *p, const struct plan_op *op)
{
	/* Optimizers name the first buffer of each flat range. */
	switch (op->kind) {
	case PLAN_OP_GRADIENT_NORM: return 4.0 * (double)op->dim[0];
	case PLAN_OP_ADAMW: return 7 * 4.0 * (double)op->dim[0];
	case PLAN_OP_SGD: return (op->operand[2] >= 0 ? 5 : 3) * 4.0 * (double)op->dim[0];
	default: break;
	}
	double sum = 0;
	for (int i = 0; i < PLAN_OPERANDS_MAX; i++)
		if (op->operand[i] >= 0)
			sum += (double)p->buffers[op->operand[i]].bytes;
	return sum;
}

void plan_cost(const struct plan *p, struct plan_op *op)
{
	op->flops = flops(op);
	op->bytes = bytes(p, op);
}

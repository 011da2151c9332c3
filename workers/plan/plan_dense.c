/* SPDX-License-Identifier: Apache-2.0
 * Operations of dense layers: forward, and the two products of the backward pass. Called by the
 * family files. */
#include "workers/plan/plan_private.h"

static int64_t y_stride(const struct plan_dense *d)
{
	return d->ldy ? d->ldy : d->n;
}

static void finish(struct plan_op *op, const struct plan_dense *d)
{
	op->transposed = d->transposed;
	op->scalar = d->alpha != 0 ? d->alpha : 1;
}

void plan_dense_forward(
	struct plan_build *b, const struct plan_dense *d, int x, int y, int residual)
{
	int pre = d->act == PLAN_ACT_GELU ? d->pre : -1;
	struct plan_op *op = plan_build_op(b, PLAN_OP_LINEAR, d->name,
		PLAN_OPERANDS(x, plan_param_weight(b, d->weight),
			d->bias_apart ? -1 : plan_param_weight(b, d->bias), y, residual, pre),
		PLAN_DIMS(d->m, d->k, d->n, d->k, y_stride(d)), plan_workspace_product(d->m, d->n, d->k));
	finish(op, d);
	op->act = d->act;
	op->shift[0] = d->x_shift;
	op->shift[3] = op->shift[4] = op->shift[5] = d->y_shift;
}

void plan_dense_backward_weight(struct plan_build *b, const struct plan_dense *d, int x, int dy)
{
	int dw = plan_param_gradient(b, d->weight), db = plan_param_gradient(b, d->bias);
	if (dw < 0 && db < 0)
		return;
	struct plan_op *op = plan_build_op(b, PLAN_OP_LINEAR_BACKWARD_WEIGHT, d->name,
		PLAN_OPERANDS(x, dy, dw, db), PLAN_DIMS(d->m, d->k, d->n, d->k, y_stride(d)),
		plan_workspace_product(d->k, d->n, d->m));
	finish(op, d);
	op->shift[0] = d->x_shift;
	op->shift[1] = d->y_shift;
}

void plan_dense_backward_data(struct plan_build *b, const struct plan_dense *d, int dy, int dx,
	int residual, struct plan_gate gate)
{
	struct plan_op *op = plan_build_op(b, PLAN_OP_LINEAR_BACKWARD_DATA, d->name,
		PLAN_OPERANDS(dy, plan_param_weight(b, d->weight), dx, residual, gate.buffer),
		PLAN_DIMS(d->m, d->k, d->n, y_stride(d), d->k), plan_workspace_product(d->m, d->k, d->n));
	finish(op, d);
	op->act = gate.act;
	op->shift[0] = d->y_shift;
	op->shift[2] = op->shift[3] = op->shift[4] = d->x_shift;
}

void plan_dense_backward(
	struct plan_build *b, const struct plan_dense *d, int x, int dy, int dx, struct plan_gate gate)
{
	plan_dense_backward_weight(b, d, x, dy);
	if (dx >= 0)
		plan_dense_backward_data(b, d, dy, dx, -1, gate);
}

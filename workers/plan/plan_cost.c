/* SPDX-License-Identifier: Apache-2.0
 * FLOPs (PLAN_FLOP_CONVENTION) and bytes of one operation. Called by plan_compile. */
#include "workers/plan/plan_private.h"

static double product(int64_t a, int64_t b, int64_t c)
{
	return 2.0 * (double)a * (double)b * (double)c;
}

static double conv_flops(const int64_t *d)
{
	int64_t kernel = d[5], stride = d[6], pad = d[7];
	int64_t out_h = (d[1] + 2 * pad - kernel) / stride + 1;
	int64_t out_w = (d[2] + 2 * pad - kernel) / stride + 1;
	return product(d[0] * out_h * out_w, d[3] * kernel * kernel, d[4]);
}

static double flops(const struct plan_op *op)
{
	const int64_t *d = op->dim;
	switch (op->kind) {
	case PLAN_OP_LINEAR:
	case PLAN_OP_LINEAR_BACKWARD_DATA: return product(d[0], d[1], d[2]);
	case PLAN_OP_LINEAR_BACKWARD_WEIGHT: return op->operand[2] < 0 ? 0 : product(d[0], d[1], d[2]);
	/* Logits and the gradient of x; that of w where it is trained. */
	case PLAN_OP_CLASSIFIER: return (op->operand[6] < 0 ? 2 : 3) * product(d[0], d[1], d[2]);
	/* Two products of T x T x head_size for each head, of which the causal half counts. */
	case PLAN_OP_ATTENTION: return product(d[0] * d[1], d[1], d[2] * d[4]);
	case PLAN_OP_ATTENTION_BACKWARD: return 2 * product(d[0] * d[1], d[1], d[2] * d[4]);
	case PLAN_OP_CONV:
	case PLAN_OP_CONV_BACKWARD_DATA:
	case PLAN_OP_CONV_BACKWARD_WEIGHT: return conv_flops(d);
	/* Dot products of pairs of features. */
	case PLAN_OP_INTERACTION: return product(d[0], d[1] * (d[1] - 1) / 2, d[2]);
	case PLAN_OP_INTERACTION_BACKWARD: return 2 * product(d[0], d[1] * (d[1] - 1) / 2, d[2]);
	default: return 0;
	}
}

static double type_bytes(const struct plan *p, const struct plan_op *op, int i)
{
	int buffer = op->operand[i];
	return buffer < 0 ? 0 : (double)plan_type_bytes(p->buffers[buffer].type);
}

/* x[M,K], a matrix of [K,N], y[M,N] and what lies beside y or x: parts of wider buffers. */
static double product_bytes(const struct plan *p, const struct plan_op *op)
{
	double m = (double)op->dim[0], k = (double)op->dim[1], n = (double)op->dim[2];
	double sum = 0;
	switch (op->kind) {
	case PLAN_OP_LINEAR:
		sum = m * k * type_bytes(p, op, 0) + k * n * type_bytes(p, op, 1);
		sum += n * type_bytes(p, op, 2);
		for (int i = 3; i < 6; i++)
			sum += m * n * type_bytes(p, op, i);
		return sum;
	case PLAN_OP_LINEAR_BACKWARD_DATA:
		sum = m * n * type_bytes(p, op, 0) + k * n * type_bytes(p, op, 1);
		for (int i = 2; i < 5; i++)
			sum += m * k * type_bytes(p, op, i);
		return sum;
	default: /* weight: gradients are read and written */
		return m * k * type_bytes(p, op, 0) + m * n * type_bytes(p, op, 1) +
			2 * k * n * type_bytes(p, op, 2) + 2 * n * type_bytes(p, op, 3);
	}
}

/* Whole operands, once each. */
static double operand_bytes(const struct plan *p, const struct plan_op *op)
{
	double sum = 0;
	for (int i = 0; i < PLAN_OPERANDS_MAX; i++)
		if (op->operand[i] >= 0)
			sum += (double)p->buffers[op->operand[i]].bytes;
	return sum;
}

/* Updates over a flat range or over the listed rows: fp32 values that are only read once and those
 * that are also written, and the low-precision copy. */
static double update_bytes(const struct plan *p, const struct plan_op *op)
{
	double n = (double)op->dim[0];
	switch (op->kind) {
	case PLAN_OP_GRADIENT_NORM: return 4 * n;
	case PLAN_OP_ADAMW: return (7 * 4 + type_bytes(p, op, 4)) * n;
	case PLAN_OP_SGD: return ((op->operand[2] < 0 ? 3 : 5) * 4 + type_bytes(p, op, 3)) * n;
	case PLAN_OP_ROUND: return (4 + type_bytes(p, op, 1)) * n;
	case PLAN_OP_AVERAGE: return 3 * 4 * n;
	case PLAN_OP_SPARSE_ADAMW: return 7 * 4 * n * (double)op->dim[1];
	default: return (op->operand[1] < 0 ? 3 : 5) * 4 * n * (double)op->dim[1];
	}
}

static double bytes(const struct plan *p, const struct plan_op *op)
{
	const int64_t *d = op->dim;
	double row = (double)d[0] * (double)d[2]; /* embeddings: elements of all rows */
	switch (op->kind) {
	case PLAN_OP_LINEAR:
	case PLAN_OP_LINEAR_BACKWARD_DATA:
	case PLAN_OP_LINEAR_BACKWARD_WEIGHT: return product_bytes(p, op);
	/* Tables are touched in the rows that are looked up. */
	case PLAN_OP_EMBEDDING:
		return row * (type_bytes(p, op, 1) + type_bytes(p, op, 2) + type_bytes(p, op, 4));
	case PLAN_OP_EMBEDDING_BACKWARD:
		return row * (type_bytes(p, op, 1) + 2 * type_bytes(p, op, 2) + 2 * type_bytes(p, op, 3));
	case PLAN_OP_EMBEDDING_BAG:
		return row * ((double)d[1] * type_bytes(p, op, 1) + type_bytes(p, op, 2)) +
			4 * (double)d[0] * (double)d[1];
	case PLAN_OP_SPARSE_STORE: return row * (type_bytes(p, op, 1) + 4) + 8 * (double)(d[0] * d[1]);
	/* Every rank's bags, of which one in N names a row of this rank. */
	case PLAN_OP_PIECE_SUM:
		return row * ((double)d[1] * type_bytes(p, op, 1) + (double)d[5] * type_bytes(p, op, 2)) +
			4 * (double)(d[0] * d[1] * d[5]);
	case PLAN_OP_PIECE_STORE:
		return (double)d[4] * (row * (type_bytes(p, op, 1) + 4) + 8 * (double)(d[0] * d[1]));
	case PLAN_OP_GRADIENT_NORM:
	case PLAN_OP_ADAMW:
	case PLAN_OP_SGD:
	case PLAN_OP_SPARSE_ADAMW:
	case PLAN_OP_SPARSE_SGD:
	case PLAN_OP_ROUND:
	case PLAN_OP_AVERAGE: return update_bytes(p, op);
	case PLAN_OP_ALL_REDUCE: return 2 * (double)d[0] * type_bytes(p, op, 0);
	case PLAN_OP_REDUCE_SCATTER:
	case PLAN_OP_ALL_GATHER:
		return (double)(plan_parallel_ways(&p->mesh, op->axis) + 1) * (double)d[0] *
			type_bytes(p, op, 0);
	case PLAN_OP_ALL_TO_ALL:
		return 2 * (double)plan_parallel_ways(&p->mesh, op->axis) * (double)d[0] *
			type_bytes(p, op, 0);
	case PLAN_OP_ACCUMULATE: return 3 * 4 * (double)d[0];
	case PLAN_OP_WAIT:
	case PLAN_OP_CLEAR:
	case PLAN_OP_RUNNING:
	case PLAN_OP_EXCHANGE: return 0;
	default: return operand_bytes(p, op);
	}
}

void plan_cost(const struct plan *p, struct plan_op *op)
{
	op->flops = flops(op);
	op->bytes = bytes(p, op);
}

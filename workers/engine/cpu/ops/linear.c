/* SPDX-License-Identifier: Apache-2.0
 * Dense layers: their three products, each one call of gemm.h with its epilogue, and the bias
 * gradient's column sums. Called through the backend's table. */
#include "workers/engine/cpu/gemm.h"
#include "workers/engine/cpu/isa.h"

#include <assert.h>

#define LINEAR_TYPE_f32 GEMM_F32
#define LINEAR_TYPE_bf16 GEMM_BF16
#define LINEAR_TYPE_f16 GEMM_F16
#define LINEAR_TYPE CPU_JOIN(LINEAR_TYPE, CPU_TYPE)

static struct gemm_source activations(const void *base, int64_t row_stride)
{
	return (struct gemm_source){ .type = LINEAR_TYPE, .base = base, .row_stride = row_stride };
}

static struct gemm_source weights(
	const void *base, enum plan_type type, int64_t row_stride, bool transposed)
{
	assert(type == PLAN_F32 || type == PLAN_BF16 || type == PLAN_F16);
	return (struct gemm_source){ .type = type == PLAN_F32 ? GEMM_F32
			: type == PLAN_BF16                           ? GEMM_BF16
														  : GEMM_F16,
		.base = base,
		.row_stride = row_stride,
		.transposed = transposed };
}

static enum gemm_act activation(enum plan_activation act)
{
	return act == PLAN_ACT_RELU ? GEMM_RELU : act == PLAN_ACT_GELU ? GEMM_GELU : GEMM_NONE;
}

void CPU_FN(linear_forward)(const struct backend_linear *d)
{
	gemm_run(&(struct gemm){ .m = d->m,
		.n = d->n,
		.k = d->k,
		.a = activations(d->x, d->ldx),
		.b = weights(d->w, d->w_type, d->transposed ? d->k : d->n, d->transposed),
		.bf16 = LINEAR_TYPE == GEMM_BF16,
		.alpha = d->alpha,
		.c_type = LINEAR_TYPE,
		.c = d->y,
		.c_stride = d->ldy,
		.bias = d->b,
		.act = activation(d->act),
		.pre = d->pre,
		.residual = d->residual,
		.workspace = d->ws.data,
		.workspace_bytes = d->ws.bytes });
}

void CPU_FN(linear_backward_data)(const struct backend_linear_backward_data *d)
{
	gemm_run(&(struct gemm){ .m = d->m,
		.n = d->k,
		.k = d->n,
		.a = activations(d->dy, d->lddy),
		.b = weights(d->w, d->w_type, d->transposed ? d->k : d->n, !d->transposed),
		.bf16 = LINEAR_TYPE == GEMM_BF16,
		.alpha = d->alpha,
		.c_type = LINEAR_TYPE,
		.c = d->dx,
		.c_stride = d->lddx,
		.residual = d->residual,
		.gate_act = d->gate ? activation(d->act) : GEMM_NONE,
		.gate = d->gate,
		.workspace = d->ws.data,
		.workspace_bytes = d->ws.bytes });
}

void CPU_FN(linear_backward_weight)(const struct backend_linear_backward_weight *d)
{
	struct gemm_source x = activations(d->x, d->ldx), dy = activations(d->dy, d->lddy);
	struct gemm g = { .m = d->transposed ? d->n : d->k,
		.n = d->transposed ? d->k : d->n,
		.k = d->m,
		.a = d->transposed ? dy : x,
		.b = d->transposed ? x : dy,
		.bf16 = LINEAR_TYPE == GEMM_BF16,
		.alpha = d->alpha,
		.c_type = GEMM_F32,
		.c = d->dw,
		.c_stride = d->transposed ? d->k : d->n,
		.accumulate = !d->overwrite,
		.workspace = d->ws.data,
		.workspace_bytes = d->ws.bytes };
	g.a.transposed = true;
	if (d->dw)
		gemm_run(&g);
	if (d->db)
		CPU_FN(column_sum)(d->m, d->n, d->dy, d->lddy, d->db);
}

/* SPDX-License-Identifier: Apache-2.0
 * Dense layers: PLAN_OP_LINEAR and its backward operations, each one product, and the bias
 * gradient's column sums. Called through the backend's tables. */
#include "workers/engine/cuda/column_sum.h"
#include "workers/engine/cuda/cuda.h"
#include "workers/engine/cuda/product.h"

static struct cuda_gemm_source matrix(
	enum plan_type type, const void *base, int64_t stride, bool transposed)
{
	return (struct cuda_gemm_source){
		.type = type, .base = base, .stride = stride, .transposed = transposed
	};
}

static void linear(const struct backend_linear *d, enum plan_type type)
{
	cuda_product(&(struct cuda_product){ .m = d->m,
		.n = d->n,
		.k = d->k,
		.a = matrix(type, d->x, d->ldx, false),
		.b = matrix(d->w_type, d->w, d->transposed ? d->k : d->n, d->transposed),
		.alpha = d->alpha,
		.type = type,
		.c = d->y,
		.c_stride = d->ldy,
		.bias = d->b,
		.act = d->act,
		.pre = d->pre,
		.residual = d->residual,
		.ws = d->ws });
}

static void linear_backward_data(const struct backend_linear_backward_data *d, enum plan_type type)
{
	bool gated = d->gate && d->act != PLAN_ACT_NONE;
	cuda_product(&(struct cuda_product){ .m = d->m,
		.n = d->k,
		.k = d->n,
		.a = matrix(type, d->dy, d->lddy, false),
		.b = matrix(d->w_type, d->w, d->transposed ? d->k : d->n, !d->transposed),
		.alpha = d->alpha,
		.type = type,
		.c = d->dx,
		.c_stride = d->lddx,
		.residual = d->residual,
		.gate_act = gated ? d->act : PLAN_ACT_NONE,
		.gate = gated ? d->gate : NULL,
		.ws = d->ws });
}

static void linear_backward_weight(
	const struct backend_linear_backward_weight *d, enum plan_type type)
{
	bool t = d->transposed;
	if (d->dw)
		cuda_gemm(&(struct cuda_gemm){ .m = t ? d->n : d->k,
			.n = t ? d->k : d->n,
			.k = d->m,
			.a = t ? matrix(type, d->dy, d->lddy, true) : matrix(type, d->x, d->ldx, true),
			.b = t ? matrix(type, d->x, d->ldx, false) : matrix(type, d->dy, d->lddy, false),
			.alpha = d->alpha,
			.beta = d->overwrite ? 0 : 1,
			.c = d->dw,
			.c_stride = t ? d->k : d->n,
			.d_type = PLAN_F32,
			.d = d->dw,
			.d_stride = t ? d->k : d->n,
			.workspace = d->ws.data,
			.workspace_bytes = d->ws.bytes });
	if (d->db)
		cuda_column_sum(&(struct cuda_column_sum){ .m = d->m,
			.n = d->n,
			.type = type,
			.x = d->dy,
			.stride = d->lddy,
			.sums = d->db,
			.ws = d->ws });
}

CUDA_EXPORT_OF(linear, struct backend_linear)
CUDA_EXPORT_OF(linear_backward_data, struct backend_linear_backward_data)
CUDA_EXPORT_OF(linear_backward_weight, struct backend_linear_backward_weight)

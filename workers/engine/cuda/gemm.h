/* SPDX-License-Identifier: Apache-2.0
 * Matrix products of the CUDA backend, by cuBLASLt: D = alpha A B + beta C + bias. Called by the
 * operations that multiply (linear, conv, classifier, attention) on the thread's stream. Whatever
 * goes wrong is the device's failure, which `finish` gives. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "workers/plan/plan_op.h"

/* The stored matrix has element (r, c) at base[r * stride + c]; `transposed` reads it as its
 * transpose. Strides in elements, at least the stored width. batch_stride: from one matrix of a
 * batch to the next; any, 0 too. */
struct cuda_gemm_source {
	enum plan_type type; /* F32, BF16, F16 */
	bool transposed;
	const void *base;
	int64_t stride;
	int64_t batch_stride;
};

/* A is [m,k], B [k,n], C and D [m,n] as read. Sums are fp32, D is rounded once; operands
 * that are fp32 are rounded to TF32 where the device may (cuda_tf32). The order of a sum depends on
 * sizes, types, strides, alignment and workspace_bytes, so that equal calls give equal bits.
 *
 * The types of A and B may differ if nothing is batched: B is brought to A's in the workspace,
 * which must hold a column of it (k elements; better, many). D has A's type or F32, and C D's. C
 * may be D (in place) or must not overlap it; NULL with beta 0. All sizes >= 1. */
struct cuda_gemm {
	int64_t m, n, k;
	int64_t batch; /* products beside each other; 0 is 1 */
	struct cuda_gemm_source a, b;
	float alpha, beta;
	const void *c;
	int64_t c_stride, c_batch_stride;
	enum plan_type d_type;
	void *d;
	int64_t d_stride, d_batch_stride;
	const float *bias; /* [n], added to each row; may be NULL, and see takes_bias. Not batched */
	void *workspace;   /* of the device; may be NULL with 0 bytes: slower, not wrong */
	int64_t workspace_bytes;
};

/* Returns at once. Allocates nothing but, for a shape it has not seen, what is remembered of it. */
void cuda_gemm(const struct cuda_gemm *g);
/* Whether cuda_gemm adds g's bias itself before D is rounded; always to F32. Otherwise g must have
 * none. The same answer for equal shapes. */
bool cuda_gemm_takes_bias(const struct cuda_gemm *g);

/* What a device has for its products: cuBLASLt's handle, and the algorithms of shapes seen. Made by
 * the device's open, which fails with a sentence where the library is missing. */
struct cuda_gemm_ctx;
int cuda_gemm_create(struct cuda_gemm_ctx **ret, struct err *err) must_check;
void cuda_gemm_destroy(struct cuda_gemm_ctx *ctx); /* NULL is fine; its device is idle */
/* The calling thread's products are made with it from now on. */
void cuda_gemm_enter(struct cuda_gemm_ctx *ctx);

#ifdef __cplusplus
}
#endif

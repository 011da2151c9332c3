/* SPDX-License-Identifier: Apache-2.0
 * Products with what follows them: dense layers and convolutions are these. Called by
 * cuda/ops/linear.c and conv.c. */
#pragma once

#include "workers/engine/backend.h"
#include "workers/engine/cuda/gemm.h"

/* t = alpha A B + bias; pre = t; t = act(t); t += residual; t *= act'(gate); C = t, each step only
 * where its member is set; in fp32, and rounded once: C has what the CPU's products have, up to the
 * order of sums. pre, residual and gate have C's type and stride; residual and gate may be C. The
 * workspace holds a row of C in fp32, or a part of one, and a column of B (two types only). */
struct cuda_product {
	int64_t m, n, k;
	struct cuda_gemm_source a, b;
	float alpha;
	enum plan_type type; /* of C, and of A or F32 */
	void *c;
	int64_t c_stride;
	const float *bias; /* [n] */
	enum plan_activation act, gate_act;
	void *pre;
	const void *residual, *gate;
	struct backend_workspace ws;
};
void cuda_product(const struct cuda_product *p);

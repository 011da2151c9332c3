/* SPDX-License-Identifier: Apache-2.0
 * What follows a product's sums, in one pass over them. Called by cuda/product.c. */
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

#include "workers/plan/plan_op.h"

/* t = sums + bias; pre = t; t = act(t); t += residual; t *= act'(gate); y = t, each step only
 * where its member is set. GELU is of t as the type holds it, stored or not; RELU as gate_act
 * multiplies by gate > 0. In fp32, rounded where stored. sums: of the type, or F32; with no bias,
 * pre and y may be sums. residual and gate may be y. Strides in elements. */
struct cuda_epilogue {
	int64_t rows, columns;
	enum plan_type type; /* of all but sums */
	enum plan_type sums_type;
	const void *sums;
	int64_t sums_stride;
	const float *bias; /* [columns] */
	enum plan_activation act, gate_act;
	void *pre;
	const void *residual, *gate;
	void *y;
	int64_t stride; /* of all but sums */
};
void cuda_epilogue(const struct cuda_epilogue *e);

#ifdef __cplusplus
}
#endif

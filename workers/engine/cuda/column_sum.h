/* SPDX-License-Identifier: Apache-2.0
 * Gradients of biases. Called by the products' backward operations. */
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

#include "workers/engine/backend.h"

/* sums[n] += the column sums of x [m,n], in an order that m, n and the workspace's size give. */
struct cuda_column_sum {
	int64_t m, n;
	enum plan_type type; /* F32, BF16, F16 */
	const void *x;
	int64_t stride;
	float *sums;
	struct backend_workspace ws;
};
void cuda_column_sum(const struct cuda_column_sum *c);

#ifdef __cplusplus
}
#endif

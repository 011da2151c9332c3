/* SPDX-License-Identifier: Apache-2.0
 * PLAN_OP_RMSNORM and its backward pass; the work is in norm.h. */
#include "workers/engine/cuda/ops/norm.h"

template <typename T> static void rmsnorm(const struct backend_norm *d)
{
	norm_rows<T, true, false>(d);
}

template <typename T> static void rmsnorm_backward(const struct backend_norm *d)
{
	norm_backward<T, true>(d);
}

CUDA_EXPORT(rmsnorm, (const struct backend_norm *d), (d))
CUDA_EXPORT(rmsnorm_backward, (const struct backend_norm *d), (d))

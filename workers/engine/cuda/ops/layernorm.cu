/* SPDX-License-Identifier: Apache-2.0
 * PLAN_OP_LAYERNORM and its backward pass; the work is in norm.h. */
#include "workers/engine/cuda/ops/norm.h"

template <typename T> static void layernorm(const struct backend_norm *d)
{
	norm_rows<T, false, false>(d);
}

template <typename T> static void layernorm_backward(const struct backend_norm *d)
{
	norm_backward<T, false>(d);
}

CUDA_EXPORT(layernorm, (const struct backend_norm *d), (d))
CUDA_EXPORT(layernorm_backward, (const struct backend_norm *d), (d))

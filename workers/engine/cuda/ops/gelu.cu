/* SPDX-License-Identifier: Apache-2.0
 * PLAN_OP_GELU. A thread takes packs of a flat range. */
#include "workers/engine/cuda/ops/act_math.h"
#include "workers/engine/cuda/ops/map.h"

template <typename T> struct gelu_value {
	static constexpr int operands = 1;
	__device__ __forceinline__ float operator()(float x, float) const { return act_gelu<T>(x); }
};

template <typename T> static void gelu(int64_t count, const void *x, void *y)
{
	map<T, T>(count, gelu_value<T>(), x, NULL, y);
}

CUDA_EXPORT(gelu, (int64_t count, const void *x, void *y), (count, x, y))

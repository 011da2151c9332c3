/* SPDX-License-Identifier: Apache-2.0
 * PLAN_OP_GELU. */
#include "workers/engine/cuda/kernel.h"

/* tanh form: x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) */
static __device__ __forceinline__ float gelu_of(float x)
{
	return 0.5f * x * (1.0f + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x)));
}

template <typename T> static __global__ void gelu_kernel(int64_t count, const T *x, T *y)
{
	for (int64_t i = grid_begin(); i < count; i += grid_stride())
		y[i] = act_round<T>(gelu_of(act_float(x[i])));
}

template <typename T> static void gelu(int64_t count, const void *x, void *y)
{
	CUDA_LAUNCH((gelu_kernel<T>), grid_of(count, CUDA_THREADS), CUDA_THREADS, 0, count,
		static_cast<const T *>(x), static_cast<T *>(y));
}

CUDA_EXPORT(gelu, (int64_t count, const void *x, void *y), (count, x, y))

/* SPDX-License-Identifier: Apache-2.0
 * PLAN_OP_AVGPOOL and its backward pass: global average pooling, channels last. Forward: a thread
 * for each pack of y goes through the pixels; backward: a thread for each pack of dx. */
#include "workers/engine/cuda/ops/values.h"

template <typename T, int N>
static __global__ void avgpool_kernel(int64_t n, int64_t hw, int64_t c, const T *x, T *y)
{
	const int64_t packs = c / N;
	const float part = 1.0f / (float)hw;
	for (int64_t k = grid_begin(); k < n * packs; k += grid_stride()) {
		int64_t image = k / packs, i = (k - image * packs) * N;
		const T *in = x + image * hw * c + i;
		float sum[N] = { 0 }, v[N];
#pragma unroll 4
		for (int64_t p = 0; p < hw; p++) {
			values_load(in + p * c, v);
			for (int j = 0; j < N; j++)
				sum[j] += v[j];
		}
		for (int j = 0; j < N; j++)
			sum[j] *= part;
		values_store(y + image * c + i, sum);
	}
}

template <typename T, int N>
static __global__ void avgpool_backward_kernel(int64_t n, int64_t hw, int64_t c, const T *dy, T *dx)
{
	const int64_t packs = c / N;
	const float part = 1.0f / (float)hw;
	for (int64_t k = grid_begin(); k < n * hw * packs; k += grid_stride()) {
		int64_t pixel = k / packs, i = (k - pixel * packs) * N;
		float v[N];
		values_load(dy + pixel / hw * c + i, v);
		for (int j = 0; j < N; j++)
			v[j] *= part;
		values_store(dx + pixel * c + i, v);
	}
}

template <typename T> static void avgpool(int64_t n, int64_t hw, int64_t c, const void *x, void *y)
{
	constexpr int N = cuda_pack<T>::count;
	const T *from = static_cast<const T *>(x);
	T *to = static_cast<T *>(y);
	if (values_fit<T>(c, x, y))
		CUDA_LAUNCH((avgpool_kernel<T, N>), grid_of(n * (c / N), CUDA_THREADS), CUDA_THREADS, 0, n,
			hw, c, from, to);
	else
		CUDA_LAUNCH((avgpool_kernel<T, 1>), grid_of(n * c, CUDA_THREADS), CUDA_THREADS, 0, n, hw, c,
			from, to);
}

template <typename T>
static void avgpool_backward(int64_t n, int64_t hw, int64_t c, const void *dy, void *dx)
{
	constexpr int N = cuda_pack<T>::count;
	const T *from = static_cast<const T *>(dy);
	T *to = static_cast<T *>(dx);
	if (values_fit<T>(c, dy, dx))
		CUDA_LAUNCH((avgpool_backward_kernel<T, N>), grid_of(n * hw * (c / N), CUDA_THREADS),
			CUDA_THREADS, 0, n, hw, c, from, to);
	else
		CUDA_LAUNCH((avgpool_backward_kernel<T, 1>), grid_of(n * hw * c, CUDA_THREADS),
			CUDA_THREADS, 0, n, hw, c, from, to);
}

CUDA_EXPORT(avgpool, (int64_t n, int64_t hw, int64_t c, const void *x, void *y), (n, hw, c, x, y))
CUDA_EXPORT(avgpool_backward, (int64_t n, int64_t hw, int64_t c, const void *dy, void *dx),
	(n, hw, c, dy, dx))

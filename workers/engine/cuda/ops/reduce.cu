/* SPDX-License-Identifier: Apache-2.0
 * Sums in double, in an order that the count alone decides. sum: one block, for few numbers.
 * square_sum: PLAN_ROW_BLOCKS blocks of as many threads as a block can have, which keep as many
 * loads in flight as the memory answers; then one warp adds their results. */
#include "workers/engine/cuda/ops/map.h"

enum { REDUCE_THREADS = 1024, REDUCE_PACKS = 4 };

static __global__ void __launch_bounds__(REDUCE_THREADS)
	sum_kernel(int64_t count, const float *x, double *result)
{
	CUDA_SHARED(double, room, REDUCE_THREADS / CUDA_WARP);
	double sum = 0;
	for (int64_t i = threadIdx.x; i < count; i += REDUCE_THREADS)
		sum += (double)x[i];
	sum = block_sum<REDUCE_THREADS>(sum, room);
	if (threadIdx.x == 0)
		*result = sum;
}

static __device__ __forceinline__ double square(float x)
{
	return (double)x * (double)x;
}

static __device__ __forceinline__ double square_of_pack(int4 bits)
{
	float v[4];
	memcpy(v, &bits, sizeof(bits));
	return (square(v[0]) + square(v[1])) + (square(v[2]) + square(v[3]));
}

/* packed: elements that go in packs. A turn of the grid is REDUCE_PACKS packs a thread. */
static __global__ void __launch_bounds__(REDUCE_THREADS)
	square_sum_kernel(int64_t count, int64_t packed, const float *x, double *partial)
{
	CUDA_SHARED(double, room, REDUCE_THREADS / CUDA_WARP);
	const int4 *packs = reinterpret_cast<const int4 *>(x);
	int64_t i = grid_begin(), end = packed / 4, turn = grid_stride();
	double sum[REDUCE_PACKS] = {};
	for (; i + (REDUCE_PACKS - 1) * turn < end; i += REDUCE_PACKS * turn) {
		int4 bits[REDUCE_PACKS];
#pragma unroll
		for (int k = 0; k < REDUCE_PACKS; k++)
			bits[k] = packs[i + k * turn];
#pragma unroll
		for (int k = 0; k < REDUCE_PACKS; k++)
			sum[k] += square_of_pack(bits[k]);
	}
	for (; i < end; i += turn)
		sum[0] += square_of_pack(packs[i]);
	for (i = packed + grid_begin(); i < count; i += turn)
		sum[1] += square(x[i]);
	double all = block_sum<REDUCE_THREADS>((sum[0] + sum[1]) + (sum[2] + sum[3]), room);
	if (threadIdx.x == 0)
		partial[blockIdx.x] = all;
}

static __global__ void square_sum_finish_kernel(const double *partial, double *result)
{
	double sum = 0;
	for (int i = (int)threadIdx.x; i < PLAN_ROW_BLOCKS; i += CUDA_WARP)
		sum += partial[i];
	sum = warp_sum(sum);
	if (threadIdx.x == 0)
		*result = sum;
}

extern "C" void sum_cuda(int64_t count, const float *x, double *ret)
{
	CUDA_LAUNCH(sum_kernel, 1, REDUCE_THREADS, 0, count, x, cuda_result(ret));
}

extern "C" void square_sum_cuda(int64_t count, const float *x, double *partial, double *ret)
{
	int64_t packed = pack_fits(x) ? count / 4 * 4 : 0;
	CUDA_LAUNCH(square_sum_kernel, PLAN_ROW_BLOCKS, REDUCE_THREADS, 0, count, packed, x, partial);
	CUDA_LAUNCH(square_sum_finish_kernel, 1, CUDA_WARP, 0, partial, cuda_result(ret));
}

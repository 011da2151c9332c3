/* SPDX-License-Identifier: Apache-2.0
 * Column sums (cuda/column_sum.h): blocks of 32 columns by a part of the rows. A warp reads 32
 * neighbours of a row; the block's 8 warps take every eighth row and add up in order. Then a thread
 * a column adds the parts up, in order. */
#include "workers/engine/cuda/column_sum.h"
#include "workers/engine/cuda/kernel.h"

enum { LINES = CUDA_THREADS / CUDA_WARP, PART_ROWS_MIN = 64 };

/* Part p of rows [p m / parts, (p + 1) m / parts). add: there is one, which goes to the sums. */
template <typename T>
static __global__ void column_sum_kernel(
	int64_t m, int64_t n, const T *x, int64_t stride, float *to, bool add)
{
	CUDA_SHARED(float, sums, CUDA_THREADS);
	int lane = threadIdx.x % CUDA_WARP, line = threadIdx.x / CUDA_WARP;
	int64_t column = (int64_t)blockIdx.x * CUDA_WARP + lane;
	int64_t begin = blockIdx.y * m / gridDim.y, end = (blockIdx.y + 1) * m / gridDim.y;
	float sum = 0;
	if (column < n)
		for (int64_t row = begin + line; row < end; row += LINES)
			sum += act_float(x[row * stride + column]);
	sums[threadIdx.x] = sum;
	__syncthreads();
	if (line > 0 || column >= n)
		return;
	for (int i = 1; i < LINES; i++)
		sum += sums[i * CUDA_WARP + lane];
	if (add)
		to[column] += sum;
	else
		to[blockIdx.y * n + column] = sum;
}

static __global__ void column_sum_parts_kernel(
	int64_t n, int parts, const float *partial, float *sums)
{
	for (int64_t i = grid_begin(); i < n; i += grid_stride()) {
		float sum = 0;
		for (int p = 0; p < parts; p++)
			sum += partial[p * n + i];
		sums[i] += sum;
	}
}

template <typename T> static void launch(const struct cuda_column_sum *c)
{
	int64_t parts = PLAN_ROW_BLOCKS, room = c->ws.bytes / (c->n * (int64_t)sizeof(float));
	if (parts > room)
		parts = room;
	if (parts > c->m / PART_ROWS_MIN)
		parts = c->m / PART_ROWS_MIN;
	if (parts < 1)
		parts = 1;
	float *partial = static_cast<float *>(c->ws.data);
	dim3 grid((unsigned)((c->n + CUDA_WARP - 1) / CUDA_WARP), (unsigned)parts);
	CUDA_LAUNCH((column_sum_kernel<T>), grid, CUDA_THREADS, 0, c->m, c->n,
		static_cast<const T *>(c->x), c->stride, parts > 1 ? partial : c->sums, parts == 1);
	if (parts > 1)
		CUDA_LAUNCH(column_sum_parts_kernel, grid_of(c->n, CUDA_THREADS), CUDA_THREADS, 0, c->n,
			(int)parts, partial, c->sums);
}

void cuda_column_sum(const struct cuda_column_sum *c)
{
	if (c->type == PLAN_F32)
		launch<float>(c);
	else if (c->type == PLAN_BF16)
		launch<__nv_bfloat16>(c);
	else
		launch<__half>(c);
}

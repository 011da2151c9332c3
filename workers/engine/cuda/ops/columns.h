/* SPDX-License-Identifier: Apache-2.0
 * Kernels over [rows, c] that have something of each column: LANES threads beside each other take N
 * columns each, and the block's others take the same columns of further rows, so that a column's
 * numbers stay in registers. blockIdx.x is a block of rows, blockIdx.y a tile of columns. Used by
 * norms and batch norm. */
#pragma once

#include "workers/engine/cuda/ops/values.h"

template <int N, int LANES, int THREADS> struct columns {
	static constexpr int tile = N * LANES;
	static constexpr int strips = THREADS / LANES; /* rows at a time */
	static constexpr int warps = THREADS / CUDA_WARP;
	static constexpr int room = warps * tile; /* floats of the block's that a sum needs */

	static __device__ __forceinline__ int64_t column(void)
	{
		return ((int64_t)blockIdx.y * LANES + threadIdx.x % LANES) * N;
	}
	static __device__ __forceinline__ int strip(void) { return (int)threadIdx.x / LANES; }
	static unsigned tiles(int64_t c) { return (unsigned)((c + tile - 1) / tile); }
};

/* Rows of one of PLAN_ROW_BLOCKS parts; empty behind the last row. */
struct columns_part {
	int64_t begin, end;
};

static __host__ __device__ __forceinline__ struct columns_part columns_part_of(
	int64_t rows, int64_t block)
{
	int64_t per = (rows + PLAN_ROW_BLOCKS - 1) / PLAN_ROW_BLOCKS;
	int64_t begin = block * per < rows ? block * per : rows;
	struct columns_part part = { begin, begin + per < rows ? begin + per : rows };
	return part;
}

/* Adds v over the strips, always in the same order; strip 0 has the sums. All threads take part. */
template <int N, int LANES, int THREADS>
static __device__ __forceinline__ void columns_sum(float (&v)[N], float *room)
{
	typedef columns<N, LANES, THREADS> at;
	int warp = (int)threadIdx.x / CUDA_WARP, lane = (int)threadIdx.x % CUDA_WARP;
#pragma unroll
	for (int j = 0; j < N; j++) {
		for (int step = LANES; step < CUDA_WARP; step *= 2)
			v[j] += __shfl_xor_sync(0xffffffffu, v[j], step);
		if (lane < LANES)
			room[warp * at::tile + lane * N + j] = v[j];
	}
	__syncthreads();
	if (at::strip() == 0)
#pragma unroll
		for (int j = 0; j < N; j++) {
			v[j] = 0;
			for (int w = 0; w < at::warps; w++)
				v[j] += room[w * at::tile + lane * N + j];
		}
	__syncthreads();
}

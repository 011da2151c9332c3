/* SPDX-License-Identifier: Apache-2.0
 * PLAN_OP_SPARSE_REDUCE: the gradient of a table of which a step touches few rows. */
#include "workers/engine/cuda/ops/map.h"
#include "workers/engine/cuda/ops/sparse_sort.h"

/* Look-ups are sorted by row and listed (sparse_sort.h), then summed: a window is SPARSE_WINDOW or
 * more neighbouring look-ups, and a row's part of a window is added up by one thread a unit (or
 * pack of units) in the order of look-ups, so a row that everybody looks up is many threads' work.
 * Where a row begins before a window, its part there goes to the workspace, and whoever has the row
 * adds these parts in their order. The order depends on the look-ups alone. */

enum { SPARSE_WINDOW = 128, SPARSE_SQUARE_THREADS = 1024 };

struct sparse_call {
	int64_t lookups, d, window; /* lookups: of all samples */
	int32_t table_rows;
	const uint64_t *keys; /* in order */
	const int32_t *begin, *count;
	const float *grads;
	float *parts; /* [windows - 1, d]: of the row that is under way where a window begins */
	float *sums;
};

/* The sum of grads over look-ups [i, end). */
template <int N>
static __device__ __forceinline__ void sparse_sum(
	const struct sparse_call &c, int64_t i, int64_t end, int64_t unit, float *sum)
{
	constexpr int AHEAD = 4; /* rows asked for at once */
	for (; i + AHEAD <= end; i += AHEAD) {
		float x[AHEAD][N];
#pragma unroll
		for (int k = 0; k < AHEAD; k++)
			values_load<N>(c.grads + (int64_t)(uint32_t)c.keys[i + k] * c.d + unit, x[k]);
#pragma unroll
		for (int k = 0; k < AHEAD; k++)
#pragma unroll
			for (int e = 0; e < N; e++)
				sum[e] += x[k][e];
	}
	for (; i < end; i++) {
		float x[N];
		values_load<N>(c.grads + (int64_t)(uint32_t)c.keys[i] * c.d + unit, x);
#pragma unroll
		for (int e = 0; e < N; e++)
			sum[e] += x[e];
	}
}

/* The first look-up in [i, end) of another row than i's. */
static __device__ __forceinline__ int64_t sparse_end(
	const struct sparse_call &c, int64_t i, int64_t end)
{
	uint32_t row = (uint32_t)(c.keys[i] >> 32);
	while (end - i > 1) {
		int64_t middle = i + (end - i) / 2;
		if ((uint32_t)(c.keys[middle] >> 32) == row)
			i = middle;
		else
			end = middle;
	}
	return end;
}

/* A thread takes N units of a window's part. */
template <int N> static __global__ void sparse_parts_kernel(struct sparse_call c)
{
	int64_t width = c.d / N, windows = (c.lookups - 1) / c.window;
	for (int64_t i = grid_begin(); i < windows * width; i += grid_stride()) {
		struct map_place at = map_place_of(i, width);
		int64_t first = (at.row + 1) * c.window;
		int64_t end = first + c.window < c.lookups ? first + c.window : c.lookups;
		uint32_t row = (uint32_t)(c.keys[first] >> 32);
		if (row == (uint32_t)c.table_rows || row != (uint32_t)(c.keys[first - 1] >> 32))
			continue;
		float sum[N] = {};
		sparse_sum<N>(c, first, sparse_end(c, first, end), at.column * N, sum);
		values_store<N>(c.parts + i * N, sum);
	}
}

/* A thread takes N units of a row. */
template <int N> static __global__ void sparse_rows_kernel(struct sparse_call c)
{
	int64_t width = c.d / N, all = *c.count * width;
	for (int64_t i = grid_begin(); i < all; i += grid_stride()) {
		struct map_place at = map_place_of(i, width);
		int64_t first = c.begin[at.row], last = c.begin[at.row + 1];
		int64_t window = first / c.window + 1;
		float sum[N] = {};
		sparse_sum<N>(
			c, first, last < window * c.window ? last : window * c.window, at.column * N, sum);
#pragma unroll 4
		for (; window * c.window < last; window++) {
			float x[N];
			values_load<N>(c.parts + (window - 1) * c.d + at.column * N, x);
#pragma unroll
			for (int e = 0; e < N; e++)
				sum[e] += x[e];
		}
		values_store<N>(c.sums + i * N, sum);
	}
}

/* PLAN_ROW_BLOCKS blocks; then one warp. */
static __global__ void __launch_bounds__(SPARSE_SQUARE_THREADS)
	sparse_square_kernel(struct sparse_call c, double *partial)
{
	CUDA_SHARED(double, room, SPARSE_SQUARE_THREADS / CUDA_WARP);
	double sum = 0;
	int64_t all = *c.count * c.d;
	for (int64_t i = grid_begin(); i < all; i += grid_stride())
		sum += (double)c.sums[i] * (double)c.sums[i];
	sum = block_sum<SPARSE_SQUARE_THREADS>(sum, room);
	if (threadIdx.x == 0)
		partial[blockIdx.x] = sum;
}

static __global__ void sparse_finish_kernel(const double *partial, double *result)
{
	double sum = 0;
	for (int i = (int)threadIdx.x; i < PLAN_ROW_BLOCKS; i += CUDA_WARP)
		sum += partial[i];
	sum = warp_sum(sum);
	if (threadIdx.x == 0)
		*result = sum;
}

template <int N> static void sparse_add_up(const struct sparse_call &c)
{
	int64_t windows = (c.lookups - 1) / c.window;
	if (windows > 0)
		CUDA_LAUNCH((sparse_parts_kernel<N>), grid_of(windows * (c.d / N), CUDA_THREADS),
			CUDA_THREADS, 0, c);
	CUDA_LAUNCH(
		(sparse_rows_kernel<N>), grid_of(c.lookups * (c.d / N), CUDA_THREADS), CUDA_THREADS, 0, c);
}

extern "C" void sparse_reduce_cuda(const struct backend_sparse *d)
{
	struct sparse_sort sort = sparse_sort_of(d);
	struct sparse_call c = {};
	c.lookups = sort.count;
	c.d = d->d;
	/* So that the parts, lookups / window * d floats, fit into one of the arrays of keys. */
	c.window = SPARSE_WINDOW;
	if (c.window < (d->d + 1) / 2)
		c.window = (d->d + 1) / 2;
	c.table_rows = (int32_t)d->table_rows;
	c.keys = sparse_sort_run(&sort);
	c.begin = sort.begin;
	c.count = d->count;
	c.grads = d->grads;
	c.parts = reinterpret_cast<float *>(sort.spare);
	c.sums = d->sums;
	if (d->d % 4 == 0 && pack_fits(d->grads) && pack_fits(d->sums) && pack_fits(c.parts))
		sparse_add_up<4>(c);
	else
		sparse_add_up<1>(c);
	CUDA_LAUNCH(sparse_square_kernel, PLAN_ROW_BLOCKS, SPARSE_SQUARE_THREADS, 0, c, sort.partial);
	CUDA_LAUNCH(sparse_finish_kernel, 1, CUDA_WARP, 0, sort.partial, cuda_result(d->ret_square));
}

/* SPDX-License-Identifier: Apache-2.0
 * The look-ups of a table in the order of rows, and within a row in their own, as keys: the row
 * above, the sample below. Those that name no row get the row behind the last one. Few are sorted
 * by one block in shared memory (bitonic: two equal keys are one look-up as good as the other),
 * many by a stable radix sort of 8 bits a pass. Then the distinct rows are listed. Included by
 * sparse.cu alone. */
#pragma once

#include "workers/engine/cuda/kernel.h"

enum {
	SPARSE_FEW = 1024, /* keys of one block; from here on the counters fit where they go */
	SPARSE_BITS = 8,
	SPARSE_RADIX = 1 << SPARSE_BITS, /* and threads of a block of the sort: one a digit */
	SPARSE_ITEMS = 8,
	SPARSE_TILE = SPARSE_RADIX * SPARSE_ITEMS, /* keys of a block */
	SPARSE_WARPS = SPARSE_RADIX / CUDA_WARP,
	SPARSE_WARP_KEYS = SPARSE_TILE / SPARSE_WARPS,
};

/* The workspace is PLAN_ROW_BLOCKS doubles, two arrays of keys, and where each row's look-ups
 * begin: 20 bytes a look-up and 1024 more (plan_workspace.c). The radix sort's counters
 * [SPARSE_RADIX, tiles] and their sums [SPARSE_RADIX] lie in `begin`, which is written last; so do
 * how many rows each tile has, in `spare`. */
struct sparse_sort {
	int64_t count;
	int tiles;
	int64_t lookups; /* of a sample */
	uint32_t table_rows;
	const int32_t *ids;
	double *partial;
	uint64_t *keys, *spare;
	int32_t *begin;
	int32_t *rows, *ret_count;
};

static struct sparse_sort sparse_sort_of(const struct backend_sparse *d)
{
	struct sparse_sort s = {};
	s.count = d->samples * d->lookups;
	s.tiles = (int)((s.count + SPARSE_TILE - 1) / SPARSE_TILE);
	s.lookups = d->lookups;
	s.table_rows = (uint32_t)d->table_rows;
	s.ids = d->ids;
	s.partial = static_cast<double *>(d->ws.data);
	s.keys = reinterpret_cast<uint64_t *>(s.partial + PLAN_ROW_BLOCKS);
	s.spare = s.keys + s.count;
	s.begin = reinterpret_cast<int32_t *>(s.spare + s.count);
	s.rows = d->rows;
	s.ret_count = d->count;
	return s;
}

/* Key i: from the look-ups themselves in the first pass (from NULL). */
static __device__ __forceinline__ uint64_t sparse_key(
	const struct sparse_sort &s, const uint64_t *from, int64_t i)
{
	if (from)
		return from[i];
	uint32_t row = s.ids[i] < 0 ? s.table_rows : (uint32_t)s.ids[i];
	return (uint64_t)row << 32 | (uint32_t)i / (uint32_t)s.lookups;
}

static __global__ void __launch_bounds__(SPARSE_FEW / 2) sparse_few_kernel(struct sparse_sort s)
{
	CUDA_SHARED(uint64_t, key, SPARSE_FEW);
	int me = (int)threadIdx.x;
	for (int i = me; i < SPARSE_FEW; i += SPARSE_FEW / 2)
		key[i] = i < s.count ? sparse_key(s, NULL, i) : UINT64_MAX;
	__syncthreads();
	for (int length = 2; length <= SPARSE_FEW; length *= 2)
		for (int step = length / 2; step > 0; step /= 2) {
			int low = me / step * 2 * step + me % step, high = low + step;
			uint64_t a = key[low], b = key[high];
			if ((a > b) == ((low & length) == 0)) {
				key[low] = b;
				key[high] = a;
			}
			__syncthreads();
		}
	for (int i = me; i < s.count; i += SPARSE_FEW / 2)
		s.keys[i] = key[i];
}

static __device__ __forceinline__ int sparse_digit(uint64_t key, int shift)
{
	return (int)(key >> shift) & (SPARSE_RADIX - 1);
}

/* How many keys of each tile have each digit. Counting by atomics is exact in any order. */
static __global__ void __launch_bounds__(SPARSE_RADIX)
	sparse_count_kernel(struct sparse_sort s, const uint64_t *from, int shift)
{
	CUDA_SHARED(int, count, SPARSE_RADIX);
	count[threadIdx.x] = 0;
	__syncthreads();
	int64_t first = (int64_t)blockIdx.x * SPARSE_TILE;
	for (int64_t i = first + threadIdx.x; i < first + SPARSE_TILE && i < s.count; i += SPARSE_RADIX)
		atomicAdd(&count[sparse_digit(sparse_key(s, from, i), shift)], 1);
	__syncthreads();
	s.begin[(int64_t)threadIdx.x * s.tiles + blockIdx.x] = count[threadIdx.x];
}

/* The sum of x over the threads before this one, and over all. room: SPARSE_WARPS, free again when
 * it returns. */
static __device__ __forceinline__ int sparse_scan(int x, int *room, int *ret_all)
{
	int lane = (int)threadIdx.x % CUDA_WARP, warp = (int)threadIdx.x / CUDA_WARP, sum = x;
	for (int step = 1; step < CUDA_WARP; step *= 2) {
		int before = __shfl_up_sync(0xffffffffu, sum, step);
		sum += lane >= step ? before : 0;
	}
	if (lane == CUDA_WARP - 1)
		room[warp] = sum;
	__syncthreads();
	int all = 0, before = 0;
	for (int i = 0; i < SPARSE_WARPS; i++) {
		before += i < warp ? room[i] : 0;
		all += room[i];
	}
	__syncthreads();
	*ret_all = all;
	return before + sum - x;
}

/* A block takes a digit: its counters become the sums of those of the tiles before. */
static __global__ void __launch_bounds__(SPARSE_RADIX) sparse_scan_kernel(struct sparse_sort s)
{
	CUDA_SHARED(int, room, SPARSE_WARPS);
	int32_t *counter = s.begin + (int64_t)blockIdx.x * s.tiles;
	int sum = 0;
	for (int first = 0; first < s.tiles; first += SPARSE_RADIX) {
		int i = first + (int)threadIdx.x, all;
		int before = sparse_scan(i < s.tiles ? counter[i] : 0, room, &all);
		if (i < s.tiles)
			counter[i] = sum + before;
		sum += all;
	}
	if (threadIdx.x == 0)
		s.begin[(int64_t)SPARSE_RADIX * s.tiles + blockIdx.x] = sum;
}

/* A warp's keys of each digit so far; gives how many there were before each lane's own key. A lane
 * without a key brings a digit that none has. */
static __device__ __forceinline__ int sparse_rank(int *count, int digit)
{
	int lane = (int)threadIdx.x % CUDA_WARP;
	unsigned same = __match_any_sync(0xffffffffu, digit);
	int before = __popc(same & ((1u << lane) - 1));
	int rank = digit < SPARSE_RADIX ? count[digit] + before : 0;
	__syncwarp();
	if (digit < SPARSE_RADIX && before == 0)
		count[digit] += __popc(same);
	__syncwarp();
	return rank;
}

/* Each warp ranks SPARSE_WARP_KEYS neighbours of the tile, 32 at a time, so the order within a
 * digit stays. */
static __global__ void __launch_bounds__(SPARSE_RADIX)
	sparse_scatter_kernel(struct sparse_sort s, const uint64_t *from, int shift, uint64_t *to)
{
	CUDA_SHARED(int, count, SPARSE_WARPS *SPARSE_RADIX);
	CUDA_SHARED(int, room, SPARSE_WARPS);
	int me = (int)threadIdx.x, lane = me % CUDA_WARP, warp = me / CUDA_WARP;
	int64_t first = (int64_t)blockIdx.x * SPARSE_TILE + warp * SPARSE_WARP_KEYS + lane;
	uint64_t key[SPARSE_ITEMS];
	int rank[SPARSE_ITEMS];
	for (int i = me; i < SPARSE_WARPS * SPARSE_RADIX; i += SPARSE_RADIX)
		count[i] = 0;
	__syncthreads();
#pragma unroll
	for (int k = 0; k < SPARSE_ITEMS; k++) {
		int64_t i = first + k * CUDA_WARP;
		bool has = i < s.count;
		key[k] = has ? sparse_key(s, from, i) : 0;
		rank[k] = sparse_rank(
			count + warp * SPARSE_RADIX, has ? sparse_digit(key[k], shift) : SPARSE_RADIX);
	}
	__syncthreads();
	int all, total = s.begin[(int64_t)SPARSE_RADIX * s.tiles + me];
	int at = sparse_scan(total, room, &all) + s.begin[(int64_t)me * s.tiles + blockIdx.x];
	for (int w = 0; w < SPARSE_WARPS; w++) {
		int own = count[w * SPARSE_RADIX + me];
		count[w * SPARSE_RADIX + me] = at;
		at += own;
	}
	__syncthreads();
#pragma unroll
	for (int k = 0; k < SPARSE_ITEMS; k++)
		if (first + k * CUDA_WARP < s.count)
			to[count[warp * SPARSE_RADIX + sparse_digit(key[k], shift)] + rank[k]] = key[k];
}

/* Whether a row's look-ups begin at i. */
static __device__ __forceinline__ bool sparse_begins(const struct sparse_sort &s, int64_t i)
{
	uint32_t row = (uint32_t)(s.keys[i] >> 32);
	return row < s.table_rows && (i == 0 || row != (uint32_t)(s.keys[i - 1] >> 32));
}

static __global__ void __launch_bounds__(SPARSE_RADIX) sparse_tile_rows_kernel(struct sparse_sort s)
{
	CUDA_SHARED(int, room, SPARSE_WARPS);
	int64_t first = (int64_t)blockIdx.x * SPARSE_TILE;
	int rows = 0, all;
	for (int64_t i = first + threadIdx.x; i < first + SPARSE_TILE && i < s.count; i += SPARSE_RADIX)
		rows += sparse_begins(s, i);
	(void)sparse_scan(rows, room, &all);
	if (threadIdx.x == 0)
		reinterpret_cast<int32_t *>(s.spare)[blockIdx.x] = all;
}

/* Lists a tile's rows behind those of the tiles before. A row's end is written by its last
 * look-up's thread where no other row begins there. */
static __global__ void __launch_bounds__(SPARSE_RADIX) sparse_list_kernel(struct sparse_sort s)
{
	CUDA_SHARED(int, room, SPARSE_WARPS);
	const int32_t *tile_rows = reinterpret_cast<const int32_t *>(s.spare);
	int sum = 0, listed;
	for (int i = (int)threadIdx.x; i < (int)blockIdx.x; i += SPARSE_RADIX)
		sum += tile_rows[i];
	(void)sparse_scan(sum, room, &listed);
	int64_t first = (int64_t)blockIdx.x * SPARSE_TILE;
	for (int k = 0; k < SPARSE_ITEMS; k++) {
		int64_t i = first + k * SPARSE_RADIX + threadIdx.x;
		bool begins = i < s.count && sparse_begins(s, i);
		int all, row = listed + sparse_scan(begins, room, &all);
		if (begins) {
			s.rows[row] = (int32_t)(s.keys[i] >> 32);
			s.begin[row] = (int32_t)i;
		}
		bool valid = i < s.count && (uint32_t)(s.keys[i] >> 32) < s.table_rows;
		if (valid && (i + 1 == s.count || (uint32_t)(s.keys[i + 1] >> 32) >= s.table_rows))
			s.begin[row + begins] = (int32_t)(i + 1);
		listed += all;
	}
	if ((int)blockIdx.x == s.tiles - 1 && threadIdx.x == 0)
		*s.ret_count = listed;
}

/* Gives the keys in order; keys and spare are then told apart. */
static const uint64_t *sparse_sort_run(struct sparse_sort *s)
{
	if (s->count <= SPARSE_FEW) {
		CUDA_LAUNCH(sparse_few_kernel, 1, SPARSE_FEW / 2, 0, *s);
	} else {
		const uint64_t *from = NULL;
		for (int shift = 0; s->table_rows >> shift > 0; shift += SPARSE_BITS) {
			uint64_t *to = s->spare;
			CUDA_LAUNCH(sparse_count_kernel, s->tiles, SPARSE_RADIX, 0, *s, from, 32 + shift);
			CUDA_LAUNCH(sparse_scan_kernel, SPARSE_RADIX, SPARSE_RADIX, 0, *s);
			CUDA_LAUNCH(sparse_scatter_kernel, s->tiles, SPARSE_RADIX, 0, *s, from, 32 + shift, to);
			s->spare = s->keys;
			s->keys = to;
			from = to;
		}
	}
	CUDA_LAUNCH(sparse_tile_rows_kernel, s->tiles, SPARSE_RADIX, 0, *s);
	CUDA_LAUNCH(sparse_list_kernel, s->tiles, SPARSE_RADIX, 0, *s);
	return s->keys;
}

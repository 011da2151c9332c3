/* SPDX-License-Identifier: Apache-2.0
 * PLAN_OP_EMBEDDING and its backward pass. Forward: a thread for each pack of y. Backward, without
 * atomics and scratch: the rows that add to the same row of a table are found by the block of the
 * first of them (the others see an earlier one and leave); its warps look through a part of the
 * rows behind it each and add what they find, in order. So it costs what the rows cost, not the
 * vocabulary, and is the same in every run. */
#include "workers/engine/cuda/ops/values.h"

enum {
	EMBEDDING_WARPS = CUDA_THREADS / CUDA_WARP,
	EMBEDDING_LOOK = 4,              /* ids of a lane at a time */
	EMBEDDING_BATCH = 8,             /* rows whose loads are under way at a time */
	EMBEDDING_QUEUE = 2 * CUDA_WARP, /* rows found and not yet added, of a warp */
	EMBEDDING_COLUMN_BLOCKS_MAX = 4, /* blocks that share a row's columns */
	EMBEDDING_ROWS_MAX = 1 << 30,    /* of a micro-batch, so that row numbers are int */
};

template <typename T, typename W, int N>
static __global__ void embedding_kernel(struct backend_embedding d)
{
	int64_t packs = d.c / N;
	for (int64_t k = grid_begin(); k < d.rows * packs; k += grid_stride()) {
		int64_t r = k / packs, i = (k - r * packs) * N, token = d.tokens[r] - d.first;
		float v[N] = { 0 };
		if (token >= 0 && token < d.v)
			values_load(static_cast<const W *>(d.wte) + token * d.c + i, v);
		if (d.wpe) {
			float w[N];
			int64_t position = d.positions ? d.positions[r] : r % d.t;
			values_load(static_cast<const W *>(d.wpe) + position * d.c + i, w);
			for (int j = 0; j < N; j++)
				v[j] += w[j];
		}
		values_store(static_cast<T *>(d.y) + r * d.c + i, v);
	}
}

template <typename T, typename W> static void embedding_of(const struct backend_embedding *d)
{
	constexpr int N = cuda_pack<T>::count;
	if (values_fit<T>(d->c, d->wte, d->wpe, d->y))
		CUDA_LAUNCH((embedding_kernel<T, W, N>), grid_of(d->rows * (d->c / N), CUDA_THREADS),
			CUDA_THREADS, 0, *d);
	else
		CUDA_LAUNCH((embedding_kernel<T, W, 1>), grid_of(d->rows * d->c, CUDA_THREADS),
			CUDA_THREADS, 0, *d);
}

template <typename T> static void embedding(const struct backend_embedding *d)
{
	if (d->w_type == PLAN_F32)
		embedding_of<T, float>(d);
	else
		embedding_of<T, T>(d);
}

/* ------------------------------------------------------------------------------------- backward */

/* to[ids[r] - first] += dy[r] where that is in [0, count). */
struct embedding_sum {
	int rows;
	int64_t c, first, count;
	const int32_t *ids;
	const void *dy;
	float *to;
};

/* Whether a row before r has r's id. Looks back from r, where a frequent id is found soon. */
static __device__ __forceinline__ bool embedding_seen(const int32_t *ids, int r)
{
	const int32_t id = ids[r];
	for (int end = r; end > 0; end -= EMBEDDING_LOOK * CUDA_THREADS) {
		int found = 0;
#pragma unroll
		for (int k = 0; k < EMBEDDING_LOOK; k++) {
			int at = end - 1 - k * CUDA_THREADS - (int)threadIdx.x;
			found |= at >= 0 && ids[at] == id;
		}
		if (__syncthreads_or(found))
			return true;
	}
	return false;
}

/* Adds `count` (at most EMBEDDING_BATCH) rows from the queue on, in order. */
template <typename T, int N>
static __device__ __forceinline__ void embedding_add(const struct embedding_sum &d,
	const int *queue, int from, int count, int64_t i, float (&sum)[N])
{
	values_held<N, T> rows[EMBEDDING_BATCH];
	if (i >= d.c)
		return;
#pragma unroll
	for (int k = 0; k < EMBEDDING_BATCH; k++)
		if (k < count)
			rows[k].load(static_cast<const T *>(d.dy) +
				(int64_t)queue[(from + k) % EMBEDDING_QUEUE] * d.c + i);
#pragma unroll
	for (int k = 0; k < EMBEDDING_BATCH; k++)
		if (k < count) {
			float v[N];
			rows[k].get(v);
			for (int j = 0; j < N; j++)
				sum[j] += v[j];
		}
}

/* The sum over the rows [begin, end) with the id, of the columns from i on; the warp takes part. */
template <typename T, int N>
static __device__ __forceinline__ void embedding_walk(const struct embedding_sum &d, int32_t id,
	int begin, int end, int64_t i, int *queue, float (&sum)[N])
{
	const int lane = (int)threadIdx.x % CUDA_WARP;
	int head = 0, tail = 0;
	for (int r = begin; r < end; r += EMBEDDING_LOOK * CUDA_WARP) {
		bool mine[EMBEDDING_LOOK];
#pragma unroll
		for (int k = 0; k < EMBEDDING_LOOK; k++) {
			int at = r + k * CUDA_WARP + lane;
			mine[k] = at < end && d.ids[at] == id;
		}
#pragma unroll
		for (int k = 0; k < EMBEDDING_LOOK; k++) {
			unsigned found = __ballot_sync(0xffffffffu, mine[k]);
			if (!found)
				continue;
			int place = tail + __popc(found & ((1u << lane) - 1));
			if (mine[k])
				queue[place % EMBEDDING_QUEUE] = r + k * CUDA_WARP + lane;
			tail += __popc(found);
			__syncwarp();
			for (; tail - head >= EMBEDDING_BATCH; head += EMBEDDING_BATCH)
				embedding_add<T, N>(d, queue, head, EMBEDDING_BATCH, i, sum);
			__syncwarp();
		}
	}
	embedding_add<T, N>(d, queue, head, tail - head, i, sum);
}

/* blockIdx.x: a row of dy; blockIdx.y: its columns are shared by these blocks. */
template <typename T, int N>
static __global__ void __launch_bounds__(CUDA_THREADS)
	embedding_backward_kernel(struct embedding_sum d)
{
	CUDA_SHARED(int, queue, EMBEDDING_WARPS *EMBEDDING_QUEUE);
	CUDA_SHARED(float, room, CUDA_THREADS *N);
	const int r = (int)blockIdx.x, warp = (int)threadIdx.x / CUDA_WARP;
	const int lane = (int)threadIdx.x % CUDA_WARP;
	const int32_t id = d.ids[r];
	const int64_t row = id - d.first;
	if (row < 0 || row >= d.count || embedding_seen(d.ids, r))
		return;
	const int per = (d.rows - r + EMBEDDING_WARPS - 1) / EMBEDDING_WARPS;
	const int begin = r + warp * per;
	const int end = begin + per < d.rows ? begin + per : d.rows;
	for (int64_t tile = blockIdx.y; tile * CUDA_WARP * N < d.c; tile += gridDim.y) {
		int64_t i = (tile * CUDA_WARP + lane) * N;
		float sum[N] = { 0 };
		embedding_walk<T, N>(d, id, begin, end, i, queue + warp * EMBEDDING_QUEUE, sum);
		for (int j = 0; j < N; j++)
			room[(warp * CUDA_WARP + lane) * N + j] = sum[j];
		__syncthreads();
		/* A thread for each of the tile's columns, not for each of its packs. */
		int64_t column = tile * CUDA_WARP * N + threadIdx.x;
		if (threadIdx.x < CUDA_WARP * N && column < d.c) {
			float *to = d.to + row * d.c + column, all = *to;
			for (int w = 0; w < EMBEDDING_WARPS; w++)
				all += room[w * CUDA_WARP * N + threadIdx.x];
			*to = all;
		}
		__syncthreads();
	}
}

template <typename T> static void embedding_add_rows(const struct embedding_sum &d)
{
	constexpr int N = cuda_pack<T>::count;
	static_assert(CUDA_WARP * N <= CUDA_THREADS, "a thread for each column of a tile");
	int n = values_fit<T>(d.c, d.dy) ? N : 1;
	int64_t tiles = (d.c + CUDA_WARP * n - 1) / (CUDA_WARP * n);
	int64_t most = EMBEDDING_COLUMN_BLOCKS_MAX;
	dim3 grid((unsigned)d.rows, (unsigned)(tiles < most ? tiles : most));
	if (n == N)
		CUDA_LAUNCH((embedding_backward_kernel<T, N>), grid, CUDA_THREADS, 0, d);
	else
		CUDA_LAUNCH((embedding_backward_kernel<T, 1>), grid, CUDA_THREADS, 0, d);
}

/* dwpe[p] += dy[p], dy[p + t], ...: positions that nobody said. */
template <typename T, int N>
static __global__ void embedding_positions_kernel(struct backend_embedding d)
{
	int64_t packs = d.c / N, positions = d.rows < d.t ? d.rows : d.t;
	for (int64_t k = grid_begin(); k < positions * packs; k += grid_stride()) {
		int64_t p = k / packs, i = (k - p * packs) * N;
		float sum[N];
		values_load(d.dwpe + p * d.c + i, sum);
#pragma unroll 4
		for (int64_t r = p; r < d.rows; r += d.t) {
			float v[N];
			values_load(static_cast<const T *>(d.dy) + r * d.c + i, v);
			for (int j = 0; j < N; j++)
				sum[j] += v[j];
		}
		values_store(d.dwpe + p * d.c + i, sum);
	}
}

template <typename T> static void embedding_add_positions(const struct backend_embedding *d)
{
	constexpr int N = cuda_pack<T>::count;
	int64_t positions = d->rows < d->t ? d->rows : d->t;
	if (values_fit<T>(d->c, d->dy, d->dwpe))
		CUDA_LAUNCH((embedding_positions_kernel<T, N>),
			grid_of(positions * (d->c / N), CUDA_THREADS), CUDA_THREADS, 0, *d);
	else
		CUDA_LAUNCH((embedding_positions_kernel<T, 1>), grid_of(positions * d->c, CUDA_THREADS),
			CUDA_THREADS, 0, *d);
}

template <typename T> static void embedding_backward(const struct backend_embedding *d)
{
	if (d->rows > EMBEDDING_ROWS_MAX) {
		cuda_failed(cudaErrorInvalidValue, "embedding_backward: rows");
		return;
	}
	struct embedding_sum sum = { (int)d->rows, d->c, d->first, d->v, d->tokens, d->dy, d->dwte };
	if (d->dwte)
		embedding_add_rows<T>(sum);
	if (!d->dwpe)
		return;
	if (!d->positions) {
		embedding_add_positions<T>(d);
		return;
	}
	sum.first = 0;
	sum.count = d->t;
	sum.ids = d->positions;
	sum.to = d->dwpe;
	embedding_add_rows<T>(sum);
}

CUDA_EXPORT(embedding, (const struct backend_embedding *d), (d))
CUDA_EXPORT(embedding_backward, (const struct backend_embedding *d), (d))

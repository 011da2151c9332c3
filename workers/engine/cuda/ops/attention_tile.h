/* SPDX-License-Identifier: Apache-2.0
 * Tiles of attention: how a block of threads holds scores and sums of rows, and multiplies them, by
 * tensor cores (bf16, fp16) or by FMA (fp32). Included by attention.cu and attention_backward.cu,
 * whose kernels are written once over both. */
#pragma once

/* A tile has ROWS rows, which threads own, and meets tiles of COLUMNS others that pass by in shared
 * memory: scores[ROWS][COLUMNS] = rows x others', and sums[ROWS][WIDTH] += scores x others. Width
 * is the head size in whole tiles, padded with zeros. A thread holds RR x RC scores and RR x RO
 * sums; row(i), column(j) and out(j) say which. The rows of a warp are its own: it may use its rows
 * of a tile as it likes behind a __syncwarp. LANES threads beside each other share a row. */

#include "workers/engine/cuda/mma.h"

/* As in cpu/ops/attention.h: scores are in units of log2. */
static constexpr float att_log2e = 1.44269504f, att_ln2 = 0.693147181f;

/* Tensor cores multiply values of 8 or 11 bits. Operands that were computed in fp32 go in as a sum
 * of this many of them: with 2, products are those of fp32, which backend.h asks for; 1 is what is
 * common elsewhere, takes a third off the work, and leaves an error of one rounding of bf16 to each
 * probability (tests see 1e-3 of the largest value instead of 1e-6). */
enum { ATT_PARTS = 2 };

/* --------------------------------------------------------------------------------- tensor cores */

/* MT: tiles of 16 rows for a warp. SUMS: columns of sums, at most WIDTH_. */
template <typename T_, int WARPS_, int MT, int COLUMNS_, int WIDTH_, int SUMS_ = WIDTH_>
struct att_mma {
	typedef T_ T;
	static constexpr int WARPS = WARPS_, THREADS = WARPS * CUDA_WARP;
	static constexpr int WARP_ROWS = MT * 16, ROWS = WARPS * WARP_ROWS;
	static constexpr int COLUMNS = COLUMNS_, WIDTH = WIDTH_, SUMS = SUMS_;
	static constexpr int STRIDE = WIDTH + 8; /* of tiles: eight rows meet all banks */
	static constexpr int RR = 2 * MT, RC = COLUMNS / 4, RO = SUMS / 4, LANES = 4;
	static constexpr int STAGES = 2;        /* of tiles that pass by */
	static constexpr int SCRATCH_BYTES = 0; /* of shared memory, for add() */

	static __device__ __forceinline__ int row(int i)
	{
		return (int)threadIdx.x / CUDA_WARP * WARP_ROWS + i / 2 * 16 + i % 2 * 8 +
			(int)threadIdx.x % CUDA_WARP / 4;
	}
	static __device__ __forceinline__ int column(int j)
	{
		return j / 2 * 8 + (int)threadIdx.x % 4 * 2 + j % 2;
	}
	static __device__ __forceinline__ int out(int j) { return column(j); }

	/* s = rows x others', of two tiles [..][STRIDE]. */
	static __device__ __forceinline__ void multiply(
		const T *rows, const T *others, float (&s)[RR][RC])
	{
		const T *a_row =
			mma_row_a(rows + (int)threadIdx.x / CUDA_WARP * WARP_ROWS * STRIDE, STRIDE);
		const T *b_row = mma_row_b(others, STRIDE);
		for (int i = 0; i < RR; i++)
			for (int j = 0; j < RC; j++)
				s[i][j] = 0;
#pragma unroll 4
		for (int k = 0; k < WIDTH; k += 16) {
			unsigned a[MT][4];
#pragma unroll
			for (int m = 0; m < MT; m++)
				mma_load(a[m], a_row + m * 16 * STRIDE + k);
#pragma unroll
			for (int n = 0; n < RC; n += 4) {
				unsigned b[4];
				mma_load(b, b_row + n * 4 * STRIDE + k);
#pragma unroll
				for (int m = 0; m < 2 * MT; m += 2)
#pragma unroll
					for (int side = 0; side < 4; side += 2)
						mma_add<T>(s[m][n + side], s[m][n + side + 1], s[m + 1][n + side],
							s[m + 1][n + side + 1], a[m / 2], b[side], b[side + 1]);
			}
		}
	}

	/* sums += s x others; others begins at the first column of sums. */
	static __device__ __forceinline__ void add(
		const float (&s)[RR][RC], const T *others, float (&sums)[RR][RO], void *scratch)
	{
		const T *b_row = mma_row_b_across(others, STRIDE);
#pragma unroll
		for (int k = 0; k < RC; k += 4) {
			unsigned a[ATT_PARTS][MT][4];
#pragma unroll
			for (int m = 0; m < MT; m++)
#pragma unroll
				for (int i = 0; i < 4; i++) {
					float x = s[2 * m + i % 2][k + i / 2 * 2];
					float y = s[2 * m + i % 2][k + i / 2 * 2 + 1];
					a[0][m][i] = mma_pair<T>(x, y);
					if (ATT_PARTS == 2)
						a[ATT_PARTS - 1][m][i] = mma_pair_rest<T>(a[0][m][i], x, y);
				}
#pragma unroll
			for (int n = 0; n < RO; n += 4) {
				unsigned b[4];
				mma_load_across(b, b_row + k * 4 * STRIDE + n * 4);
#pragma unroll
				for (int part = ATT_PARTS - 1; part >= 0; part--)
#pragma unroll
					for (int m = 0; m < 2 * MT; m += 2)
#pragma unroll
						for (int side = 0; side < 4; side += 2)
							mma_add<T>(sums[m][n + side], sums[m][n + side + 1],
								sums[m + 1][n + side], sums[m + 1][n + side + 1], a[part][m / 2],
								b[side], b[side + 1]);
			}
		}
	}
};

/* ------------------------------------------------------------------------------------------ FMA */

/* 16 x 16 threads: 16 beside each other have RR_ rows, every 16th column of scores, and four
 * columns of each 64 of the sums. */
template <int RR_, int COLUMNS_, int WIDTH_> struct att_fma {
	typedef float T;
	static constexpr int THREADS = 256, WARPS = THREADS / CUDA_WARP;
	static constexpr int RR = RR_, WARP_ROWS = 2 * RR, ROWS = 16 * RR;
	static constexpr int COLUMNS = COLUMNS_, WIDTH = WIDTH_, SUMS = WIDTH_;
	static constexpr int STRIDE = WIDTH + 4;
	static constexpr int RC = COLUMNS / 16, RO = SUMS / 16, LANES = 16;
	static constexpr int STAGES = 1;
	static constexpr int SCRATCH_STRIDE = COLUMNS + 4;
	static constexpr int SCRATCH_BYTES = ROWS * SCRATCH_STRIDE * (int)sizeof(float);

	static __device__ __forceinline__ int row(int i) { return (int)threadIdx.x / 16 * RR + i; }
	static __device__ __forceinline__ int column(int j) { return (int)threadIdx.x % 16 + 16 * j; }
	static __device__ __forceinline__ int out(int j)
	{
		return j / 4 * 64 + (int)threadIdx.x % 16 * 4 + j % 4;
	}

	static __device__ __forceinline__ void multiply(
		const float *rows, const float *others, float (&s)[RR][RC])
	{
		for (int i = 0; i < RR; i++)
			for (int j = 0; j < RC; j++)
				s[i][j] = 0;
#pragma unroll 2
		for (int k = 0; k < WIDTH; k += 4) {
			cuda_pack<float> a[RR], b[RC];
#pragma unroll
			for (int i = 0; i < RR; i++)
				a[i] = pack_load(rows + row(i) * STRIDE + k);
#pragma unroll
			for (int j = 0; j < RC; j++)
				b[j] = pack_load(others + column(j) * STRIDE + k);
#pragma unroll
			for (int e = 0; e < 4; e++)
#pragma unroll
				for (int i = 0; i < RR; i++)
#pragma unroll
					for (int j = 0; j < RC; j++)
						s[i][j] = fmaf(a[i].v[e], b[j].v[e], s[i][j]);
		}
	}

	/* Scores cross between the threads of a row through its scratch. */
	static __device__ __forceinline__ void add(
		const float (&s)[RR][RC], const float *others, float (&sums)[RR][RO], void *scratch)
	{
		float *p = static_cast<float *>(scratch);
#pragma unroll
		for (int i = 0; i < RR; i++)
#pragma unroll
			for (int j = 0; j < RC; j++)
				p[row(i) * SCRATCH_STRIDE + column(j)] = s[i][j];
		__syncwarp();
#pragma unroll 1
		for (int k = 0; k < COLUMNS; k += 4) {
			cuda_pack<float> a[RR];
#pragma unroll
			for (int i = 0; i < RR; i++)
				a[i] = pack_load(p + row(i) * SCRATCH_STRIDE + k);
#pragma unroll
			for (int e = 0; e < 4; e++)
#pragma unroll
				for (int j = 0; j < RO; j += 4) {
					cuda_pack<float> b = pack_load(others + (k + e) * STRIDE + out(j));
#pragma unroll
					for (int i = 0; i < RR; i++)
#pragma unroll
						for (int x = 0; x < 4; x++)
							sums[i][j + x] = fmaf(a[i].v[e], b.v[x], sums[i][j + x]);
				}
		}
		__syncwarp();
	}
};

/* --------------------------------------------------------------------------------- global memory
 */

/* Of one call: what kernels need of struct backend_attention. */
template <typename T> struct att_operands {
	int b, t, heads, kv_heads, head_size;
	int packs;        /* rows begin at multiples of 16 bytes */
	float scale;      /* 1 / sqrt(head_size) */
	int64_t row, out; /* elements between rows of qkv; of y */
	const T *qkv;
	const int32_t *starts; /* or NULL */
	T *y;
	float *lse;
	const T *dy;
	T *dqkv;
	float *delta; /* backward: sum of dy * y, where lse has the same query */
};

template <typename T>
static inline struct att_operands<T> att_operands_of(const struct backend_attention *d) {
	struct att_operands<T> a = {
	};
	a.b = (int)d->b;
	a.t = (int)d->t;
	a.heads = (int)d->heads;
	a.kv_heads = (int)d->kv_heads;
	a.head_size = (int)d->head_size;
	a.packs = d->head_size % cuda_pack<T>::count == 0 && pack_fits(d->qkv) && pack_fits(d->y) &&
		pack_fits(d->dy) && pack_fits(d->dqkv);
	a.scale = 1.0f / sqrtf((float)d->head_size);
	a.row = (d->heads + 2 * d->kv_heads) * d->head_size;
	a.out = d->heads * d->head_size;
	a.qkv = static_cast<const T *>(d->qkv);
	a.starts = d->starts;
	a.y = static_cast<T *>(d->y);
	a.lse = d->lse;
	a.dy = static_cast<const T *>(d->dy);
	a.dqkv = static_cast<T *>(d->dqkv);
	a.delta = static_cast<float *>(d->ws.data);
	return a;
}

/* Begins to bring the first `count` of ROWS rows into a tile, zeros elsewhere. */
template <typename E, int ROWS, typename T>
static __device__ __forceinline__ void att_load(struct mma_copies *copies, T *tile, const T *x,
	int64_t stride, int count, int head_size, int packs)
{
	constexpr int pack = cuda_pack<T>::count;
	if (packs) {
		constexpr int across = E::WIDTH / pack;
		static_assert(ROWS * across % E::THREADS == 0, "threads bring the same number of packs");
#pragma unroll 4
		for (int i = (int)threadIdx.x; i < ROWS * across; i += E::THREADS) {
			int r = i / across, e = i % across * pack;
			bool real = r < count && e < head_size;
			copies->template add<16>(tile + r * E::STRIDE + e, real ? x + r * stride + e : x, real);
		}
		return;
	}
#pragma unroll 1
	for (int i = (int)threadIdx.x; i < ROWS * E::WIDTH; i += E::THREADS) {
		int r = i / E::WIDTH, e = i % E::WIDTH;
		tile[r * E::STRIDE + e] = r < count && e < head_size ? x[r * stride + e] : act_round<T>(0);
	}
}

/* Columns [first, first + SUMS) of the tile's first `count` rows = sums * factor[row]. Each warp
 * gathers its own rows in the tile, whose contents are lost. */
template <typename E, typename T>
static __device__ __forceinline__ void att_store(const float (&sums)[E::RR][E::RO],
	const float (&factor)[E::RR], T *tile, T *x, int64_t stride, int count, int head_size,
	int first, int packs)
{
	constexpr int pack = cuda_pack<T>::count, across = E::SUMS / pack;
	int warp_first = (int)threadIdx.x / CUDA_WARP * E::WARP_ROWS;
	int lane = (int)threadIdx.x % CUDA_WARP;
	int columns = min(E::SUMS, head_size - first);
	__syncwarp();
#pragma unroll
	for (int i = 0; i < E::RR; i++)
#pragma unroll
		for (int j = 0; j < E::RO; j++)
			tile[E::row(i) * E::STRIDE + E::out(j)] = act_round<T>(sums[i][j] * factor[i]);
	__syncwarp();
	for (int i = lane; packs && i < E::WARP_ROWS * across; i += CUDA_WARP) {
		int r = warp_first + i / across, e = i % across * pack;
		if (r < count && e < columns)
			pack_store(x + r * stride + first + e, pack_load(tile + r * E::STRIDE + e));
	}
	for (int r = warp_first; !packs && r < min(warp_first + E::WARP_ROWS, count); r++)
		for (int e = lane; e < columns; e += CUDA_WARP)
			x[r * stride + first + e] = tile[r * E::STRIDE + e];
}

/* The lowest and the highest of the first keys that `count` queries see; every thread gets both.
 * room: 2 * WARPS of the block's. */
template <typename E>
static __device__ __forceinline__ void att_starts(
	const int32_t *starts, int count, int *room, int *ret_low, int *ret_high)
{
	int low = INT32_MAX, high = 0;
	for (int r = (int)threadIdx.x; r < count; r += E::THREADS) {
		low = min(low, starts[r]);
		high = max(high, starts[r]);
	}
	low = __reduce_min_sync(0xffffffffu, low);
	high = __reduce_max_sync(0xffffffffu, high);
	if (threadIdx.x % CUDA_WARP == 0) {
		room[threadIdx.x / CUDA_WARP] = low;
		room[E::WARPS + threadIdx.x / CUDA_WARP] = high;
	}
	__syncthreads();
	for (int i = 0; i < E::WARPS; i++) {
		low = min(low, room[i]);
		high = max(high, room[E::WARPS + i]);
	}
	*ret_low = low;
	*ret_high = high;
}

/* -------------------------------------------------------------------------- queries of a block */

/* Where block blockIdx.x works. Those with most keys go first within a head, and heads that share
 * keys one after the other. */
template <typename E, typename T> struct att_place {
	int i0, count; /* first query, how many */
	int64_t q, y;  /* of the first query: where in qkv, in y, in lse */
	int64_t lse;
	const T *k, *v;        /* of the head's first key */
	const int32_t *starts; /* of the first query, or NULL */

	__device__ __forceinline__ att_place(const struct att_operands<T> &a)
	{
		int blocks = (a.t + E::ROWS - 1) / E::ROWS;
		int unit = (int)blockIdx.x / blocks, b = unit / a.heads, h = unit % a.heads;
		i0 = (blocks - 1 - (int)blockIdx.x % blocks) * E::ROWS;
		count = min(E::ROWS, a.t - i0);
		int64_t first = (int64_t)b * a.t;
		q = (first + i0) * a.row + h * a.head_size;
		y = (first + i0) * a.out + h * a.head_size;
		lse = (int64_t)unit * a.t + i0;
		k = a.qkv + first * a.row + (a.heads + h / (a.heads / a.kv_heads)) * a.head_size;
		v = k + a.kv_heads * a.head_size;
		starts = a.starts ? a.starts + first + i0 : nullptr;
	}
};

/* Begins to bring the tile of keys and values from j0 on. */
template <typename E, typename T>
static __device__ __forceinline__ void att_load_keys(const struct att_operands<T> &a,
	struct mma_copies *copies, const T *k, const T *v, int j0, T *tiles)
{
	constexpr int tile = E::COLUMNS * E::STRIDE;
	int count = min(E::COLUMNS, a.t - j0);
	att_load<E, E::COLUMNS>(copies, tiles, k + j0 * a.row, a.row, count, a.head_size, a.packs);
	att_load<E, E::COLUMNS>(
		copies, tiles + tile, v + j0 * a.row, a.row, count, a.head_size, a.packs);
	copies->commit();
}

/* Keys that queries from i0 on do not see get no weight; low: the first that each sees. */
template <typename E>
static __device__ __forceinline__ void att_hide(
	const int (&low)[E::RR], int i0, int j0, float (&s)[E::RR][E::RC])
{
#pragma unroll
	for (int i = 0; i < E::RR; i++)
#pragma unroll
		for (int j = 0; j < E::RC; j++) {
			int key = j0 + E::column(j);
			if (key > i0 + E::row(i) || key < low[i])
				s[i][j] = -INFINITY;
		}
}

/* Launches that want more shared memory than every device gives unasked. */
static inline bool att_shared(cudaError_t rc, const char *kernel)
{
	if (rc != cudaSuccess)
		cuda_failed(rc, kernel);
	return rc == cudaSuccess;
}

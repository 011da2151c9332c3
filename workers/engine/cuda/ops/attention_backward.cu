/* SPDX-License-Identifier: Apache-2.0
 * PLAN_OP_ATTENTION_BACKWARD: scores are computed again from the forward pass's log-sum-exp. Three
 * kernels: the sum of dy * y of each query, kept in the workspace; gradients of keys and values by
 * blocks of keys, which queries pass by; gradients of queries by blocks of queries, which keys pass
 * by. Every sum is one block's, so its order is fixed; the price is that scores are computed twice,
 * 7 products instead of 5. */
#include "workers/engine/cuda/ops/attention_tile.h"

/* ---------------------------------------------------------------------------------- dy times y */

/* `lanes` threads (a power of two, up to a warp) beside each other have a row. */
template <typename T>
static __global__ void attention_delta_kernel(struct att_operands<T> a, int lanes)
{
	constexpr int pack = cuda_pack<T>::count;
	int64_t index = grid_begin() / lanes, rows = (int64_t)a.b * a.t * a.heads;
	int lane = (int)threadIdx.x & (lanes - 1);
	const T *y = a.y + index * a.head_size, *dy = a.dy + index * a.head_size;
	float sum = 0;
	for (int e = lane * pack; index < rows && e < a.head_size; e += lanes * pack) {
		if (a.packs) {
			cuda_pack<T> p = pack_load(y + e), q = pack_load(dy + e);
#pragma unroll
			for (int i = 0; i < pack; i++)
				sum = fmaf(act_float(p.v[i]), act_float(q.v[i]), sum);
		} else {
			for (int i = e; i < min(e + pack, a.head_size); i++)
				sum = fmaf(act_float(y[i]), act_float(dy[i]), sum);
		}
	}
	for (int step = lanes / 2; step > 0; step /= 2)
		sum += __shfl_xor_sync(0xffffffffu, sum, step);
	if (lane != 0 || index >= rows)
		return;
	int64_t position = index / a.heads, b = position / a.t;
	a.delta[(b * a.heads + index % a.heads) * a.t + position - b * a.t] = sum;
}

template <typename T> static void attention_delta(const struct att_operands<T> &a)
{
	int lanes = 1;
	while (lanes < CUDA_WARP && lanes * cuda_pack<T>::count < a.head_size)
		lanes *= 2;
	int64_t threads = (int64_t)a.b * a.t * a.heads * lanes;
	CUDA_LAUNCH((attention_delta_kernel<T>),
		(unsigned)((threads + CUDA_THREADS - 1) / CUDA_THREADS), CUDA_THREADS, 0, a, lanes);
}

/* Probabilities from scores, and from products of dy and values the gradients of scores. */
static __device__ __forceinline__ float att_probability(float s, float scale, float lse)
{
	return exp2f(fmaf(s, scale, -lse * att_log2e));
}

template <typename E> static constexpr int att_backward_tiles(void)
{
	return 2 * (E::ROWS + E::STAGES * E::COLUMNS) * E::STRIDE * (int)sizeof(typename E::T) +
		E::SCRATCH_BYTES;
}

/* ------------------------------------------------------------------------------ keys and values */

/* What else is known of queries that pass by. */
template <typename E> struct att_passing {
	float lse[E::COLUMNS], delta[E::COLUMNS];
	int low[E::COLUMNS];
};

/* A block's keys, and the queries of the group's heads that it goes through. */
template <typename E> struct att_keys {
	typedef typename E::T T;
	int b, kv, group, j0, count; /* first key, how many */
	int begin, end;              /* queries of a head */
	int h, i0;                   /* which pass by: head of the group, first query */
	int64_t k, v;                /* of the first key: where in qkv */

	__device__ __forceinline__ att_keys(const struct att_operands<T> &a)
	{
		int blocks = (a.t + E::ROWS - 1) / E::ROWS, unit = (int)blockIdx.x / blocks;
		b = unit / a.kv_heads;
		kv = unit % a.kv_heads;
		group = a.heads / a.kv_heads;
		j0 = (int)blockIdx.x % blocks * E::ROWS;
		count = min(E::ROWS, a.t - j0);
		k = ((int64_t)b * a.t + j0) * a.row + (a.heads + kv) * a.head_size;
		v = k + a.kv_heads * a.head_size;
		h = 0;
		i0 = begin = j0 / E::COLUMNS * E::COLUMNS;
		end = a.t;
	}

	/* Queries behind the last one that sees a key of the block are left out. room: WARPS. */
	__device__ __forceinline__ void shorten(const struct att_operands<T> &a, int *room)
	{
		const int32_t *starts = a.starts + (int64_t)b * a.t;
		int last = j0;
		for (int i = j0 + (int)threadIdx.x; i < a.t; i += E::THREADS)
			if (starts[i] < j0 + count)
				last = i;
		last = __reduce_max_sync(0xffffffffu, last);
		if (threadIdx.x % CUDA_WARP == 0)
			room[threadIdx.x / CUDA_WARP] = last;
		__syncthreads();
		for (int i = 0; i < E::WARPS; i++)
			last = max(last, room[i]);
		end = last + 1;
	}

	__device__ __forceinline__ bool more(void) const { return h < group; }
	__device__ __forceinline__ void next(void)
	{
		i0 += E::COLUMNS;
		if (i0 < end)
			return;
		i0 = begin;
		h++;
	}

	/* Begins to bring the queries at h, i0. */
	__device__ __forceinline__ void load(const struct att_operands<T> &a, struct mma_copies *copies,
		T *tiles, struct att_passing<E> *passing) const
	{
		int head = kv * group + h, queries = min(E::COLUMNS, a.t - i0), r = (int)threadIdx.x;
		int64_t position = (int64_t)b * a.t + i0;
		int64_t statistics = ((int64_t)b * a.heads + head) * a.t + i0;
		att_load<E, E::COLUMNS>(copies, tiles, a.qkv + position * a.row + head * a.head_size, a.row,
			queries, a.head_size, a.packs);
		att_load<E, E::COLUMNS>(copies, tiles + E::COLUMNS * E::STRIDE,
			a.dy + position * a.out + head * a.head_size, a.out, queries, a.head_size, a.packs);
		if (r < E::COLUMNS) {
			bool real = r < queries;
			int at = real ? r : 0;
			copies->template add<4>(passing->lse + r, a.lse + statistics + at, real);
			copies->template add<4>(passing->delta + r, a.delta + statistics + at, real);
			if (a.starts)
				copies->template add<4>(passing->low + r, a.starts + position + at, real);
		}
		copies->commit();
	}
};

/* Queries that do not see a key leave it alone. */
template <typename E>
static __device__ __forceinline__ void att_hide_passing(
	const struct att_passing<E> *passing, bool documents, int i0, int j0, float (&s)[E::RR][E::RC])
{
#pragma unroll
	for (int j = 0; j < E::RC; j++) {
		int query = i0 + E::column(j), low = documents ? passing->low[E::column(j)] : 0;
#pragma unroll
		for (int i = 0; i < E::RR; i++) {
			int key = j0 + E::row(i);
			if (key > query || key < low)
				s[i][j] = -INFINITY;
		}
	}
}

template <typename E>
static __global__ void __launch_bounds__(E::THREADS)
	attention_keys_kernel(struct att_operands<typename E::T> a)
{
	typedef typename E::T T;
	CUDA_SHARED_DYNAMIC(T, tile_k);
	CUDA_SHARED(struct att_passing<E>, passing, E::STAGES);
	CUDA_SHARED(int, room, E::WARPS);
	constexpr int tile = E::COLUMNS * E::STRIDE;
	T *tile_v = tile_k + E::ROWS * E::STRIDE, *tiles = tile_v + E::ROWS * E::STRIDE;
	void *scratch = tiles + 2 * E::STAGES * tile;
	int first = (int)blockIdx.y * E::SUMS; /* column of the gradients */
	struct att_keys<E> at(a);
	struct mma_copies copies;
	if (a.starts)
		at.shorten(a, room);
	float dk[E::RR][E::RO] = {}, dv[E::RR][E::RO] = {};
	int warp_first = at.j0 + (int)threadIdx.x / CUDA_WARP * E::WARP_ROWS, stage = 0;
	att_load<E, E::ROWS>(&copies, tile_k, a.qkv + at.k, a.row, at.count, a.head_size, a.packs);
	att_load<E, E::ROWS>(&copies, tile_v, a.qkv + at.v, a.row, at.count, a.head_size, a.packs);
	at.load(a, &copies, tiles, passing);
#pragma unroll 1
	while (at.more()) {
		const T *q = tiles + 2 * stage * tile, *dy = q + tile;
		const struct att_passing<E> *now = passing + stage;
		int i0 = at.i0;
		at.next();
		copies.template wait<0>();
		__syncthreads();
		if (E::STAGES == 2) {
			stage ^= 1;
			if (at.more())
				at.load(a, &copies, tiles + 2 * stage * tile, passing + stage);
		}
		if (i0 + E::COLUMNS > warp_first) { /* otherwise all these queries are before the keys */
			float p[E::RR][E::RC], ds[E::RR][E::RC];
			E::multiply(tile_k, q, p);
			if (a.starts || i0 < at.j0 + E::ROWS)
				att_hide_passing<E>(now, a.starts != nullptr, i0, at.j0, p);
#pragma unroll
			for (int j = 0; j < E::RC; j++)
#pragma unroll
				for (int i = 0; i < E::RR; i++)
					p[i][j] = att_probability(p[i][j], a.scale * att_log2e, now->lse[E::column(j)]);
			E::add(p, dy + first, dv, scratch);
			E::multiply(tile_v, dy, ds);
#pragma unroll
			for (int j = 0; j < E::RC; j++)
#pragma unroll
				for (int i = 0; i < E::RR; i++)
					ds[i][j] = p[i][j] * (ds[i][j] - now->delta[E::column(j)]);
			E::add(ds, q + first, dk, scratch);
		}
		if (E::STAGES == 1 && at.more()) {
			__syncthreads();
			at.load(a, &copies, tiles, passing);
		}
	}
	float scale[E::RR], one[E::RR];
#pragma unroll
	for (int i = 0; i < E::RR; i++) {
		scale[i] = a.scale;
		one[i] = 1.0f;
	}
	att_store<E>(dk, scale, tile_k, a.dqkv + at.k, a.row, at.count, a.head_size, first, a.packs);
	att_store<E>(dv, one, tile_v, a.dqkv + at.v, a.row, at.count, a.head_size, first, a.packs);
}

/* -------------------------------------------------------------------------------------- queries */

template <typename E>
static __global__ void __launch_bounds__(E::THREADS)
	attention_queries_kernel(struct att_operands<typename E::T> a)
{
	typedef typename E::T T;
	CUDA_SHARED_DYNAMIC(T, tile_q);
	CUDA_SHARED(int, room, 2 * E::WARPS);
	constexpr int tile = E::COLUMNS * E::STRIDE;
	T *tile_dy = tile_q + E::ROWS * E::STRIDE, *tiles = tile_dy + E::ROWS * E::STRIDE;
	void *scratch = tiles + 2 * E::STAGES * tile;
	int first = (int)blockIdx.y * E::SUMS;
	struct att_place<E, T> at(a);
	struct mma_copies copies;
	int lowest = 0, highest = 0, end = at.i0 + at.count, low[E::RR];
	if (at.starts)
		att_starts<E>(at.starts, at.count, room, &lowest, &highest);
	float dq[E::RR][E::RO] = {}, lse[E::RR], delta[E::RR], scale[E::RR];
#pragma unroll
	for (int i = 0; i < E::RR; i++) {
		bool real = E::row(i) < at.count;
		lse[i] = real ? a.lse[at.lse + E::row(i)] : 0;
		delta[i] = real ? a.delta[at.lse + E::row(i)] : 0;
		low[i] = real && at.starts ? at.starts[E::row(i)] : 0;
		scale[i] = a.scale;
	}
	int warp_end = at.i0 + ((int)threadIdx.x / CUDA_WARP + 1) * E::WARP_ROWS;
	int j0 = lowest / E::COLUMNS * E::COLUMNS, stage = 0;
	att_load<E, E::ROWS>(&copies, tile_q, a.qkv + at.q, a.row, at.count, a.head_size, a.packs);
	att_load<E, E::ROWS>(&copies, tile_dy, a.dy + at.y, a.out, at.count, a.head_size, a.packs);
	att_load_keys<E>(a, &copies, at.k, at.v, j0, tiles);
#pragma unroll 1
	for (; j0 < end; j0 += E::COLUMNS) {
		const T *k = tiles + 2 * stage * tile, *v = k + tile;
		copies.template wait<0>();
		__syncthreads();
		if (E::STAGES == 2) {
			stage ^= 1;
			if (j0 + E::COLUMNS < end)
				att_load_keys<E>(a, &copies, at.k, at.v, j0 + E::COLUMNS, tiles + 2 * stage * tile);
		}
		if (j0 < warp_end) {
			float p[E::RR][E::RC], ds[E::RR][E::RC];
			E::multiply(tile_q, k, p);
			if (j0 + E::COLUMNS > at.i0 || highest > j0)
				att_hide<E>(low, at.i0, j0, p);
			E::multiply(tile_dy, v, ds);
#pragma unroll
			for (int i = 0; i < E::RR; i++)
#pragma unroll
				for (int j = 0; j < E::RC; j++)
					ds[i][j] = att_probability(p[i][j], a.scale * att_log2e, lse[i]) *
						(ds[i][j] - delta[i]);
			E::add(ds, k + first, dq, scratch);
		}
		if (E::STAGES == 1 && j0 + E::COLUMNS < end) {
			__syncthreads();
			att_load_keys<E>(a, &copies, at.k, at.v, j0 + E::COLUMNS, tiles);
		}
	}
	att_store<E>(dq, scale, tile_q, a.dqkv + at.q, a.row, at.count, a.head_size, first, a.packs);
}

/* ------------------------------------------------------------------------------------- launches */

template <typename E> static void attention_keys(const struct att_operands<typename E::T> &a)
{
	constexpr int bytes = att_backward_tiles<E>();
	int64_t blocks = (int64_t)((a.t + E::ROWS - 1) / E::ROWS) * a.b * a.kv_heads;
	if (att_shared(cudaFuncSetAttribute(attention_keys_kernel<E>,
					   cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
			"attention_backward of keys"))
		CUDA_LAUNCH((attention_keys_kernel<E>), dim3((unsigned)blocks, E::WIDTH / E::SUMS),
			E::THREADS, bytes, a);
}

template <typename E> static void attention_queries(const struct att_operands<typename E::T> &a)
{
	constexpr int bytes = att_backward_tiles<E>();
	int64_t blocks = (int64_t)((a.t + E::ROWS - 1) / E::ROWS) * a.b * a.heads;
	if (att_shared(cudaFuncSetAttribute(attention_queries_kernel<E>,
					   cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
			"attention_backward of queries"))
		CUDA_LAUNCH((attention_queries_kernel<E>), dim3((unsigned)blocks, E::WIDTH / E::SUMS),
			E::THREADS, bytes, a);
}

/* By the width of heads. The widest ones' gradients of keys and values are too many for registers:
 * each of two blocks has half of the columns. */
template <typename T> struct att_backward {
	struct keys {
		typedef att_mma<T, 8, 1, 64, 64> small;
		typedef att_mma<T, 8, 1, 32, 128> middle;
		typedef att_mma<T, 4, 1, 32, PLAN_HEAD_SIZE_MAX, PLAN_HEAD_SIZE_MAX / 2> large;
	};
	struct queries {
		typedef att_mma<T, 8, 1, 64, 64> small;
		typedef att_mma<T, 8, 1, 64, 128> middle;
		typedef att_mma<T, 4, 1, 32, PLAN_HEAD_SIZE_MAX> large;
	};
};
template <> struct att_backward<float> {
	struct keys {
		typedef att_fma<4, 64, 64> small;
		typedef att_fma<4, 32, 128> middle;
		typedef att_fma<2, 32, PLAN_HEAD_SIZE_MAX> large;
	};
	typedef keys queries;
};

template <typename T> static void attention_backward(const struct backend_attention *d)
{
	typedef typename att_backward<T>::keys keys;
	typedef typename att_backward<T>::queries queries;
	struct att_operands<T> a = att_operands_of<T>(d);
	attention_delta(a);
	if (d->head_size <= keys::small::WIDTH) {
		attention_keys<typename keys::small>(a);
		attention_queries<typename queries::small>(a);
	} else if (d->head_size <= keys::middle::WIDTH) {
		attention_keys<typename keys::middle>(a);
		attention_queries<typename queries::middle>(a);
	} else {
		attention_keys<typename keys::large>(a);
		attention_queries<typename queries::large>(a);
	}
}

CUDA_EXPORT(attention_backward, (const struct backend_attention *d), (d))

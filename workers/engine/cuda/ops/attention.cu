/* SPDX-License-Identifier: Apache-2.0
 * PLAN_OP_ATTENTION. A block of threads has ROWS queries of a head, which meet the keys they see in
 * tiles of COLUMNS with a running maximum and sum; there is no matrix of scores in memory. Tiles of
 * keys and values come while the ones before are used. */
#include "workers/engine/cuda/ops/attention_tile.h"

/* Threads' queries on their way through the keys. */
template <typename E> struct att_queries {
	float max[E::RR], sum[E::RR]; /* sum: of this thread's keys */
	float out[E::RR][E::RO];
	int low[E::RR]; /* first visible key */
};

/* Scores become probabilities relative to the running maximum; what was gathered before is scaled
 * to it. */
template <typename E>
static __device__ __forceinline__ void att_softmax(
	struct att_queries<E> &q, float scale, float (&s)[E::RR][E::RC])
{
#pragma unroll
	for (int i = 0; i < E::RR; i++) {
		float top = s[i][0];
#pragma unroll
		for (int j = 1; j < E::RC; j++)
			top = fmaxf(top, s[i][j]);
#pragma unroll
		for (int step = E::LANES / 2; step > 0; step /= 2)
			top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, step));
		float now = fmaxf(q.max[i], top * scale), factor = exp2f(q.max[i] - now), sum = 0;
		q.max[i] = now;
#pragma unroll
		for (int j = 0; j < E::RC; j++) {
			s[i][j] = exp2f(fmaf(s[i][j], scale, -now));
			sum += s[i][j];
		}
		q.sum[i] = fmaf(q.sum[i], factor, sum);
#pragma unroll
		for (int j = 0; j < E::RO; j++)
			q.out[i][j] *= factor;
	}
}

template <typename E>
static __device__ __forceinline__ void att_finish(
	struct att_queries<E> &q, float *lse, int count, float (&factor)[E::RR])
{
#pragma unroll
	for (int i = 0; i < E::RR; i++) {
#pragma unroll
		for (int step = E::LANES / 2; step > 0; step /= 2)
			q.sum[i] += __shfl_xor_sync(0xffffffffu, q.sum[i], step);
		factor[i] = 1.0f / q.sum[i];
		if (threadIdx.x % E::LANES == 0 && E::row(i) < count)
			lse[E::row(i)] = fmaf(q.max[i], att_ln2, logf(q.sum[i]));
	}
}

template <typename E> static constexpr int att_forward_bytes(void)
{
	return (E::ROWS + 2 * E::STAGES * E::COLUMNS) * E::STRIDE * (int)sizeof(typename E::T) +
		E::SCRATCH_BYTES;
}

template <typename E>
static __global__ void __launch_bounds__(E::THREADS)
	attention_kernel(struct att_operands<typename E::T> a)
{
	typedef typename E::T T;
	CUDA_SHARED_DYNAMIC(T, tile_q);
	CUDA_SHARED(int, room, 2 * E::WARPS);
	constexpr int tile = E::COLUMNS * E::STRIDE;
	T *tiles = tile_q + E::ROWS * E::STRIDE;
	void *scratch = tiles + 2 * E::STAGES * tile;
	struct att_place<E, T> at(a);
	struct att_queries<E> q;
	struct mma_copies copies;
	int low = 0, high = 0, end = at.i0 + at.count;
	if (at.starts)
		att_starts<E>(at.starts, at.count, room, &low, &high);
#pragma unroll
	for (int i = 0; i < E::RR; i++) {
		q.max[i] = -1e30f;
		q.sum[i] = 0;
		q.low[i] = at.starts && E::row(i) < at.count ? at.starts[E::row(i)] : 0;
#pragma unroll
		for (int j = 0; j < E::RO; j++)
			q.out[i][j] = 0;
	}
	int warp_end = at.i0 + ((int)threadIdx.x / CUDA_WARP + 1) * E::WARP_ROWS;
	int j0 = low / E::COLUMNS * E::COLUMNS, stage = 0;
	att_load<E, E::ROWS>(&copies, tile_q, a.qkv + at.q, a.row, at.count, a.head_size, a.packs);
	att_load_keys<E>(a, &copies, at.k, at.v, j0, tiles);
#pragma unroll 1
	for (; j0 < end; j0 += E::COLUMNS) {
		T *k = tiles + 2 * stage * tile, *v = k + tile;
		copies.template wait<0>();
		__syncthreads();
		if (E::STAGES == 2) {
			stage ^= 1;
			if (j0 + E::COLUMNS < end)
				att_load_keys<E>(a, &copies, at.k, at.v, j0 + E::COLUMNS, tiles + 2 * stage * tile);
		}
		if (j0 < warp_end) { /* otherwise none of the warp's queries sees a key */
			float s[E::RR][E::RC];
			E::multiply(tile_q, k, s);
			if (j0 + E::COLUMNS > at.i0 || high > j0)
				att_hide<E>(q.low, at.i0, j0, s);
			att_softmax<E>(q, a.scale * att_log2e, s);
			E::add(s, v, q.out, scratch);
		}
		if (E::STAGES == 1 && j0 + E::COLUMNS < end) {
			__syncthreads();
			att_load_keys<E>(a, &copies, at.k, at.v, j0 + E::COLUMNS, tiles);
		}
	}
	float factor[E::RR];
	att_finish<E>(q, a.lse + at.lse, at.count, factor);
	att_store<E>(q.out, factor, tile_q, a.y + at.y, a.out, at.count, a.head_size, 0, a.packs);
}

template <typename E> static void attention_launch(const struct att_operands<typename E::T> &a)
{
	constexpr int bytes = att_forward_bytes<E>();
	int64_t blocks = (int64_t)((a.t + E::ROWS - 1) / E::ROWS) * a.b * a.heads;
	if (att_shared(cudaFuncSetAttribute(
					   attention_kernel<E>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
			"attention"))
		CUDA_LAUNCH((attention_kernel<E>), (unsigned)blocks, E::THREADS, bytes, a);
}

/* By the width of heads. */
template <typename T> struct att_forward {
	typedef att_mma<T, 4, 2, 64, 64> small;
	typedef att_mma<T, 8, 1, 64, 128> middle;
	typedef att_mma<T, 4, 1, 32, PLAN_HEAD_SIZE_MAX> large;
};
template <> struct att_forward<float> {
	typedef att_fma<4, 64, 64> small;
	typedef att_fma<4, 64, 128> middle;
	typedef att_fma<4, 32, PLAN_HEAD_SIZE_MAX> large;
};

template <typename T> static void attention(const struct backend_attention *d)
{
	struct att_operands<T> a = att_operands_of<T>(d);
	if (d->head_size <= att_forward<T>::small::WIDTH)
		attention_launch<typename att_forward<T>::small>(a);
	else if (d->head_size <= att_forward<T>::middle::WIDTH)
		attention_launch<typename att_forward<T>::middle>(a);
	else
		attention_launch<typename att_forward<T>::large>(a);
}

CUDA_EXPORT(attention, (const struct backend_attention *d), (d))

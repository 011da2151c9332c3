/* SPDX-License-Identifier: Apache-2.0
 * PLAN_OP_DROPOUT and its backward pass: the mask is a function of (key, index in the whole), and
 * the CPU backend's bit by bit (cpu/ops/dropout.c). A thread takes packs of a flat range. */
#include "workers/engine/cuda/ops/map.h"

template <typename T> struct dropout_call {
	int64_t count, packed;
	struct plan_cut cut;
	uint64_t key;
	uint32_t limit; /* dropped where the random bits are below */
	float keep;
	const T *x;
	T *y;
};

/* Where a walk over local elements is in the whole (struct plan_cut), and the key mixed with the
 * upper half of that index. */
struct dropout_walk {
	int64_t index, left; /* elements of the run from here on */
	int64_t upper;
	uint64_t key;
};

static __device__ __forceinline__ uint64_t dropout_key(uint64_t key, int64_t upper)
{
	uint64_t k = (key ^ (uint64_t)upper) * UINT64_C(0xbf58476d1ce4e5b9);
	return (k ^ (k >> 31)) * UINT64_C(0x94d049bb133111eb);
}

template <typename T>
static __device__ __forceinline__ struct dropout_walk dropout_begin(
	const struct dropout_call<T> &c, int64_t i)
{
	struct map_place at = { 0, i };
	if (i >= c.cut.run)
		at = map_place_of(i, c.cut.run);
	int64_t index = at.row * c.cut.period + c.cut.first + at.column;
	return { index, c.cut.run - at.column, index >> 32, dropout_key(c.key, index >> 32) };
}

static __device__ __forceinline__ uint32_t dropout_bits(uint32_t index, uint64_t key)
{
	uint32_t h = index * 0x9e3779b1u + (uint32_t)key;
	h = (h ^ (h >> 16)) * 0x21f0aaadu;
	h = (h ^ (h >> 15)) + (uint32_t)(key >> 32);
	h = (h ^ (h >> 15)) * 0xd35a2d97u;
	return h ^ (h >> 16);
}

/* The value of the walk's element, and one element on. */
template <typename T>
static __device__ __forceinline__ float dropout_next(
	const struct dropout_call<T> &c, struct dropout_walk *walk, float x)
{
	float y = dropout_bits((uint32_t)walk->index, walk->key) < c.limit ? 0.0f : x * c.keep;
	walk->index++;
	if (--walk->left == 0) {
		walk->index += c.cut.period - c.cut.run;
		walk->left = c.cut.run;
	}
	if (walk->index >> 32 != walk->upper) {
		walk->upper = walk->index >> 32;
		walk->key = dropout_key(c.key, walk->upper);
	}
	return y;
}

template <typename T> static __global__ void dropout_kernel(struct dropout_call<T> c)
{
	constexpr int N = cuda_pack<T>::count;
	for (int64_t i = grid_begin() * N; i < c.packed; i += grid_stride() * N) {
		struct dropout_walk walk = dropout_begin(c, i);
		float x[N];
		values_load<N>(c.x + i, x);
#pragma unroll
		for (int k = 0; k < N; k++)
			x[k] = dropout_next(c, &walk, x[k]);
		values_store<N>(c.y + i, x);
	}
	for (int64_t i = c.packed + grid_begin(); i < c.count; i += grid_stride()) {
		struct dropout_walk walk = dropout_begin(c, i);
		c.y[i] = act_round<T>(dropout_next(c, &walk, act_float(c.x[i])));
	}
}

template <typename T> static void dropout(const struct backend_dropout *d)
{
	constexpr int N = cuda_pack<T>::count;
	if (d->count <= 0 || (d->p == 0 && d->x == d->y))
		return;
	int64_t packed = pack_fits(d->x) && pack_fits(d->y) ? d->count / N * N : 0;
	dropout_call<T> c = { d->count, packed, d->cut, d->key, (uint32_t)((double)d->p * 4294967296.0),
		1.0f / (1.0f - d->p), static_cast<const T *>(d->x), static_cast<T *>(d->y) };
	CUDA_LAUNCH((dropout_kernel<T>), grid_of(packed / N + (d->count - packed), CUDA_THREADS),
		CUDA_THREADS, 0, c);
}

CUDA_EXPORT(dropout, (const struct backend_dropout *d), (d))

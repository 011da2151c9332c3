/* SPDX-License-Identifier: Apache-2.0
 * PLAN_OP_DROPOUT and its backward pass: the mask is a function of (key, index in the whole), and
 * the CPU backend's bit by bit (cpu/ops/dropout.c). A thread takes packs of a flat range. */
#include "workers/engine/cuda/ops/random.h"

template <typename T> struct dropout_call {
	int64_t count, packed;
	struct random_source random;
	uint32_t limit; /* dropped where the random bits are below */
	float keep;
	const T *x;
	T *y;
};

/* The value of the walk's element, and one element on. */
template <typename T>
static __device__ __forceinline__ float dropout_next(
	const struct dropout_call<T> &c, struct random_walk *walk, float x)
{
	return random_next(c.random, walk) < c.limit ? 0.0f : x * c.keep;
}

template <typename T> static __global__ void dropout_kernel(struct dropout_call<T> c)
{
	constexpr int N = cuda_pack<T>::count;
	for (int64_t i = grid_begin() * N; i < c.packed; i += grid_stride() * N) {
		struct random_walk walk = random_begin(c.random, i);
		float x[N];
		values_load<N>(c.x + i, x);
#pragma unroll
		for (int k = 0; k < N; k++)
			x[k] = dropout_next(c, &walk, x[k]);
		values_store<N>(c.y + i, x);
	}
	for (int64_t i = c.packed + grid_begin(); i < c.count; i += grid_stride()) {
		struct random_walk walk = random_begin(c.random, i);
		c.y[i] = act_round<T>(dropout_next(c, &walk, act_float(c.x[i])));
	}
}

template <typename T> static void dropout(const struct backend_dropout *d)
{
	constexpr int N = cuda_pack<T>::count;
	if (d->count <= 0 || (d->p == 0 && d->x == d->y))
		return;
	int64_t packed = pack_fits(d->x) && pack_fits(d->y) ? d->count / N * N : 0;
	dropout_call<T> c = { d->count, packed, { d->cut, d->key },
		(uint32_t)((double)d->p * 4294967296.0), 1.0f / (1.0f - d->p), static_cast<const T *>(d->x),
		static_cast<T *>(d->y) };
	CUDA_LAUNCH((dropout_kernel<T>), grid_of(packed / N + (d->count - packed), CUDA_THREADS),
		CUDA_THREADS, 0, c);
}

CUDA_EXPORT(dropout, (const struct backend_dropout *d), (d))

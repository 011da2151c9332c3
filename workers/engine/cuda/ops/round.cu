/* SPDX-License-Identifier: Apache-2.0
 * PLAN_OP_ROUND: masters into bf16 weights, up or down by chance (backend.h), with the CPU
 * backend's bits (cpu/ops/round.c). A thread takes packs of a flat range. */
#include "workers/engine/cuda/ops/random.h"

template <typename T> struct round_call {
	int64_t count, packed, begin;
	struct random_source random;
	const float *x;
	T *y;
};

/* A value of T, in fp32. Of 2^16 equally likely numbers, as many as x is steps of 2^-16 beyond the
 * neighbour nearer to 0 carry over into the bits that stay. */
template <typename T> static __device__ __forceinline__ float round_by(float x, uint32_t random)
{
	return x;
}
template <> __device__ __forceinline__ float round_by<__nv_bfloat16>(float x, uint32_t random)
{
	uint32_t u = __float_as_uint(x);
	bool nan = (u & 0x7fffffffu) > 0x7f800000u;
	return nan ? x : __uint_as_float((u + (random >> 16)) & 0xffff0000u);
}

template <typename T> static __global__ void round_kernel(struct round_call<T> c)
{
	constexpr int N = cuda_pack<T>::count;
	for (int64_t i = grid_begin() * N; i < c.packed; i += grid_stride() * N) {
		struct random_walk walk = random_begin(c.random, c.begin + i);
		float x[N];
		values_load<N>(c.x + i, x);
#pragma unroll
		for (int k = 0; k < N; k++)
			x[k] = round_by<T>(x[k], random_next(c.random, &walk));
		values_store<N>(c.y + i, x);
	}
	for (int64_t i = c.packed + grid_begin(); i < c.count; i += grid_stride()) {
		struct random_walk walk = random_begin(c.random, c.begin + i);
		c.y[i] = act_round<T>(round_by<T>(c.x[i], random_next(c.random, &walk)));
	}
}

template <typename T> static void round_random(const struct backend_round *d)
{
	constexpr int N = cuda_pack<T>::count;
	if (d->count <= 0)
		return;
	int64_t packed = pack_fits(d->x) && pack_fits(d->y) ? d->count / N * N : 0;
	round_call<T> c = { d->count, packed, d->begin, { d->cut, d->key }, d->x,
		static_cast<T *>(d->y) };
	CUDA_LAUNCH((round_kernel<T>), grid_of(packed / N + (d->count - packed), CUDA_THREADS),
		CUDA_THREADS, 0, c);
}

CUDA_EXPORT(round_random, (const struct backend_round *d), (d))

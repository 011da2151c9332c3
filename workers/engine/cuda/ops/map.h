/* SPDX-License-Identifier: Apache-2.0
 * Elements in packs: loads and stores of N values as fp32 (N 1 is the path for odd strides), and
 * operations that are a function of each element alone. A thread takes N neighbours of its arrays
 * in a turn; what follows the last whole pack goes one by one. Private to cuda/ops. */
#pragma once

#include "workers/engine/cuda/kernel.h"

/* Values of a pack of 16 bytes. */
template <typename T> static constexpr int map_count = 16 / (int)sizeof(T);

/* N 1, or p is a multiple of 16 bytes (of the N values' bytes when these are fewer). */
template <int N, typename T> static __device__ __forceinline__ void map_load(const T *p, float *v)
{
	constexpr int bytes = N * (int)sizeof(T);
	T x[N];
	if constexpr (N == 1) {
		x[0] = *p;
	} else if constexpr (bytes == 8) {
		int2 bits = *reinterpret_cast<const int2 *>(p);
		memcpy(x, &bits, sizeof(bits));
	} else {
		static_assert(bytes % 16 == 0, "whole packs");
#pragma unroll
		for (int i = 0; i < bytes / 16; i++) {
			int4 bits = reinterpret_cast<const int4 *>(p)[i];
			memcpy(static_cast<void *>(x + i * map_count<T>), &bits, sizeof(bits));
		}
	}
#pragma unroll
	for (int i = 0; i < N; i++)
		v[i] = act_float(x[i]);
}

template <int N, typename T> static __device__ __forceinline__ void map_store(T *p, const float *v)
{
	constexpr int bytes = N * (int)sizeof(T);
	T x[N];
#pragma unroll
	for (int i = 0; i < N; i++)
		x[i] = act_round<T>(v[i]);
	if constexpr (N == 1) {
		*p = x[0];
	} else if constexpr (bytes == 8) {
		int2 bits;
		memcpy(&bits, x, sizeof(bits));
		*reinterpret_cast<int2 *>(p) = bits;
	} else {
		static_assert(bytes % 16 == 0, "whole packs");
#pragma unroll
		for (int i = 0; i < bytes / 16; i++) {
			int4 bits;
			memcpy(&bits, x + i * map_count<T>, sizeof(bits));
			reinterpret_cast<int4 *>(p)[i] = bits;
		}
	}
}

/* Row and column of element i of rows of that width. A division of 64 bits costs as much as a row
 * of arithmetic, so it is for those who need it. */
struct map_place {
	int64_t row, column;
};

static __device__ __forceinline__ struct map_place map_place_of(int64_t i, int64_t width)
{
	if ((i | width) >> 32 == 0) {
		uint32_t row = (uint32_t)i / (uint32_t)width;
		return { row, (uint32_t)i - row * (uint32_t)width };
	}
	return { i / width, i % width };
}

/* to[i] = f(a[i], b[i]) in fp32. F::operands says how many of a and b there are; either may be to.
 * packed: how many elements go in packs. */
template <typename To, typename From, typename F> struct map_call {
	int64_t count, packed;
	F f;
	const From *a, *b;
	To *to;
};

template <typename To, typename From>
static constexpr int map_step = map_count<To> > map_count<From> ? map_count<To> : map_count<From>;

template <typename To, typename From, typename F>
static __global__ void map_kernel(struct map_call<To, From, F> m)
{
	constexpr int N = map_step<To, From>;
	for (int64_t i = grid_begin() * N; i < m.packed; i += grid_stride() * N) {
		float a[N] = {}, b[N] = {}, y[N];
		if constexpr (F::operands > 0)
			map_load<N>(m.a + i, a);
		if constexpr (F::operands > 1)
			map_load<N>(m.b + i, b);
#pragma unroll
		for (int k = 0; k < N; k++)
			y[k] = m.f(a[k], b[k]);
		map_store<N>(m.to + i, y);
	}
	for (int64_t i = m.packed + grid_begin(); i < m.count; i += grid_stride()) {
		float a = 0, b = 0;
		if constexpr (F::operands > 0)
			a = act_float(m.a[i]);
		if constexpr (F::operands > 1)
			b = act_float(m.b[i]);
		m.to[i] = act_round<To>(m.f(a, b));
	}
}

template <typename To, typename From, typename F>
static void map(int64_t count, F f, const void *a, const void *b, void *to)
{
	constexpr int N = map_step<To, From>;
	int64_t packed = pack_fits(a) && pack_fits(b) && pack_fits(to) ? count / N * N : 0;
	struct map_call<To, From, F> m = {
		count, packed, f, static_cast<const From *>(a), static_cast<const From *>(b),
			static_cast<To *>(to)
	};
	if (count > 0)
		CUDA_LAUNCH((map_kernel<To, From, F>), grid_of(packed / N + (count - packed), CUDA_THREADS),
			CUDA_THREADS, 0, m);
}

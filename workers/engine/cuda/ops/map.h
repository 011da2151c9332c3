/* SPDX-License-Identifier: Apache-2.0
 * Operations that are a function of each element alone, and the places of elements in rows. A
 * thread takes N neighbours of its arrays in a turn (values.h); what follows the last whole pack
 * goes one by one. Private to cuda/ops. */
#pragma once

#include "workers/engine/cuda/ops/values.h"

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

/* Where N neighbours of one column of z [rows, features, d] begin: at.column counts such N. */
template <int N>
static __device__ __forceinline__ int64_t map_feature(
	struct map_place at, int64_t features, int64_t column, int64_t d)
{
	return (at.row * features + column) * d + at.column * N;
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
static constexpr int map_step =
	cuda_pack<To>::count > cuda_pack<From>::count ? cuda_pack<To>::count : cuda_pack<From>::count;

template <typename To, typename From, typename F>
static __global__ void map_kernel(struct map_call<To, From, F> m)
{
	constexpr int N = map_step<To, From>;
	for (int64_t i = grid_begin() * N; i < m.packed; i += grid_stride() * N) {
		float a[N] = {}, b[N] = {}, y[N];
		if constexpr (F::operands > 0)
			values_load<N>(m.a + i, a);
		if constexpr (F::operands > 1)
			values_load<N>(m.b + i, b);
#pragma unroll
		for (int k = 0; k < N; k++)
			y[k] = m.f(a[k], b[k]);
		values_store<N>(m.to + i, y);
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

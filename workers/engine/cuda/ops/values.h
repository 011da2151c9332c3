/* SPDX-License-Identifier: Apache-2.0
 * N values beside each other as floats: N is a pack of the activation type where width and pointers
 * allow, and 1 otherwise, so that a kernel over rows is written once for both. Used by kernels of
 * cuda/ops. */
#pragma once

#include "workers/engine/cuda/kernel.h"

/* One move of Bytes (16, or 8 where N values are no more). Both pointers are multiples of it. */
template <int Bytes> static __device__ __forceinline__ void values_move(void *to, const void *from)
{
	static_assert(Bytes == 16 || Bytes == 8, "a pack or half of one");
	if constexpr (Bytes == 16)
		*static_cast<int4 *>(to) = *static_cast<const int4 *>(from);
	else
		*static_cast<int2 *>(to) = *static_cast<const int2 *>(from);
}

/* How many values go in one move: a pack, or N where these are fewer. */
template <int N, typename W>
static constexpr int values_each = N < cuda_pack<W>::count ? N : cuda_pack<W>::count;

/* W may be fp32 where N is a pack of a narrower type, and narrower where N is a pack of fp32. */
template <int N, typename W>
static __device__ __forceinline__ void values_load(const W *p, float (&v)[N])
{
	if constexpr (N == 1) {
		v[0] = act_float(p[0]);
	} else {
		constexpr int each = values_each<N, W>;
		static_assert(N % each == 0, "whole packs");
#pragma unroll
		for (int k = 0; k < N; k += each) {
			alignas(16) W x[each];
			values_move<each *(int)sizeof(W)>(x, p + k);
#pragma unroll
			for (int j = 0; j < each; j++)
				v[k + j] = act_float(x[j]);
		}
	}
}

/* Rounds to nearest even. */
template <int N, typename T>
static __device__ __forceinline__ void values_store(T *p, const float (&v)[N])
{
	if constexpr (N == 1) {
		p[0] = act_round<T>(v[0]);
	} else {
		constexpr int each = values_each<N, T>;
		static_assert(N % each == 0, "whole packs");
#pragma unroll
		for (int k = 0; k < N; k += each) {
			alignas(16) T x[each];
#pragma unroll
			for (int j = 0; j < each; j++)
				x[j] = act_round<T>(v[k + j]);
			values_move<each *(int)sizeof(T)>(p + k, x);
		}
	}
}

/* N values as they lie in memory, in half the registers that they take as floats. */
template <int N, typename T> struct values_held {
	cuda_pack<T> pack;

	__device__ __forceinline__ void load(const T *p)
	{
		static_assert(N == 1 || N == cuda_pack<T>::count, "a pack or a value");
		if constexpr (N == 1)
			pack.v[0] = p[0];
		else
			pack = pack_load(p);
	}
	__device__ __forceinline__ void get(float (&v)[N]) const
	{
#pragma unroll
		for (int j = 0; j < N; j++)
			v[j] = act_float(pack.v[j]);
	}
};

/* Whether rows of `width` elements of T may be moved in packs; NULL always may. */
template <typename T> static inline bool values_fit(int64_t width)
{
	return width % cuda_pack<T>::count == 0;
}
template <typename T, typename... P>
static inline bool values_fit(int64_t width, const void *p, P... more)
{
	return pack_fits(p) && values_fit<T>(width, more...);
}

/* SPDX-License-Identifier: Apache-2.0
 * PLAN_OP_SWIGLU, PLAN_OP_SWIGLU_BACKWARD: y = silu(gate) * up, where a row of gate_up [rows, 2
 * inner] holds the gates, then the ups. A thread takes N neighbours of a row of y in a turn: a pack
 * where inner is a multiple of it, else one. */
#include "workers/engine/cuda/ops/act_math.h"
#include "workers/engine/cuda/ops/map.h"

template <typename T> struct swiglu_call {
	int64_t packs, width, inner; /* packs of all rows, of a row */
	const T *gate_up, *dy;
	T *y, *d_gate_up;
};

template <typename T, int N> static __global__ void swiglu_kernel(struct swiglu_call<T> c)
{
	for (int64_t i = grid_begin(); i < c.packs; i += grid_stride()) {
		int64_t gate = (map_place_of(i, c.width).row * c.inner) + i * N;
		float g[N], u[N];
		values_load<N>(c.gate_up + gate, g);
		values_load<N>(c.gate_up + gate + c.inner, u);
#pragma unroll
		for (int k = 0; k < N; k++)
			u[k] *= act_quotient<T>(g[k], 1.0f + act_exp<T>(-g[k]));
		values_store<N>(c.y + i * N, u);
	}
}

template <typename T, int N> static __global__ void swiglu_backward_kernel(struct swiglu_call<T> c)
{
	for (int64_t i = grid_begin(); i < c.packs; i += grid_stride()) {
		int64_t gate = (map_place_of(i, c.width).row * c.inner) + i * N;
		float g[N], u[N], d[N];
		values_load<N>(c.gate_up + gate, g);
		values_load<N>(c.gate_up + gate + c.inner, u);
		values_load<N>(c.dy + i * N, d);
#pragma unroll
		for (int k = 0; k < N; k++) {
			float e = act_exp<T>(-g[k]), s = act_quotient<T>(1.0f, 1.0f + e), silu = g[k] * s;
			/* e s = 1 - s, exact also where s is about 1; where e is infinite s is 0. */
			float rest = s > 0.0f ? e * s : 1.0f;
			g[k] = d[k] * u[k] * (s + silu * rest);
			u[k] = d[k] * silu;
		}
		values_store<N>(c.d_gate_up + gate, g);
		values_store<N>(c.d_gate_up + gate + c.inner, u);
	}
}

template <typename T> static void swiglu(int64_t rows, int64_t inner, const void *gate_up, void *y)
{
	constexpr int N = cuda_pack<T>::count;
	bool packs = inner % N == 0 && pack_fits(gate_up) && pack_fits(y);
	int64_t width = packs ? inner / N : inner;
	swiglu_call<T> c = { rows * width, width, inner, static_cast<const T *>(gate_up), NULL,
		static_cast<T *>(y), NULL };
	if (packs)
		CUDA_LAUNCH((swiglu_kernel<T, N>), grid_of(c.packs, CUDA_THREADS), CUDA_THREADS, 0, c);
	else
		CUDA_LAUNCH((swiglu_kernel<T, 1>), grid_of(c.packs, CUDA_THREADS), CUDA_THREADS, 0, c);
}

template <typename T>
static void swiglu_backward(
	int64_t rows, int64_t inner, const void *gate_up, const void *dy, void *d_gate_up)
{
	constexpr int N = cuda_pack<T>::count;
	bool packs = inner % N == 0 && pack_fits(gate_up) && pack_fits(dy) && pack_fits(d_gate_up);
	int64_t width = packs ? inner / N : inner;
	swiglu_call<T> c = { rows * width, width, inner, static_cast<const T *>(gate_up),
		static_cast<const T *>(dy), NULL, static_cast<T *>(d_gate_up) };
	if (packs)
		CUDA_LAUNCH(
			(swiglu_backward_kernel<T, N>), grid_of(c.packs, CUDA_THREADS), CUDA_THREADS, 0, c);
	else
		CUDA_LAUNCH(
			(swiglu_backward_kernel<T, 1>), grid_of(c.packs, CUDA_THREADS), CUDA_THREADS, 0, c);
}

CUDA_EXPORT(
	swiglu, (int64_t rows, int64_t inner, const void *gate_up, void *y), (rows, inner, gate_up, y))
CUDA_EXPORT(swiglu_backward,
	(int64_t rows, int64_t inner, const void *gate_up, const void *dy, void *d_gate_up),
	(rows, inner, gate_up, dy, d_gate_up))

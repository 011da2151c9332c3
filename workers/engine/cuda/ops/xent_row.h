/* SPDX-License-Identifier: Apache-2.0
 * Softmax with cross-entropy of rows of logits, a block for each row: one pass finds the largest
 * logit, the sum of exponentials and the sum, a second one replaces the logits by their gradient.
 * Rows may begin anywhere: what lies before the first multiple of 16 bytes and behind the last is
 * taken one by one. Used by softmax_xent.cu, xent_shared.cu and classifier.cu. */
#pragma once

#include "workers/engine/cuda/ops/values.h"

enum {
	XENT_THREADS = 512,
	XENT_NARROW_THREADS = 128,
	XENT_NARROW = 2048, /* classes */
};

/* Where a row's packs lie: [head, tail). */
template <typename T> struct xent_span {
	int n, head, tail;

	__device__ __forceinline__ xent_span(const T *x, int width)
	{
		constexpr int N = cuda_pack<T>::count;
		int past = (int)(reinterpret_cast<uintptr_t>(x) / sizeof(T) % N);
		n = width;
		head = (N - past) % N < n ? (N - past) % N : n;
		tail = head + (n - head) / N * N;
	}
	/* The element that this thread takes beside packs, -1: none. Head and tail have less than a
	 * pack each. */
	__device__ __forceinline__ int single(void) const
	{
		int i = (int)threadIdx.x;
		if (i < head)
			return i;
		return i - head + tail < n ? i - head + tail : -1;
	}
};

/* What one thread, and then the whole block, says of a row. first: where the largest logit is for
 * the first time, INT32_MAX: nowhere (nothing but NaN). total: sum of e^(x - largest). A NaN is
 * passed over by the largest and stays in the total. */
struct xent_sums {
	float largest, total, plain;
	int first;
};

static __device__ __forceinline__ float xent_origin(float largest)
{
	return largest == -INFINITY ? 0.0f : largest;
}

/* N values from index i on join, which is behind all before. */
template <int N>
static __device__ __forceinline__ void xent_join(struct xent_sums *s, const float (&v)[N], int i)
{
	float largest = v[0];
#pragma unroll
	for (int j = 1; j < N; j++)
		largest = fmaxf(largest, v[j]);
	if (largest > s->largest || s->first == INT32_MAX) {
#pragma unroll
		for (int j = N - 1; j >= 0; j--)
			if (v[j] == largest)
				s->first = i + j;
		if (largest > s->largest) { /* nothing was before, or nothing but -infinity and NaN */
			if (s->largest > -INFINITY)
				s->total *= expf(s->largest - largest);
			s->largest = largest;
		}
	}
	float origin = xent_origin(s->largest);
#pragma unroll
	for (int j = 0; j < N; j++) {
		s->total += expf(v[j] - origin);
		s->plain += v[j];
	}
}

/* Every thread of the block gets the row's. The order of additions is fixed. */
template <int THREADS>
static __device__ __forceinline__ void xent_reduce(struct xent_sums *s, float *room)
{
	float largest = block_max<THREADS>(s->largest, room);
	/* Of those that have it the first: a warp's least, then the block's. */
	int first = s->largest == largest ? s->first : INT32_MAX;
	first = __reduce_min_sync(0xffffffffu, first);
	if (threadIdx.x % CUDA_WARP == 0)
		room[threadIdx.x / CUDA_WARP] = __int_as_float(first);
	__syncthreads();
	first = INT32_MAX;
	for (int i = 0; i < THREADS / CUDA_WARP; i++)
		first = min(first, __float_as_int(room[i]));
	__syncthreads();
	if (s->largest > -INFINITY)
		s->total *= expf(s->largest - largest);
	s->total = block_sum<THREADS>(s->total, room);
	s->plain = block_sum<THREADS>(s->plain, room);
	s->largest = largest;
	s->first = first;
}

/* room: THREADS / CUDA_WARP floats. */
template <typename T, int THREADS>
static __device__ __forceinline__ struct xent_sums xent_scan(const T *x, int n, float *room)
{
	constexpr int N = cuda_pack<T>::count;
	static_assert(2 * N <= THREADS, "a thread for each element beside packs");
	xent_span<T> span(x, n);
	struct xent_sums s = { -INFINITY, 0, 0, INT32_MAX };
	int single = span.single();
	float one[1], v[N];
	if (single >= 0 && single < span.head) {
		values_load(x + single, one);
		xent_join(&s, one, single);
	}
#pragma unroll 2
	for (int i = span.head + (int)threadIdx.x * N; i < span.tail; i += THREADS * N) {
		values_load(x + i, v);
		xent_join(&s, v, i);
	}
	if (single >= span.head) {
		values_load(x + single, one);
		xent_join(&s, one, single);
	}
	xent_reduce<THREADS>(&s, room);
	return s;
}

/* Element i becomes e^(x - largest) share - even, less `own` where it is the label. */
struct xent_slope {
	float largest, share, even, own;
	int label; /* -1: not in this row */
};

template <typename T, int N>
static __device__ __forceinline__ void xent_slope_at(const struct xent_slope &s, T *x, int i)
{
	float v[N];
	values_load(x + i, v);
#pragma unroll
	for (int j = 0; j < N; j++)
		v[j] = expf(v[j] - s.largest) * s.share - s.even - (i + j == s.label ? s.own : 0.0f);
	values_store(x + i, v);
}

template <typename T, int THREADS>
static __device__ __forceinline__ void xent_gradient(const struct xent_slope &s, T *x, int n)
{
	constexpr int N = cuda_pack<T>::count;
	xent_span<T> span(x, n);
	if (span.single() >= 0)
		xent_slope_at<T, 1>(s, x, span.single());
#pragma unroll 2
	for (int i = span.head + (int)threadIdx.x * N; i < span.tail; i += THREADS * N)
		xent_slope_at<T, N>(s, x, i);
}

template <typename T, int THREADS> static __device__ __forceinline__ void xent_clear(T *x, int n)
{
	constexpr int N = cuda_pack<T>::count;
	xent_span<T> span(x, n);
	const float none[N] = { 0 }, nothing[1] = { 0 };
	if (span.single() >= 0)
		values_store(x + span.single(), nothing);
	for (int i = span.head + (int)threadIdx.x * N; i < span.tail; i += THREADS * N)
		values_store(x + i, none);
}

/* ---------------------------------------------------------------------------- rows of all classes
 */

template <typename T, int THREADS>
static __global__ void __launch_bounds__(THREADS) xent_row_kernel(struct backend_softmax_xent d)
{
	CUDA_SHARED(float, room, THREADS / CUDA_WARP);
	const int64_t r = blockIdx.x;
	const int n = (int)d.classes, label = d.labels[r];
	T *x = static_cast<T *>(d.logits) + r * n;
	if (label < 0) {
		if (threadIdx.x == 0)
			d.row_loss[r] = d.row_hit[r] = 0;
		if (d.scale > 0)
			xent_clear<T, THREADS>(x, n);
		return;
	}
	float e = d.smoothing, own = act_float(x[label]); /* read before x changes */
	struct xent_sums s = xent_scan<T, THREADS>(x, n, room);
	if (threadIdx.x == 0) {
		d.row_hit[r] = s.first == label ? 1.0f : 0.0f;
		d.row_loss[r] = s.largest + logf(s.total) - (1.0f - e) * own - e * s.plain / (float)n;
	}
	if (!(d.scale > 0))
		return;
	struct xent_slope slope = { s.largest, d.scale / s.total, e / (float)n * d.scale,
		(1.0f - e) * d.scale, label };
	xent_gradient<T, THREADS>(slope, x, n);
}

template <typename T> static void xent_rows(const struct backend_softmax_xent *d)
{
	if (d->classes > INT32_MAX - 2 * XENT_THREADS * cuda_pack<T>::count)
		cuda_failed(cudaErrorInvalidValue, "softmax_xent: classes");
	else if (d->classes <= XENT_NARROW)
		CUDA_LAUNCH((xent_row_kernel<T, XENT_NARROW_THREADS>), (unsigned)d->rows,
			XENT_NARROW_THREADS, 0, *d);
	else
		CUDA_LAUNCH((xent_row_kernel<T, XENT_THREADS>), (unsigned)d->rows, XENT_THREADS, 0, *d);
}

/* SPDX-License-Identifier: Apache-2.0
 * PLAN_OP_XENT_STATISTICS and PLAN_OP_XENT_SHARED: the loss where ranks have some of the classes
 * each. A block for each row of own logits; what all ranks say of the row every thread puts
 * together for itself. */
#include "workers/engine/cuda/ops/xent_row.h"

enum xent_statistic { XENT_LARGEST, XENT_TOTAL, XENT_PLAIN, XENT_LABEL, XENT_HIT };
static_assert(XENT_HIT + 1 == PLAN_STATISTICS, "a row's numbers are those of plan_op.h");

/* The label among the own classes, -1: it is another rank's. */
static __device__ __forceinline__ int xent_own_label(
	const struct backend_xent_shared &d, int32_t label)
{
	int64_t own = label - d.first;
	return own >= 0 && own < d.own ? (int)own : -1;
}

template <typename T, int THREADS>
static __global__ void __launch_bounds__(THREADS)
	xent_statistics_kernel(struct backend_xent_shared d)
{
	CUDA_SHARED(float, room, THREADS / CUDA_WARP);
	const int64_t r = blockIdx.x;
	const T *x = static_cast<const T *>(d.logits) + r * d.own;
	float *out = d.own_statistics + r * PLAN_STATISTICS;
	int label = xent_own_label(d, d.labels[r]);
	if (d.labels[r] < 0) {
		if (threadIdx.x < PLAN_STATISTICS)
			out[threadIdx.x] = 0;
		return;
	}
	struct xent_sums s = xent_scan<T, THREADS>(x, (int)d.own, room);
	if (threadIdx.x > 0)
		return;
	out[XENT_LARGEST] = s.largest;
	out[XENT_TOTAL] = s.total;
	out[XENT_PLAIN] = s.plain;
	out[XENT_LABEL] = label >= 0 ? act_float(x[label]) : 0.0f;
	out[XENT_HIT] = label >= 0 && s.first == label ? 1.0f : 0.0f;
}

/* What all ranks together say of a row, in the order of ranks. */
struct xent_all {
	float largest, total, plain, label, hit;
};

static __device__ __forceinline__ struct xent_all xent_merge(
	const struct backend_xent_shared &d, int64_t r)
{
	const float *first = d.statistics + r * PLAN_STATISTICS;
	const int64_t step = d.rows * PLAN_STATISTICS;
	struct xent_all all = { -INFINITY, 0, 0, 0, 0 };
	for (int64_t k = 0; k < d.ranks; k++) {
		const float *s = first + k * step;
		if (s[XENT_LARGEST] > all.largest) {
			all.largest = s[XENT_LARGEST];
			all.hit = s[XENT_HIT];
		}
		all.plain += s[XENT_PLAIN];
		all.label += s[XENT_LABEL];
	}
	for (int64_t k = 0; k < d.ranks; k++) {
		const float *s = first + k * step;
		all.total += s[XENT_LARGEST] > -INFINITY
			? s[XENT_TOTAL] * expf(s[XENT_LARGEST] - all.largest)
			: s[XENT_TOTAL];
	}
	return all;
}

template <typename T, int THREADS>
static __global__ void __launch_bounds__(THREADS) xent_shared_kernel(struct backend_xent_shared d)
{
	const int64_t r = blockIdx.x;
	const float e = d.smoothing;
	T *x = static_cast<T *>(d.logits) + r * d.own;
	if (d.labels[r] < 0) {
		if (threadIdx.x == 0)
			d.row_loss[r] = d.row_hit[r] = 0;
		if (d.scale > 0)
			xent_clear<T, THREADS>(x, (int)d.own);
		return;
	}
	struct xent_all all = xent_merge(d, r);
	if (threadIdx.x == 0) {
		d.row_hit[r] = all.hit;
		d.row_loss[r] = all.largest + logf(all.total) - (1.0f - e) * all.label -
			e * all.plain / (float)d.classes;
	}
	if (!(d.scale > 0))
		return;
	struct xent_slope slope = { all.largest, d.scale / all.total, e / (float)d.classes * d.scale,
		(1.0f - e) * d.scale, xent_own_label(d, d.labels[r]) };
	xent_gradient<T, THREADS>(slope, x, (int)d.own);
}

template <typename T> static bool xent_fits(const struct backend_xent_shared *d)
{
	bool fits = d->own <= INT32_MAX - 2 * XENT_THREADS * cuda_pack<T>::count;
	if (!fits)
		cuda_failed(cudaErrorInvalidValue, "xent_shared: classes");
	return fits;
}

template <typename T> static void xent_statistics(const struct backend_xent_shared *d)
{
	if (!xent_fits<T>(d))
		return;
	if (d->own <= XENT_NARROW)
		CUDA_LAUNCH((xent_statistics_kernel<T, XENT_NARROW_THREADS>), (unsigned)d->rows,
			XENT_NARROW_THREADS, 0, *d);
	else
		CUDA_LAUNCH(
			(xent_statistics_kernel<T, XENT_THREADS>), (unsigned)d->rows, XENT_THREADS, 0, *d);
}

template <typename T> static void xent_shared(const struct backend_xent_shared *d)
{
	if (!xent_fits<T>(d))
		return;
	if (d->own <= XENT_NARROW)
		CUDA_LAUNCH((xent_shared_kernel<T, XENT_NARROW_THREADS>), (unsigned)d->rows,
			XENT_NARROW_THREADS, 0, *d);
	else
		CUDA_LAUNCH((xent_shared_kernel<T, XENT_THREADS>), (unsigned)d->rows, XENT_THREADS, 0, *d);
}

CUDA_EXPORT(xent_statistics, (const struct backend_xent_shared *d), (d))
CUDA_EXPORT(xent_shared, (const struct backend_xent_shared *d), (d))

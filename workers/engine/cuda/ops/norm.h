/* SPDX-License-Identifier: Apache-2.0
 * Layer norm and RMS norm of rows [rows, c], as one body: RMS norm is the case without mean and
 * bias. A row has LANES threads: a warp, or where it is wide the block. They hold the row's HELD
 * packs each in registers from the one read on; rows of odd widths are read again instead (HELD 0).
 * Used by layernorm.cu and rmsnorm.cu. */
#pragma once

#include "workers/engine/cuda/ops/columns.h"

enum {
	NORM_WARP_HELD = 4,
	NORM_WARP_WIDE_HELD = 8,
	NORM_BLOCK_HELD = 4,
	NORM_NARROW = 1024, /* a warp for each row up to here where nothing is held */
	NORM_LANES = 8,     /* of sums over rows */
};

/* The part of a row that a thread has: N elements, LANES * N further the next. */
template <typename T, int LANES, int HELD> struct norm_row {
	static constexpr int N = HELD > 0 ? cuda_pack<T>::count : 1;
	const T *x;
	int64_t c;
	cuda_pack<T> held[HELD > 0 ? HELD : 1];

	__device__ __forceinline__ int64_t at(int k) const
	{
		return ((int64_t)k * LANES + threadIdx.x % LANES) * N;
	}
	__device__ __forceinline__ int steps(void) const
	{
		return HELD > 0 ? HELD : (int)((c + LANES - 1) / LANES);
	}
	__device__ __forceinline__ void begin(const T *row, int64_t width)
	{
		x = row;
		c = width;
#pragma unroll
		for (int k = 0; k < HELD; k++)
			if (at(k) < c)
				held[k] = pack_load(x + at(k));
	}
	/* k < steps(), at(k) < c */
	__device__ __forceinline__ void get(int k, float (&v)[N]) const
	{
		if constexpr (HELD > 0) {
#pragma unroll
			for (int j = 0; j < N; j++)
				v[j] = act_float(held[k].v[j]);
		} else {
			v[0] = act_float(x[at(k)]);
		}
	}
};

template <int LANES> static __device__ __forceinline__ float norm_sum(float x, float *room)
{
	if constexpr (LANES == CUDA_WARP)
		return warp_sum(x);
	else
		return block_sum<LANES>(x, room);
}

/* The variance is the mean square of the deviations from a first mean, and their sum corrects that
 * mean: a large mean spoils neither. */
template <typename T, bool RMS, int LANES, int HELD>
static __device__ __forceinline__ void norm_statistics(
	const norm_row<T, LANES, HELD> &row, float eps, float *room, float *ret_mean, float *ret_rstd)
{
	constexpr int N = norm_row<T, LANES, HELD>::N;
	float v[N], mean = 0, sum = 0, off = 0, square = 0, inv_c = 1.0f / (float)row.c;
	if (!RMS) {
#pragma unroll
		for (int k = 0; k < row.steps(); k++)
			if (row.at(k) < row.c) {
				row.get(k, v);
				for (int j = 0; j < N; j++)
					sum += v[j];
			}
		mean = norm_sum<LANES>(sum, room) * inv_c;
	}
#pragma unroll
	for (int k = 0; k < row.steps(); k++)
		if (row.at(k) < row.c) {
			row.get(k, v);
			for (int j = 0; j < N; j++) {
				float apart = v[j] - mean;
				off += apart;
				square += apart * apart;
			}
		}
	float shift = RMS ? 0.0f : norm_sum<LANES>(off, room) * inv_c;
	float variance = norm_sum<LANES>(square, room) * inv_c - shift * shift;
	*ret_mean = mean + shift;
	*ret_rstd = 1.0f / sqrtf(variance + eps);
}

template <typename T, bool RMS, int LANES, int HELD>
static __global__ void __launch_bounds__(CUDA_THREADS) norm_kernel(struct backend_norm d)
{
	constexpr int N = norm_row<T, LANES, HELD>::N;
	CUDA_SHARED(float, room, CUDA_THREADS / CUDA_WARP);
	int64_t r = (int64_t)blockIdx.x * (CUDA_THREADS / LANES) + threadIdx.x / LANES;
	if (r >= d.rows)
		return; /* the whole warp, or never */
	norm_row<T, LANES, HELD> row;
	row.begin(static_cast<const T *>(d.x) + r * d.c, d.c);
	T *y = static_cast<T *>(d.y) + r * d.c;
	float mean, rstd;
	norm_statistics<T, RMS, LANES, HELD>(row, d.eps, room, &mean, &rstd);
#pragma unroll
	for (int k = 0; k < row.steps(); k++)
		if (row.at(k) < d.c) {
			float v[N], gain[N], bias[N] = { 0 };
			row.get(k, v);
			values_load(d.gain + row.at(k), gain);
			if (!RMS)
				values_load(d.bias + row.at(k), bias);
			for (int j = 0; j < N; j++)
				v[j] = (v[j] - mean) * rstd * gain[j] + bias[j];
			values_store(y + row.at(k), v);
		}
	if (threadIdx.x % LANES == 0) {
		if (!RMS)
			d.mean[r] = mean;
		d.rstd[r] = rstd;
	}
}

/* dx = rstd (g - mean(g) - hat mean(g hat)), g = dy gain; without mean(g) for RMS norm. */
template <typename T, bool RMS, int LANES, int HELD>
static __global__ void __launch_bounds__(CUDA_THREADS) norm_backward_kernel(struct backend_norm d)
{
	constexpr int N = norm_row<T, LANES, HELD>::N;
	CUDA_SHARED(float, room, CUDA_THREADS / CUDA_WARP);
	int64_t r = (int64_t)blockIdx.x * (CUDA_THREADS / LANES) + threadIdx.x / LANES;
	if (r >= d.rows)
		return; /* the whole warp, or never */
	norm_row<T, LANES, HELD> x, dy;
	x.begin(static_cast<const T *>(d.x) + r * d.c, d.c);
	dy.begin(static_cast<const T *>(d.dy) + r * d.c, d.c);
	T *dx = static_cast<T *>(d.dx) + r * d.c;
	float mean = RMS ? 0.0f : d.mean[r], rstd = d.rstd[r], sum = 0, dot = 0;
	float v[N], g[N], gain[N];
#pragma unroll
	for (int k = 0; k < x.steps(); k++)
		if (x.at(k) < d.c) {
			x.get(k, v);
			dy.get(k, g);
			values_load(d.gain + x.at(k), gain);
			for (int j = 0; j < N; j++) {
				g[j] *= gain[j];
				sum += g[j];
				dot += g[j] * ((v[j] - mean) * rstd);
			}
		}
	float shift = RMS ? 0.0f : norm_sum<LANES>(sum, room) / (float)d.c;
	float slope = norm_sum<LANES>(dot, room) / (float)d.c;
#pragma unroll
	for (int k = 0; k < x.steps(); k++)
		if (x.at(k) < d.c) {
			float old[N] = { 0 };
			x.get(k, v);
			dy.get(k, g);
			values_load(d.gain + x.at(k), gain);
			if (d.accumulate)
				values_load(dx + x.at(k), old);
			for (int j = 0; j < N; j++)
				v[j] = rstd * (g[j] * gain[j] - (shift + (v[j] - mean) * rstd * slope)) + old[j];
			values_store(dx + x.at(k), v);
		}
}

/* Sums of dy hat and of dy over a block of rows: row blockIdx.x of the workspace. */
template <typename T, bool RMS, int N, int LANES>
static __global__ void __launch_bounds__(CUDA_THREADS) norm_share_kernel(struct backend_norm d)
{
	typedef columns<N, LANES, CUDA_THREADS> at;
	CUDA_SHARED(float, room, at::room);
	struct columns_part part = columns_part_of(d.rows, blockIdx.x);
	int64_t i = at::column();
	float to_gain[N] = { 0 }, to_bias[N] = { 0 };
	if (i < d.c)
#pragma unroll 4
		for (int64_t r = part.begin + at::strip(); r < part.end; r += at::strips) {
			float x[N], dy[N], mean = RMS ? 0.0f : d.mean[r], rstd = d.rstd[r];
			values_load(static_cast<const T *>(d.x) + r * d.c + i, x);
			values_load(static_cast<const T *>(d.dy) + r * d.c + i, dy);
			for (int j = 0; j < N; j++) {
				to_gain[j] += dy[j] * ((x[j] - mean) * rstd);
				to_bias[j] += dy[j];
			}
		}
	columns_sum<N, LANES, CUDA_THREADS>(to_gain, room);
	if (!RMS)
		columns_sum<N, LANES, CUDA_THREADS>(to_bias, room);
	if (at::strip() > 0 || i >= d.c)
		return;
	float *share = static_cast<float *>(d.ws.data) + blockIdx.x * (RMS ? 1 : 2) * d.c + i;
	for (int j = 0; j < N; j++) {
		share[j] = to_gain[j];
		if (!RMS)
			share[d.c + j] = to_bias[j];
	}
}

/* Adds the blocks' shares in their order. */
template <bool RMS> static __global__ void norm_add_kernel(struct backend_norm d, int blocks)
{
	const float *share = static_cast<const float *>(d.ws.data);
	int64_t width = (RMS ? 1 : 2) * d.c;
	for (int64_t i = grid_begin(); i < width; i += grid_stride()) {
		float *to = i < d.c ? d.dgain : d.dbias;
		int64_t column = i < d.c ? i : i - d.c;
		if (!to)
			continue;
		float sum = to[column];
#pragma unroll 8
		for (int b = 0; b < blocks; b++)
			sum += share[b * width + i];
		to[column] = sum;
	}
}

template <typename T, bool RMS> static void norm_parameters(const struct backend_norm *d)
{
	constexpr int N = cuda_pack<T>::count;
	int64_t per = (d->rows + PLAN_ROW_BLOCKS - 1) / PLAN_ROW_BLOCKS;
	unsigned blocks = (unsigned)((d->rows + per - 1) / per);
	if (values_fit<T>(d->c, d->x, d->dy))
		CUDA_LAUNCH((norm_share_kernel<T, RMS, N, NORM_LANES>),
			dim3(blocks, columns<N, NORM_LANES, CUDA_THREADS>::tiles(d->c)), CUDA_THREADS, 0, *d);
	else
		CUDA_LAUNCH((norm_share_kernel<T, RMS, 1, CUDA_WARP>),
			dim3(blocks, columns<1, CUDA_WARP, CUDA_THREADS>::tiles(d->c)), CUDA_THREADS, 0, *d);
	CUDA_LAUNCH((norm_add_kernel<RMS>), grid_of((RMS ? 1 : 2) * d->c, CUDA_THREADS), CUDA_THREADS,
		0, *d, (int)blocks);
}

template <typename T, bool RMS, bool BACKWARD, int LANES, int HELD>
static void norm_launch(const struct backend_norm *d)
{
	unsigned grid = (unsigned)((d->rows + CUDA_THREADS / LANES - 1) / (CUDA_THREADS / LANES));
	if constexpr (BACKWARD)
		CUDA_LAUNCH((norm_backward_kernel<T, RMS, LANES, HELD>), grid, CUDA_THREADS, 0, *d);
	else
		CUDA_LAUNCH((norm_kernel<T, RMS, LANES, HELD>), grid, CUDA_THREADS, 0, *d);
}

template <typename T, bool RMS, bool BACKWARD> static void norm_rows(const struct backend_norm *d)
{
	int64_t packs = d->c / cuda_pack<T>::count;
	bool fit = BACKWARD ? values_fit<T>(d->c, d->x, d->dy, d->dx, d->gain)
						: values_fit<T>(d->c, d->x, d->y, d->gain, d->bias);
	if (fit && packs <= NORM_WARP_HELD * CUDA_WARP)
		norm_launch<T, RMS, BACKWARD, CUDA_WARP, NORM_WARP_HELD>(d);
	else if (fit && packs <= NORM_WARP_WIDE_HELD * CUDA_WARP)
		norm_launch<T, RMS, BACKWARD, CUDA_WARP, NORM_WARP_WIDE_HELD>(d);
	else if (fit && packs <= NORM_BLOCK_HELD * CUDA_THREADS)
		norm_launch<T, RMS, BACKWARD, CUDA_THREADS, NORM_BLOCK_HELD>(d);
	else if (d->c <= NORM_NARROW)
		norm_launch<T, RMS, BACKWARD, CUDA_WARP, 0>(d);
	else
		norm_launch<T, RMS, BACKWARD, CUDA_THREADS, 0>(d);
}

template <typename T, bool RMS> static void norm_backward(const struct backend_norm *d)
{
	if (d->dgain || (d->dbias && !RMS))
		norm_parameters<T, RMS>(d); /* first: dx may be dy */
	norm_rows<T, RMS, true>(d);
}

/* SPDX-License-Identifier: Apache-2.0
 * Layer norm and RMS norm over the last dimension, as one inline body: RMS norm is the case without
 * mean and bias. Used by layernorm.c and rmsnorm.c. */
#pragma once

#include "workers/engine/cpu/ops/act.h"
#include "workers/engine/cpu/workspace.h"

/* Rows are taken four at a time, so that sums run side by side and the parameters' gradients are
 * loaded and stored once for four rows. The variance is the mean square of the deviations from a
 * first mean (the row is in the cache by then), and their sum corrects that mean: a large mean
 * spoils neither. */
enum { NORM_ROWS = 4 };

/* Mean and 1 / deviation of `rows` rows. */
CPU_INLINE void norm_statistics(const struct backend_norm *d, const int rows, const bool rms,
	const act_t *x, float *mean, float *rstd)
{
	int64_t c = d->c;
	float inv_c = 1.0f / (float)c;
	simd_f32 sum[NORM_ROWS] = { 0 }, off[NORM_ROWS] = { 0 }, square[NORM_ROWS] = { 0 };
	for (int64_t i = 0; i < c && !rms; i += SIMD_WIDTH)
#pragma GCC unroll 4
		for (int r = 0; r < rows; r++)
			sum[r] += act_load_upto(x + r * c + i, c - i);
#pragma GCC unroll 4
	for (int r = 0; r < rows; r++)
		mean[r] = rms ? 0.0f : simd_sum(sum[r]) * inv_c;
	int64_t i = 0;
	for (; i + SIMD_WIDTH <= c; i += SIMD_WIDTH)
#pragma GCC unroll 4
		for (int r = 0; r < rows; r++) {
			simd_f32 v = act_load(x + r * c + i) - mean[r];
			off[r] += v;
			square[r] += v * v;
		}
	for (int r = 0; r < rows && i < c; r++) {
		simd_f32 v = act_load_part(x + r * c + i, c - i) - mean[r];
		v = simd_select(simd_first(c - i), v, simd_set(0));
		off[r] += v;
		square[r] += v * v;
	}
#pragma GCC unroll 4
	for (int r = 0; r < rows; r++) {
		float shift = rms ? 0.0f : simd_sum(off[r]) * inv_c;
		float variance = simd_sum(square[r]) * inv_c - shift * shift;
		mean[r] += shift;
		rstd[r] = 1.0f / __builtin_sqrtf(variance + d->eps);
	}
}

/* Normalised values of one vector of a row; 0 beyond the row. */
CPU_INLINE simd_f32 norm_hat(const act_t *x, int64_t n, float mean, float rstd, const bool rms)
{
	simd_f32 v = act_load_upto(x, n);
	if (!rms)
		v -= mean;
	return v * rstd;
}

CPU_INLINE void norm_forward_rows(
	const struct backend_norm *d, int64_t first, const int rows, const bool rms)
{
	int64_t c = d->c;
	const act_t *x = (const act_t *)d->x + first * c;
	act_t *y = (act_t *)d->y + first * c;
	float mean[NORM_ROWS], rstd[NORM_ROWS];
	norm_statistics(d, rows, rms, x, mean, rstd);
	for (int64_t i = 0; i < c; i += SIMD_WIDTH) {
		simd_f32 gain = simd_load_upto(d->gain + i, c - i);
		simd_f32 bias = rms ? simd_set(0) : simd_load_upto(d->bias + i, c - i);
#pragma GCC unroll 4
		for (int r = 0; r < rows; r++) {
			simd_f32 v = norm_hat(x + r * c + i, c - i, mean[r], rstd[r], rms) * gain;
			if (!rms)
				v += bias;
			act_store_upto(y + r * c + i, v, c - i);
		}
	}
	for (int r = 0; r < rows; r++) {
		if (!rms)
			d->mean[first + r] = mean[r];
		d->rstd[first + r] = rstd[r];
	}
}

CPU_INLINE void norm_forward(const struct backend_norm *d, const bool rms)
{
#pragma omp parallel for schedule(static) if (d->rows * d->c > CPU_PARALLEL_MIN)
	for (int64_t r = 0; r < d->rows; r += NORM_ROWS) {
		if (r + NORM_ROWS <= d->rows) {
			norm_forward_rows(d, r, NORM_ROWS, rms);
			continue;
		}
		for (int64_t one = r; one < d->rows; one++)
			norm_forward_rows(d, one, 1, rms);
	}
}

/* dgain and dbias: sums of the rows so far, of this block alone; untouched unless `sums` (a frozen
 * norm has no gradients). */
CPU_INLINE void norm_backward_rows(const struct backend_norm *d, int64_t first, const int rows,
	const bool rms, const bool sums, float *dgain, float *dbias)
{
	int64_t c = d->c;
	const act_t *x = (const act_t *)d->x + first * c, *dy = (const act_t *)d->dy + first * c;
	act_t *dx = (act_t *)d->dx + first * c;
	float mean[NORM_ROWS] = { 0 }, rstd[NORM_ROWS], shift[NORM_ROWS], slope[NORM_ROWS];
	simd_f32 sum[NORM_ROWS] = { 0 }, dot[NORM_ROWS] = { 0 };
	for (int r = 0; r < rows; r++) {
		mean[r] = rms ? 0 : d->mean[first + r];
		rstd[r] = d->rstd[first + r];
	}
	for (int64_t i = 0; i < c; i += SIMD_WIDTH) {
		int64_t n = c - i;
		simd_f32 gain = simd_load_upto(d->gain + i, n);
		simd_f32 to_gain = sums ? simd_load_upto(dgain + i, n) : simd_set(0);
		simd_f32 to_bias = sums && !rms ? simd_load_upto(dbias + i, n) : simd_set(0);
#pragma GCC unroll 4
		for (int r = 0; r < rows; r++) {
			simd_f32 hat = norm_hat(x + r * c + i, n, mean[r], rstd[r], rms);
			simd_f32 grad = act_load_upto(dy + r * c + i, n), g = grad * gain;
			sum[r] += g;
			dot[r] += g * hat; /* g is 0 beyond the row */
			to_gain += grad * hat;
			to_bias += grad;
		}
		if (sums)
			simd_store_upto(dgain + i, to_gain, n);
		if (sums && !rms)
			simd_store_upto(dbias + i, to_bias, n);
	}
#pragma GCC unroll 4
	for (int r = 0; r < rows; r++) {
		shift[r] = rms ? 0.0f : simd_sum(sum[r]) / (float)c;
		slope[r] = simd_sum(dot[r]) / (float)c;
	}
	for (int64_t i = 0; i < c; i += SIMD_WIDTH) {
		int64_t n = c - i;
		simd_f32 gain = simd_load_upto(d->gain + i, n);
#pragma GCC unroll 4
		for (int r = 0; r < rows; r++) {
			simd_f32 hat = norm_hat(x + r * c + i, n, mean[r], rstd[r], rms);
			simd_f32 g = act_load_upto(dy + r * c + i, n) * gain;
			simd_f32 v = rstd[r] * (g - (shift[r] + hat * slope[r]));
			if (d->accumulate)
				v += act_load_upto(dx + r * c + i, n);
			act_store_upto(dx + r * c + i, v, n);
		}
	}
}

/* Block b of the rows: its share of the parameters' gradients in the workspace. */
CPU_INLINE void norm_backward_block(
	const struct backend_norm *d, int64_t b, int64_t per, const bool rms, const bool sums)
{
	float *dgain = NULL, *dbias = NULL;
	if (sums) {
		dgain = (float *)d->ws.data + (rms ? 1 : 2) * b * d->c;
		dbias = dgain + d->c;
		memset(dgain, 0, (rms ? 1 : 2) * (size_t)d->c * sizeof(float));
	}
	int64_t end = (b + 1) * per < d->rows ? (b + 1) * per : d->rows, r = b * per;
	for (; r + NORM_ROWS <= end; r += NORM_ROWS)
		norm_backward_rows(d, r, NORM_ROWS, rms, sums, dgain, dbias);
	for (; r < end; r++)
		norm_backward_rows(d, r, 1, rms, sums, dgain, dbias);
}

/* Adds the blocks' shares in their order. */
CPU_INLINE void norm_add_blocks(
	int64_t blocks, int64_t stride, const float *share, int64_t n, float *to)
{
	simd_f32 sum = simd_load_upto(to, n);
	for (int64_t b = 0; b < blocks; b++)
		sum += simd_load_upto(share + b * stride, n);
	simd_store_upto(to, sum, n);
}

CPU_INLINE void norm_backward(const struct backend_norm *d, const bool rms)
{
	int64_t c = d->c, stride = (rms ? 1 : 2) * c;
	int64_t per = (d->rows + PLAN_ROW_BLOCKS - 1) / PLAN_ROW_BLOCKS;
	int64_t blocks = (d->rows + per - 1) / per;
	const float *shares = d->ws.data;
	bool sums = d->dgain || d->dbias;
#pragma omp parallel if (d->rows * c > CPU_PARALLEL_MIN)
	{
#pragma omp for schedule(static)
		for (int64_t b = 0; b < blocks; b++)
			if (sums)
				norm_backward_block(d, b, per, rms, true);
			else
				norm_backward_block(d, b, per, rms, false);
#pragma omp for schedule(static) nowait
		for (int64_t i = 0; i < c; i += SIMD_WIDTH) {
			if (d->dgain)
				norm_add_blocks(blocks, stride, shares + i, c - i, d->dgain + i);
			if (d->dbias && !rms)
				norm_add_blocks(blocks, stride, shares + c + i, c - i, d->dbias + i);
		}
	}
}

/* SPDX-License-Identifier: Apache-2.0
 * Batch normalization over the rows of [rows, C], with the residual sum and ReLU that follow it.
 * Statistics: the rows are cut into PLAN_ROW_BLOCKS fixed blocks, each block into chunks whose mean
 * and squared deviations are exact to rounding; chunks and blocks are merged in order (Chan), so
 * neither a large mean nor the number of threads changes what comes out. */
#include "workers/engine/cpu/ops/lanes.h"

#include <math.h>

enum { BATCHNORM_CHUNK = 16 }; /* rows whose values are held in registers */

struct batchnorm_block {
	int64_t begin, end;
};

static struct batchnorm_block block_at(int64_t rows, int64_t i)
{
	int64_t per = (rows + PLAN_ROW_BLOCKS - 1) / PLAN_ROW_BLOCKS;
	int64_t begin = i * per < rows ? i * per : rows;
	return (struct batchnorm_block){ begin, begin + per < rows ? begin + per : rows };
}

/* `seen` rows are in mean and m2; these join them. */
CPU_INLINE void chunk_join(const act_t *x, int64_t stride, const int chunk, int64_t lanes,
	float seen, float *mean, float *m2)
{
	simd_f32 v[BATCHNORM_CHUNK], sum = { 0 }, square = { 0 };
#pragma GCC unroll 16
	for (int r = 0; r < chunk; r++) {
		v[r] = act_load_upto(x + r * stride, lanes);
		sum += v[r];
	}
	simd_f32 own = sum * (1.0f / (float)chunk);
#pragma GCC unroll 16
	for (int r = 0; r < chunk; r++) {
		simd_f32 apart = v[r] - own;
		square += apart * apart;
	}
	float all = seen + (float)chunk;
	simd_f32 old = simd_load_upto(mean, lanes), apart = own - old;
	simd_store_upto(mean, old + apart * ((float)chunk / all), lanes);
	square += apart * apart * (seen * ((float)chunk / all));
	simd_store_upto(m2, simd_load_upto(m2, lanes) + square, lanes);
}

static void block_statistics(
	const act_t *x, struct batchnorm_block b, int64_t c, float *mean, float *m2)
{
	for (int64_t i = 0; i < c; i++)
		mean[i] = m2[i] = 0;
	int64_t r = b.begin;
	for (; r + BATCHNORM_CHUNK <= b.end; r += BATCHNORM_CHUNK)
		for (int64_t i = 0; i < c; i += SIMD_WIDTH)
			chunk_join(
				x + r * c + i, c, BATCHNORM_CHUNK, c - i, (float)(r - b.begin), mean + i, m2 + i);
	for (; r < b.end; r++)
		for (int64_t i = 0; i < c; i += SIMD_WIDTH)
			chunk_join(x + r * c + i, c, 1, c - i, (float)(r - b.begin), mean + i, m2 + i);
}

/* Blocks into the channel's mean and sum of squared deviations. */
static void merge(const struct backend_batchnorm *d, int64_t channel, double *ret_mean, double *m2)
{
	const float *part = d->ws.data;
	double seen = 0, mean = 0, total = 0;
	for (int64_t i = 0; i < PLAN_ROW_BLOCKS; i++) {
		struct batchnorm_block b = block_at(d->rows, i);
		double count = (double)(b.end - b.begin);
		if (count <= 0)
			break;
		const float *at = part + 2 * i * d->c + channel;
		double apart = (double)at[0] - mean, all = seen + count;
		mean += apart * (count / all);
		total += (double)at[d->c] + apart * apart * seen * (count / all);
		seen = all;
	}
	*ret_mean = mean;
	*m2 = total;
}

static void train_statistics(const struct backend_batchnorm *d)
{
	float *part = d->ws.data;
	int64_t c = d->c;
#pragma omp parallel for schedule(static) if (d->rows * c > CPU_PARALLEL_MIN)
	for (int64_t i = 0; i < PLAN_ROW_BLOCKS; i++)
		block_statistics(d->x, block_at(d->rows, i), c, part + 2 * i * c, part + (2 * i + 1) * c);
	double rows = (double)d->rows;
	for (int64_t i = 0; i < c; i++) {
		double mean, m2;
		merge(d, i, &mean, &m2);
		d->mean[i] = (float)mean;
		d->rstd[i] = (float)(1 / sqrt(m2 / rows + (double)d->eps));
		if (!d->update_running)
			continue;
		double unbiased = m2 / (d->rows > 1 ? rows - 1 : 1);
		d->running_mean[i] = (float)(d->keep * (double)d->running_mean[i] + d->add * mean);
		d->running_var[i] = (float)(d->keep * (double)d->running_var[i] + d->add * unbiased);
	}
}

CPU_INLINE void row_apply(
	const struct backend_batchnorm *d, int64_t r, const bool has_residual, const bool relu)
{
	const act_t *x = (const act_t *)d->x + r * d->c;
	const act_t *residual = (const act_t *)d->residual + (has_residual ? r * d->c : 0);
	act_t *y = (act_t *)d->y + r * d->c;
	for (int64_t i = 0; i < d->c; i += SIMD_WIDTH) {
		int64_t n = d->c - i;
		simd_f32 scale = simd_load_upto(d->gain + i, n) * simd_load_upto(d->rstd + i, n);
		simd_f32 v = (act_load_upto(x + i, n) - simd_load_upto(d->mean + i, n)) * scale +
			simd_load_upto(d->bias + i, n);
		if (has_residual)
			v += act_load_upto(residual + i, n);
		act_store_upto(y + i, relu ? lanes_relu(v) : v, n);
	}
}

void CPU_FN(batchnorm_forward)(const struct backend_batchnorm *d)
{
	if (d->train) {
		train_statistics(d);
	} else {
		for (int64_t i = 0; i < d->c; i++) {
			d->mean[i] = d->running_mean[i];
			d->rstd[i] = (float)(1 / sqrt((double)d->running_var[i] + (double)d->eps));
		}
	}
	bool relu = d->act == PLAN_ACT_RELU;
#pragma omp parallel for schedule(static) if (d->rows * d->c > CPU_PARALLEL_MIN)
	for (int64_t r = 0; r < d->rows; r++) {
		if (d->residual && relu)
			row_apply(d, r, true, true);
		else if (d->residual)
			row_apply(d, r, true, false);
		else
			row_apply(d, r, false, relu);
	}
}

/* The gradient behind the ReLU, handed to the residual on the way. */
CPU_INLINE simd_f32 gated(const struct backend_batchnorm *d, int64_t at, int64_t n, const bool relu)
{
	simd_f32 g = act_load_upto((const act_t *)d->dy + at, n);
	return relu ? lanes_keep(act_load_upto((const act_t *)d->y + at, n) > (simd_f32){ 0 }, g) : g;
}

CPU_INLINE void row_sums(
	const struct backend_batchnorm *d, int64_t r, const bool relu, float *sum, float *dot)
{
	for (int64_t i = 0; i < d->c; i += SIMD_WIDTH) {
		int64_t n = d->c - i, at = r * d->c + i;
		simd_f32 g = gated(d, at, n, relu);
		simd_f32 hat =
			(act_load_upto((const act_t *)d->x + at, n) - simd_load_upto(d->mean + i, n)) *
			simd_load_upto(d->rstd + i, n);
		simd_store_upto(sum + i, simd_load_upto(sum + i, n) + g, n);
		simd_store_upto(dot + i, simd_load_upto(dot + i, n) + g * hat, n);
	}
}

static void block_sums(const struct backend_batchnorm *d, struct batchnorm_block b, float *sum)
{
	float *dot = sum + d->c;
	for (int64_t i = 0; i < 2 * d->c; i++)
		sum[i] = 0;
	bool relu = d->act == PLAN_ACT_RELU;
	for (int64_t r = b.begin; r < b.end; r++) {
		if (relu)
			row_sums(d, r, true, sum, dot);
		else
			row_sums(d, r, false, sum, dot);
	}
}

/* dx, and dresidual; `mean_g` and `mean_dot` are the sums over the rows divided by their number. */
CPU_INLINE void row_backward(const struct backend_batchnorm *d, int64_t r, const bool relu,
	const float *mean_g, const float *mean_dot)
{
	act_t *dx = d->dx, *dresidual = d->dresidual;
	for (int64_t i = 0; i < d->c; i += SIMD_WIDTH) {
		int64_t n = d->c - i, at = r * d->c + i;
		simd_f32 g = gated(d, at, n, relu), rstd = simd_load_upto(d->rstd + i, n);
		simd_f32 hat =
			(act_load_upto((const act_t *)d->x + at, n) - simd_load_upto(d->mean + i, n)) * rstd;
		simd_f32 v = g - simd_load_upto(mean_g + i, n) - hat * simd_load_upto(mean_dot + i, n);
		if (dresidual && d->accumulate)
			act_store_upto(dresidual + at, g + act_load_upto(dresidual + at, n), n);
		else if (dresidual)
			act_store_upto(dresidual + at, g, n);
		act_store_upto(dx + at, v * (rstd * simd_load_upto(d->gain + i, n)), n);
	}
}

void CPU_FN(batchnorm_backward)(const struct backend_batchnorm *d)
{
	float *part = d->ws.data;
	int64_t c = d->c;
#pragma omp parallel for schedule(static) if (d->rows * c > CPU_PARALLEL_MIN)
	for (int64_t i = 0; i < PLAN_ROW_BLOCKS; i++)
		block_sums(d, block_at(d->rows, i), part + 2 * i * c);
	for (int64_t i = 0; i < 2 * c; i++) {
		double total = 0;
		for (int64_t b = 0; b < PLAN_ROW_BLOCKS; b++)
			total += (double)part[2 * b * c + i];
		part[i] = (float)(total / (double)d->rows);
		float *out = i < c ? d->dbias : d->dgain;
		out[i < c ? i : i - c] += (float)total;
	}
	bool relu = d->act == PLAN_ACT_RELU;
#pragma omp parallel for schedule(static) if (d->rows * c > CPU_PARALLEL_MIN)
	for (int64_t r = 0; r < d->rows; r++) {
		if (relu)
			row_backward(d, r, true, part, part + c);
		else
			row_backward(d, r, false, part, part + c);
	}
}

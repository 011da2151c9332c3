/* SPDX-License-Identifier: Apache-2.0
 * Layer normalisation over the last dimension, epsilon 1e-5. */
#include "workers/engine/cpu/isa.h"

#include <math.h>
#include <string.h>

static const float epsilon = 1e-5f;

void CPU_FN(layernorm_forward)(const struct backend_layernorm *d)
{
	int64_t c = d->c;
	float inv_c = 1.0f / (float)c;
	const float *restrict gain = d->gain, *restrict bias = d->bias;
#pragma omp parallel for schedule(static) if (d->rows * c > CPU_PARALLEL_MIN)
	for (int64_t r = 0; r < d->rows; r++) {
		const float *restrict x = d->x + r * c;
		float *restrict y = d->y + r * c;
		float sum = 0, square = 0;
#pragma omp simd reduction(+ : sum)
		for (int64_t i = 0; i < c; i++)
			sum += x[i];
		float mean = sum * inv_c;
#pragma omp simd reduction(+ : square)
		for (int64_t i = 0; i < c; i++)
			square += (x[i] - mean) * (x[i] - mean);
		float rstd = 1.0f / sqrtf(square * inv_c + epsilon);
#pragma omp simd
		for (int64_t i = 0; i < c; i++)
			y[i] = (x[i] - mean) * rstd * gain[i] + bias[i];
		d->mean[r] = mean;
		d->rstd[r] = rstd;
	}
}

static void backward_row(
	const struct backend_layernorm *d, int64_t r, float *restrict dgain, float *restrict dbias)
{
	int64_t c = d->c;
	const float *restrict x = d->x + r * c, *restrict dy = d->dy + r * c;
	const float *restrict gain = d->gain;
	float *restrict dx = d->dx + r * c;
	float mean = d->mean[r], rstd = d->rstd[r];
	float sum = 0, dot = 0;
#pragma omp simd reduction(+ : sum, dot)
	for (int64_t i = 0; i < c; i++) {
		float hat = (x[i] - mean) * rstd;
		float g = dy[i] * gain[i];
		sum += g;
		dot += g * hat;
		dgain[i] += dy[i] * hat;
		dbias[i] += dy[i];
	}
	float keep = d->accumulate ? 1.0f : 0.0f;
	float inv_c = 1.0f / (float)c;
	if (!d->accumulate)
		memset(dx, 0, (size_t)c * sizeof(float));
#pragma omp simd
	for (int64_t i = 0; i < c; i++) {
		float hat = (x[i] - mean) * rstd;
		float g = dy[i] * gain[i];
		dx[i] = dx[i] * keep + rstd * (g - (sum + hat * dot) * inv_c);
	}
}

void CPU_FN(layernorm_backward)(const struct backend_layernorm *d)
{
	int64_t c = d->c;
	int64_t per = (d->rows + PLAN_ROW_BLOCKS - 1) / PLAN_ROW_BLOCKS;
	int64_t blocks = (d->rows + per - 1) / per;
#pragma omp parallel for schedule(static) if (d->rows * c > CPU_PARALLEL_MIN)
	for (int64_t b = 0; b < blocks; b++) {
		float *dgain = d->workspace + 2 * b * c;
		memset(dgain, 0, 2 * (size_t)c * sizeof(float));
		int64_t end = (b + 1) * per < d->rows ? (b + 1) * per : d->rows;
		for (int64_t r = b * per; r < end; r++)
			backward_row(d, r, dgain, dgain + c);
	}
	for (int64_t b = 0; b < blocks; b++) {
		const float *dgain = d->workspace + 2 * b * c;
#pragma omp simd
		for (int64_t i = 0; i < c; i++) {
			d->dgain[i] += dgain[i];
			d->dbias[i] += dgain[c + i];
		}
	}
}

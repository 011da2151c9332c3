/* SPDX-License-Identifier: Apache-2.0
 * Softmax with cross-entropy; the gradient replaces the logits. */
#include "workers/engine/cpu/isa.h"
#include "workers/engine/cpu/ops/simd.h"

#include <math.h>
#include <string.h>

static bool label_is_first_max(const float *x, int64_t n, int32_t label, float max)
{
	if (!(x[label] >= max))
		return false;
	for (int64_t i = 0; i < label; i++)
		if (x[i] >= max)
			return false;
	return n > 0;
}

static void row_xent(const struct backend_softmax_xent *d, int64_t r)
{
	int64_t n = d->classes;
	float *x = d->logits + r * n;
	int32_t label = d->labels[r];
	if (label < 0) {
		d->row_loss[r] = d->row_hit[r] = 0;
		if (d->scale > 0)
			memset(x, 0, (size_t)n * sizeof(float));
		return;
	}
	float max = x[0], total = 0, all = 0;
#pragma omp simd reduction(max : max)
	for (int64_t i = 0; i < n; i++)
		max = x[i] > max ? x[i] : max;
#pragma omp simd reduction(+ : total, all)
	for (int64_t i = 0; i < n; i++) {
		total += simd_exp(x[i] - max);
		all += x[i];
	}
	float lse = max + logf(total), e = d->smoothing;
	d->row_hit[r] = label_is_first_max(x, n, label, max) ? 1.0f : 0.0f;
	d->row_loss[r] = lse - (1.0f - e) * x[label] - e * all / (float)n;
	if (!(d->scale > 0))
		return;
	float inv = 1.0f / total, scale = d->scale, even = e / (float)n;
#pragma omp simd
	for (int64_t i = 0; i < n; i++)
		x[i] = (simd_exp(x[i] - max) * inv - even) * scale;
	x[label] -= (1.0f - e) * scale;
}

void CPU_FN(softmax_xent)(const struct backend_softmax_xent *d)
{
#pragma omp parallel for schedule(static) if (d->rows * d->classes > CPU_PARALLEL_MIN)
	for (int64_t r = 0; r < d->rows; r++)
		row_xent(d, r);
}

/* SPDX-License-Identifier: Apache-2.0
 * Mean squared error; the gradient replaces the prediction. Called through the backend's table. */
#include "workers/engine/cpu/ops/act.h"

static float row_mse(const struct backend_regress *d, act_t *y, const float *target)
{
	int64_t n = d->outputs;
	float inv = 1.0f / (float)n, slope = 2.0f * inv * d->scale;
	if (target[0] != target[0]) { /* NaN: the row has no target */
		if (d->scale > 0)
			memset(y, 0, (size_t)n * sizeof(*y));
		return 0;
	}
	simd_f32 sum = { 0 };
	for (int64_t i = 0; i < n; i += SIMD_WIDTH) {
		simd_f32 diff = act_load_upto(y + i, n - i) - simd_load_upto(target + i, n - i);
		sum += diff * diff;
		if (d->scale > 0)
			act_store_upto(y + i, diff * slope, n - i);
	}
	return simd_sum(sum) * inv;
}

void CPU_FN(mse_loss)(const struct backend_regress *d)
{
	int64_t n = d->outputs;
#pragma omp parallel for schedule(static) if (d->rows * n > CPU_PARALLEL_MIN)
	for (int64_t r = 0; r < d->rows; r++)
		d->row_loss[r] = row_mse(d, (act_t *)d->y + r * n, d->targets + r * n);
}

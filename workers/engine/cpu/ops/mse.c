/* SPDX-License-Identifier: Apache-2.0
 * Mean squared error; the gradient replaces the prediction. */
#include "workers/engine/cpu/isa.h"

#include <math.h>
#include <string.h>

void CPU_FN(mse_loss)(const struct backend_mse *d)
{
	int64_t n = d->outputs;
	float inv = 1.0f / (float)n;
#pragma omp parallel for schedule(static) if (d->rows * n > CPU_PARALLEL_MIN)
	for (int64_t r = 0; r < d->rows; r++) {
		float *y = d->y + r * n;
		const float *t = d->targets + r * n;
		float sum = 0;
		bool ignored = isnan(t[0]);
		for (int64_t i = 0; i < n && !ignored; i++) {
			float diff = y[i] - t[i];
			sum += diff * diff;
			if (d->scale > 0)
				y[i] = 2.0f * diff * inv * d->scale;
		}
		if (ignored && d->scale > 0)
			memset(y, 0, (size_t)n * sizeof(float));
		d->row_loss[r] = sum * inv;
	}
}

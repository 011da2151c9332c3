/* SPDX-License-Identifier: Apache-2.0
 * Global average pooling, channels last. */
#include "workers/engine/cpu/ops/lanes.h"

void CPU_FN(avgpool_forward)(int64_t n, int64_t hw, int64_t c, const void *x, void *y)
{
	float part = 1.0f / (float)hw;
#pragma omp parallel for schedule(static) if (n * hw * c > CPU_PARALLEL_MIN)
	for (int64_t image = 0; image < n; image++) {
		const act_t *in = (const act_t *)x + image * hw * c;
		for (int64_t i = 0; i < c; i += SIMD_WIDTH) {
			simd_f32 sum = { 0 };
			for (int64_t p = 0; p < hw; p++)
				sum += act_load_upto(in + p * c + i, c - i);
			act_store_upto((act_t *)y + image * c + i, sum * part, c - i);
		}
	}
}

void CPU_FN(avgpool_backward)(int64_t n, int64_t hw, int64_t c, const void *dy, void *dx)
{
	float part = 1.0f / (float)hw;
#pragma omp parallel for schedule(static) if (n * hw * c > CPU_PARALLEL_MIN)
	for (int64_t image = 0; image < n; image++) {
		act_t *out = (act_t *)dx + image * hw * c;
		for (int64_t i = 0; i < c; i += SIMD_WIDTH) {
			simd_f32 g = act_load_upto((const act_t *)dy + image * c + i, c - i) * part;
			for (int64_t p = 0; p < hw; p++)
				act_store_upto(out + p * c + i, g, c - i);
		}
	}
}

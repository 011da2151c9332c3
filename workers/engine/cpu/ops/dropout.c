/* SPDX-License-Identifier: Apache-2.0
 * Dropout whose mask is a function of (key, index): the backward pass makes it again, and a resumed
 * run makes the same. */
#include "workers/engine/cpu/isa.h"

void CPU_FN(dropout_apply)(int64_t count, float p, uint64_t key, const float *x, float *y)
{
	uint32_t limit = (uint32_t)((double)p * 4294967296.0);
	float keep = 1.0f / (1.0f - p);
#pragma omp parallel for simd schedule(static) if (count > CPU_PARALLEL_MIN)
	for (int64_t i = 0; i < count; i++) {
		uint64_t z = key + (uint64_t)i * UINT64_C(0x9e3779b97f4a7c15);
		z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
		z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
		uint32_t u = (uint32_t)(z >> 32);
		y[i] = u < limit ? 0.0f : x[i] * keep;
	}
}

/* SPDX-License-Identifier: Apache-2.0
 * GELU in its tanh form: x * sigmoid(2 * sqrt(2/pi) * (x + 0.044715 x^3)). */
#include "workers/engine/cpu/isa.h"
#include "workers/engine/cpu/ops/simd.h"

static const float two_root = 1.5957691216f; /* 2 sqrt(2/pi) */
static const float cubic = 0.044715f;

void CPU_FN(gelu_forward)(int64_t count, const float *x, float *y)
{
#pragma omp parallel for simd schedule(static) if (count > CPU_PARALLEL_MIN)
	for (int64_t i = 0; i < count; i++) {
		float v = x[i];
		y[i] = v / (1.0f + simd_exp(-two_root * (v + cubic * v * v * v)));
	}
}

void CPU_FN(gelu_backward)(int64_t count, const float *x, const float *dy, float *dx)
{
#pragma omp parallel for simd schedule(static) if (count > CPU_PARALLEL_MIN)
	for (int64_t i = 0; i < count; i++) {
		float v = x[i];
		float s = 1.0f / (1.0f + simd_exp(-two_root * (v + cubic * v * v * v)));
		float slope = two_root * (1.0f + 3.0f * cubic * v * v);
		dx[i] = dy[i] * (s + v * s * (1.0f - s) * slope);
	}
}

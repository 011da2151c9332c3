/* SPDX-License-Identifier: Apache-2.0
 * Conversions between fp32 and the activation type. Called through the backend's table. */
#include "workers/engine/cpu/ops/act.h"

void CPU_FN(from_f32)(int64_t count, const float *x, void *y)
{
	act_t *to = y;
#pragma omp parallel for schedule(static) if (count > CPU_PARALLEL_MIN)
	for (int64_t begin = 0; begin < count; begin += ACT_BLOCK) {
		int64_t end = act_block_end(begin, count);
		for (int64_t i = begin; i < end; i += SIMD_WIDTH)
			act_store_upto(to + i, simd_load_upto(x + i, end - i), end - i);
	}
}

void CPU_FN(to_f32)(int64_t count, const void *x, float *y)
{
	const act_t *from = x;
#pragma omp parallel for schedule(static) if (count > CPU_PARALLEL_MIN)
	for (int64_t begin = 0; begin < count; begin += ACT_BLOCK) {
		int64_t end = act_block_end(begin, count);
		for (int64_t i = begin; i < end; i += SIMD_WIDTH)
			simd_store_upto(y + i, act_load_upto(from + i, end - i), end - i);
	}
}

/* SPDX-License-Identifier: Apache-2.0
 * The running average of the weights (ema_decay). Called through the backend's table. */
#include "workers/engine/cpu/isa.h"
#include "workers/engine/cpu/ops/simd.h"

CPU_INLINE simd_f32 moved(simd_f32 y, simd_f32 x, float step)
{
	return y + step * (x - y);
}

void CPU_PLAIN(average_update)(int64_t count, float decay, const float *x, float *y)
{
	float step = 1.0f - decay;
	int64_t whole = count / SIMD_WIDTH * SIMD_WIDTH, rest = count - whole;
#pragma omp parallel for schedule(static) if (count > CPU_PARALLEL_MIN)
	for (int64_t i = 0; i < whole; i += SIMD_WIDTH)
		simd_store(y + i, moved(simd_load(y + i), simd_load(x + i), step));
	simd_f32 last = moved(simd_load_part(y + whole, rest), simd_load_part(x + whole, rest), step);
	simd_store_part(y + whole, last, rest);
}

/* SPDX-License-Identifier: Apache-2.0
 * Sums of fp32 values, whatever the type of activations. Called through the backend's table. */
#include "workers/engine/cpu/isa.h"
#include "workers/engine/cpu/ops/simd.h"

void CPU_PLAIN(accumulate)(int64_t count, const float *x, float *y)
{
	int64_t whole = count / SIMD_WIDTH * SIMD_WIDTH, rest = count - whole;
#pragma omp parallel for schedule(static) if (count > CPU_PARALLEL_MIN)
	for (int64_t i = 0; i < whole; i += SIMD_WIDTH)
		simd_store(y + i, simd_load(y + i) + simd_load(x + i));
	simd_store_part(
		y + whole, simd_load_part(y + whole, rest) + simd_load_part(x + whole, rest), rest);
}

/* SPDX-License-Identifier: Apache-2.0
 * GELU over a flat range. Called through the backend's table. */
#include "workers/engine/cpu/ops/gelu.h"
#include "workers/engine/cpu/ops/act.h"

void CPU_FN(gelu_forward)(int64_t count, const void *x, void *y)
{
	const act_t *from = x;
	act_t *to = y;
#pragma omp parallel for schedule(static) if (count > CPU_PARALLEL_MIN)
	for (int64_t begin = 0; begin < count; begin += ACT_BLOCK) {
		int64_t end = act_block_end(begin, count);
		for (int64_t i = begin; i < end; i += SIMD_WIDTH)
			act_store_upto(to + i, gelu_value(act_load_upto(from + i, end - i)), end - i);
	}
}

/* SPDX-License-Identifier: Apache-2.0
 * Rotary positions: turns queries and keys in place by their position's angles; element i of a head
 * goes with element i + head_size / 2. Called through the backend's table. */
#include "workers/engine/cpu/ops/act.h"

/* One head of 2 * half values. */
CPU_INLINE void rotate(act_t *x, int64_t half, const float *cosines, const float *sines, float sign)
{
	for (int64_t i = 0; i < half; i += SIMD_WIDTH) {
		int64_t n = half - i;
		simd_f32 a = act_load_upto(x + i, n), b = act_load_upto(x + half + i, n);
		simd_f32 cosine = simd_load_upto(cosines + i, n);
		simd_f32 sine = simd_load_upto(sines + i, n) * sign;
		act_store_upto(x + i, a * cosine - b * sine, n);
		act_store_upto(x + half + i, b * cosine + a * sine, n);
	}
}

void CPU_FN(rope_apply)(const struct backend_rope *d)
{
	int64_t hs = d->head_size, turned = d->heads + d->kv_heads;
	int64_t row = (turned + d->kv_heads) * hs;
#pragma omp parallel for schedule(static) if (d->rows * row > CPU_PARALLEL_MIN)
	for (int64_t r = 0; r < d->rows; r++) {
		int64_t position = d->positions ? d->positions[r] : r % d->t;
		const float *cosines = d->table + position * hs;
		for (int64_t h = 0; h < turned; h++)
			rotate((act_t *)d->qkv + r * row + h * hs, hs / 2, cosines, cosines + hs / 2,
				d->inverse ? -1.0f : 1.0f);
	}
}

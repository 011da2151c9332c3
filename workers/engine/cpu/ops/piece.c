/* SPDX-License-Identifier: Apache-2.0
 * What a rank does with look-ups in tables that ranks share: ids become those of each rank's rows,
 * and what comes from the pieces of a table becomes its column of the features; and back. The sums
 * themselves are bag.c's. */
#include "workers/engine/cpu/ops/lanes.h"

#include <string.h>

void CPU_FN(piece_ids)(int64_t count, int64_t first, int64_t rows, const int32_t *ids, int32_t *y)
{
	for (int64_t i = 0; i < count; i++) {
		int64_t id = ids[i] - first;
		y[i] = id >= 0 && id < rows ? (int32_t)id : -1;
	}
}

void CPU_FN(piece_gather)(const struct backend_pieces *d)
{
	int64_t c = d->d;
#pragma omp parallel for schedule(static) if (d->samples * c > CPU_PARALLEL_MIN)
	for (int64_t s = 0; s < d->samples; s++) {
		act_t *z = (act_t *)d->z + (s * d->features + d->table + 1) * c;
		for (int64_t i = 0; i < c; i += SIMD_WIDTH) {
			simd_f32 sum = { 0 };
			for (int k = 0; k < d->count; k++)
				sum += act_load_upto((const act_t *)d->piece[k] + s * c + i, c - i);
			act_store_upto(z + i, sum, c - i);
		}
	}
}

void CPU_FN(piece_spread)(
	int64_t samples, int64_t d, int64_t table, int64_t features, const void *z, void *y)
{
#pragma omp parallel for schedule(static) if (samples * d > CPU_PARALLEL_MIN)
	for (int64_t s = 0; s < samples; s++)
		memcpy((act_t *)y + s * d, (const act_t *)z + (s * features + table + 1) * d,
			(size_t)d * sizeof(act_t));
}

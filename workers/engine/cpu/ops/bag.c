/* SPDX-License-Identifier: Apache-2.0
 * Bags of embeddings: sums of a few rows of a table far larger than any cache, so the rows of later
 * samples are asked for early. And the copies that keep a micro-batch's part of a table's gradient
 * until the step. */
#include "workers/engine/cpu/ops/lanes.h"

#include <string.h>

enum {
	BAG_AHEAD_ROWS = 32, /* look-ups between asking for a row and reading it */
	BAG_LINE_FLOATS = 16,
};

static void prefetch_row(const struct backend_bag *d, int64_t look_up)
{
	if (look_up >= d->samples * d->lookups || d->bags[look_up] < 0)
		return;
	const float *row = d->weight + d->bags[look_up] * d->d;
	for (int64_t i = 0; i < d->d; i += BAG_LINE_FLOATS)
		__builtin_prefetch(row + i);
}

void CPU_FN(bag_forward)(const struct backend_bag *d)
{
	int64_t c = d->d;
#pragma omp parallel for schedule(static) if (d->samples * d->lookups * c > CPU_PARALLEL_MIN)
	for (int64_t s = 0; s < d->samples; s++) {
		const int32_t *bag = d->bags + s * d->lookups;
		act_t *z = (act_t *)d->z + (s * d->features + d->table + 1) * c;
		for (int64_t k = 0; k < d->lookups; k++)
			prefetch_row(d, s * d->lookups + k + BAG_AHEAD_ROWS);
		for (int64_t i = 0; i < c; i += SIMD_WIDTH) {
			simd_f32 sum = { 0 };
			for (int64_t k = 0; k < d->lookups; k++)
				if (bag[k] >= 0)
					sum += simd_load_upto(d->weight + bag[k] * c + i, c - i);
			act_store_upto(z + i, sum, c - i);
		}
	}
}

void CPU_FN(sparse_store)(const struct backend_bag *d)
{
	int64_t c = d->d;
	memcpy(d->ids, d->bags, (size_t)(d->samples * d->lookups) * sizeof(int32_t));
#pragma omp parallel for schedule(static) if (d->samples * c > CPU_PARALLEL_MIN)
	for (int64_t s = 0; s < d->samples; s++) {
		const act_t *dz = (const act_t *)d->dz + (s * d->features + d->table + 1) * c;
		for (int64_t i = 0; i < c; i += SIMD_WIDTH)
			simd_store_upto(d->grads + s * c + i, act_load_upto(dz + i, c - i), c - i);
	}
}

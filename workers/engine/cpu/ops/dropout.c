/* SPDX-License-Identifier: Apache-2.0
 * Dropout whose mask is a function of (key, index): the backward pass makes it again, a resumed run
 * makes the same, and so does every instruction set. Called through the backend's table. */
#include "workers/engine/cpu/ops/act.h"
#include "workers/engine/cpu/ops/random.h"

/* count elements, the first of which has that index; all have the same upper half of it. */
static void drop_range(
	int64_t index, int64_t count, float p, uint64_t key, const act_t *x, act_t *y)
{
	uint32_t limit = (uint32_t)((double)p * 4294967296.0);
	float keep = 1.0f / (1.0f - p);
	uint64_t k = random_key(key, index);
	for (int64_t i = 0; i < count; i += SIMD_WIDTH) {
		simd_i32 dropped = (simd_i32)(random_bits(index + i, k) < limit);
		simd_f32 v = act_load_upto(x + i, count - i) * keep;
		act_store_upto(y + i, simd_select(dropped, simd_set(0), v), count - i);
	}
}

/* Elements [begin, end), piece by piece. */
static void drop_block(const struct backend_dropout *d, int64_t begin, int64_t end)
{
	const act_t *x = d->x;
	act_t *y = d->y;
	for (int64_t i = begin; i < end;) {
		int64_t index = plan_cut_at(&d->cut, i);
		int64_t count = random_piece(&d->cut, i, index, end - i);
		drop_range(index, count, d->p, d->key, x + i, y + i);
		i += count;
	}
}

void CPU_FN(dropout_apply)(const struct backend_dropout *d)
{
	if (d->p == 0 && d->x == d->y)
		return;
#pragma omp parallel for schedule(static) if (d->count > CPU_PARALLEL_MIN)
	for (int64_t begin = 0; begin < d->count; begin += ACT_BLOCK)
		drop_block(d, begin, act_block_end(begin, d->count));
}

/* SPDX-License-Identifier: Apache-2.0
 * Dropout whose mask is a function of (key, index): the backward pass makes it again, a resumed run
 * makes the same, and so does every instruction set. Called through the backend's table. */
#include "workers/engine/cpu/ops/act.h"

/* 32 random bits for each lane. Each half of the key enters before another round of mixing, so the
 * masks of two keys are not shifts of each other. */
CPU_INLINE simd_u32 random_bits(simd_u32 index, uint32_t key_low, uint32_t key_high)
{
	simd_u32 h = index * 0x9e3779b1u + key_low;
	h = (h ^ (h >> 16)) * 0x21f0aaadu;
	h = (h ^ (h >> 15)) + key_high;
	h = (h ^ (h >> 15)) * 0xd35a2d97u;
	return h ^ (h >> 16);
}

/* count elements, the first of which has that index; all have the same upper half of it. */
static void drop_range(
	int64_t index, int64_t count, float p, uint64_t key, const act_t *x, act_t *y)
{
	uint32_t limit = (uint32_t)((double)p * 4294967296.0);
	float keep = 1.0f / (1.0f - p);
	uint64_t k = (key ^ ((uint64_t)index >> 32)) * UINT64_C(0xbf58476d1ce4e5b9);
	k = (k ^ (k >> 31)) * UINT64_C(0x94d049bb133111eb);
	simd_u32 lane;
	for (int i = 0; i < SIMD_WIDTH; i++)
		lane[i] = (uint32_t)i;
	for (int64_t i = 0; i < count; i += SIMD_WIDTH) {
		simd_u32 bits = random_bits(lane + (uint32_t)(index + i), (uint32_t)k, (uint32_t)(k >> 32));
		simd_f32 v = act_load_upto(x + i, count - i) * keep;
		act_store_upto(y + i, simd_select((simd_i32)(bits < limit), simd_set(0), v), count - i);
	}
}

/* Elements [begin, end), piece by piece: a piece ends with its run, and where the upper half of the
 * index changes. */
static void drop_block(const struct backend_dropout *d, int64_t begin, int64_t end)
{
	const act_t *x = d->x;
	act_t *y = d->y;
	for (int64_t i = begin; i < end;) {
		int64_t index = plan_cut_at(&d->cut, i), count = plan_cut_run_end(&d->cut, i) - i;
		int64_t same = ((index >> 32) + 1) * (INT64_C(1) << 32) - index;
		count = count < same ? count : same;
		count = count < end - i ? count : end - i;
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

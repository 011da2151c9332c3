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

/* Elements [begin, end), all with the same upper half of the index. */
static void drop_range(int64_t begin, int64_t end, float p, uint64_t key, const act_t *x, act_t *y)
{
	uint32_t limit = (uint32_t)((double)p * 4294967296.0);
	float keep = 1.0f / (1.0f - p);
	uint64_t k = (key ^ ((uint64_t)begin >> 32)) * UINT64_C(0xbf58476d1ce4e5b9);
	k = (k ^ (k >> 31)) * UINT64_C(0x94d049bb133111eb);
	simd_u32 lane;
	for (int i = 0; i < SIMD_WIDTH; i++)
		lane[i] = (uint32_t)i;
	for (int64_t i = begin; i < end; i += SIMD_WIDTH) {
		simd_u32 bits = random_bits(lane + (uint32_t)i, (uint32_t)k, (uint32_t)(k >> 32));
		simd_f32 v = act_load_upto(x + i, end - i) * keep;
		act_store_upto(y + i, simd_select((simd_i32)(bits < limit), simd_set(0), v), end - i);
	}
}

/* A block never crosses a multiple of 2^32: ACT_BLOCK divides it. */
void CPU_FN(dropout_apply)(int64_t count, float p, uint64_t key, const void *x, void *y)
{
	const act_t *from = x;
	act_t *to = y;
	if (p == 0 && x == y)
		return;
#pragma omp parallel for schedule(static) if (count > CPU_PARALLEL_MIN)
	for (int64_t begin = 0; begin < count; begin += ACT_BLOCK)
		drop_range(begin, act_block_end(begin, count), p, key, from, to);
}

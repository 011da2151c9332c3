/* SPDX-License-Identifier: Apache-2.0
 * Random bits that are a function of a key and of an element's index in the whole that it is a part
 * of (plan_cut.h): the same for every instruction set, for CUDA (cuda/ops/random.h) and for any
 * mesh. Used by dropout.c and round.c. Private to cpu/ops. */
#pragma once

#include "workers/engine/cpu/ops/simd.h"
#include "workers/plan/plan_cut.h"

/* The key of all indices that have the upper half of this one. */
CPU_INLINE uint64_t random_key(uint64_t key, int64_t index)
{
	uint64_t k = (key ^ ((uint64_t)index >> 32)) * UINT64_C(0xbf58476d1ce4e5b9);
	return (k ^ (k >> 31)) * UINT64_C(0x94d049bb133111eb);
}

/* 32 bits for each lane, the first of which has that index; key is random_key's. Each half of it
 * enters before another round of mixing, so the bits of two keys are not shifts of each other. */
CPU_INLINE simd_u32 random_bits(int64_t index, uint64_t key)
{
	simd_u32 lane;
	for (int i = 0; i < SIMD_WIDTH; i++)
		lane[i] = (uint32_t)i;
	simd_u32 h = (lane + (uint32_t)index) * 0x9e3779b1u + (uint32_t)key;
	h = (h ^ (h >> 16)) * 0x21f0aaadu;
	h = (h ^ (h >> 15)) + (uint32_t)(key >> 32);
	h = (h ^ (h >> 15)) * 0xd35a2d97u;
	return h ^ (h >> 16);
}

/* How many elements from local element i on, which has that index, follow each other in the whole
 * and have one key; at most `most`. */
CPU_INLINE int64_t random_piece(const struct plan_cut *cut, int64_t i, int64_t index, int64_t most)
{
	int64_t count = plan_cut_run_end(cut, i) - i;
	int64_t same = ((index >> 32) + 1) * (INT64_C(1) << 32) - index;
	count = count < same ? count : same;
	return count < most ? count : most;
}

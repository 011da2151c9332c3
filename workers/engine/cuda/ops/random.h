/* SPDX-License-Identifier: Apache-2.0
 * Random bits that are a function of a key and of an element's index in the whole that it is a part
 * of (plan_cut.h): those of the CPU backend (cpu/ops/random.h) bit by bit. A thread walks over
 * neighbours. Used by dropout.cu and round.cu. Private to cuda/ops. */
#pragma once

#include "workers/engine/cuda/ops/map.h"

/* What the bits depend on. */
struct random_source {
	struct plan_cut cut;
	uint64_t key;
};

/* Where a walk over local elements is in the whole, and the key mixed with the upper half of that
 * index. */
struct random_walk {
	int64_t index, left; /* elements of the run from here on */
	int64_t upper;
	uint64_t key;
};

static __device__ __forceinline__ uint64_t random_key(uint64_t key, int64_t upper)
{
	uint64_t k = (key ^ (uint64_t)upper) * UINT64_C(0xbf58476d1ce4e5b9);
	return (k ^ (k >> 31)) * UINT64_C(0x94d049bb133111eb);
}

static __device__ __forceinline__ struct random_walk random_begin(
	const struct random_source &s, int64_t i)
{
	struct map_place at = { 0, i };
	if (i >= s.cut.run)
		at = map_place_of(i, s.cut.run);
	int64_t index = at.row * s.cut.period + s.cut.first + at.column;
	return { index, s.cut.run - at.column, index >> 32, random_key(s.key, index >> 32) };
}

static __device__ __forceinline__ uint32_t random_bits(uint32_t index, uint64_t key)
{
	uint32_t h = index * 0x9e3779b1u + (uint32_t)key;
	h = (h ^ (h >> 16)) * 0x21f0aaadu;
	h = (h ^ (h >> 15)) + (uint32_t)(key >> 32);
	h = (h ^ (h >> 15)) * 0xd35a2d97u;
	return h ^ (h >> 16);
}

/* The bits of the walk's element, and one element on. */
static __device__ __forceinline__ uint32_t random_next(
	const struct random_source &s, struct random_walk *walk)
{
	uint32_t bits = random_bits((uint32_t)walk->index, walk->key);
	walk->index++;
	if (--walk->left == 0) {
		walk->index += s.cut.period - s.cut.run;
		walk->left = s.cut.run;
	}
	if (walk->index >> 32 != walk->upper) {
		walk->upper = walk->index >> 32;
		walk->key = random_key(s.key, walk->upper);
	}
	return bits;
}

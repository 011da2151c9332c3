/* SPDX-License-Identifier: Apache-2.0
 * Stochastic rounding to bf16 as the backends must do it, a value at a time: what the tests of
 * operations and of meshes hold them against. */
#pragma once

#include "workers/engine/rng.h"

#include <string.h>

/* The upper half of the float is kept; `index` is that in the whole. */
static inline uint16_t rounding_bf16(float x, uint64_t key, int64_t index)
{
	uint64_t k = (key ^ ((uint64_t)index >> 32)) * UINT64_C(0xbf58476d1ce4e5b9);
	k = (k ^ (k >> 31)) * UINT64_C(0x94d049bb133111eb);
	uint32_t h = (uint32_t)index * 0x9e3779b1u + (uint32_t)k, u;
	h = (h ^ (h >> 16)) * 0x21f0aaadu;
	h = (h ^ (h >> 15)) + (uint32_t)(k >> 32);
	h = (h ^ (h >> 15)) * 0xd35a2d97u;
	h ^= h >> 16;
	memcpy(&u, &x, sizeof(u));
	if ((u & 0x7fffffffu) > 0x7f800000u)
		return (uint16_t)((u | 0x400000u) >> 16);
	return (uint16_t)((u + (h >> 16)) >> 16);
}

/* Of the weights that a step reads. */
static inline uint64_t rounding_key(uint64_t seed, int64_t step, int64_t parameter)
{
	return rng_mix(rng_key(seed, RNG_ROUNDING, (uint64_t)step) + (uint64_t)parameter);
}

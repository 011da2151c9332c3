/* SPDX-License-Identifier: Apache-2.0
 * Random numbers without state: each is a function of a key and a counter, so a resumed run draws
 * what the uninterrupted one would. Private to workers/engine. */
#pragma once

#include <stdint.h>

enum rng_stream {
	RNG_PARAMETERS = 1,
	RNG_ORDER = 2,
	RNG_DROPOUT = 3,
	RNG_AUGMENT = 4,
	RNG_ROUNDING = 5,
};

/* A bijection of 64 bits that spreads every input bit over all output bits. */
static inline uint64_t rng_mix(uint64_t z)
{
	z += UINT64_C(0x9e3779b97f4a7c15);
	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

static inline uint64_t rng_key(uint64_t seed, enum rng_stream stream, uint64_t index)
{
	return rng_mix(rng_mix(rng_mix(seed) ^ (uint64_t)stream) + index);
}

/* Uniform in (0, 1): never 0, so that its logarithm exists. */
static inline double rng_uniform(uint64_t key, uint64_t counter)
{
	return ((double)(rng_mix(key ^ rng_mix(counter)) >> 11) + 0.5) * 0x1.0p-53;
}

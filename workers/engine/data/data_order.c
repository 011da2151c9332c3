/* SPDX-License-Identifier: Apache-2.0
 * The order of training samples: a permutation computed from (seed, epoch, place), so nothing is
 * stored and a resumed run needs only its position. */
#include "workers/engine/data.h"
#include "workers/engine/rng.h"

enum { ROUNDS = 6 };

/* A Feistel network permutes [0, 4^half); walking until the value is inside [0, samples) makes it a
 * permutation of the samples. The domain is below 4 * samples, so the walk is short. */
static uint64_t permute(uint64_t samples, uint64_t key, uint64_t i)
{
	int half = 1;
	while (half < 31 && (UINT64_C(1) << (2 * half)) < samples)
		half++;
	uint64_t mask = (UINT64_C(1) << half) - 1;
	do {
		uint64_t left = i >> half, right = i & mask;
		for (uint64_t round = 0; round < ROUNDS; round++) {
			uint64_t next = left ^ (rng_mix(rng_mix(key + round) ^ right) & mask);
			left = right;
			right = next;
		}
		i = left << half | right;
	} while (i >= samples);
	return i;
}

int64_t data_sample_at(int64_t samples, uint64_t seed, bool shuffle, int64_t position)
{
	int64_t epoch = position / samples, i = position % samples;
	if (!shuffle)
		return i;
	return (int64_t)permute(
		(uint64_t)samples, rng_key(seed, RNG_ORDER, (uint64_t)epoch), (uint64_t)i);
}

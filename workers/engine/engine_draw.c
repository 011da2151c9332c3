/* SPDX-License-Identifier: Apache-2.0
 * Box and Muller's normal numbers in loops that compilers turn into vectors. Compiled without
 * contraction of products and sums, so that every processor draws the same. */
#include "workers/engine/engine_draw.h"

#include "workers/engine/rng.h"

#include <math.h>

enum { PAIRS = ENGINE_DRAW_BLOCK / 2 };

/* 31 bits for the radius, 32 with a sign for the angle, from one 64-bit number each pair. */
static void words(uint64_t key, int64_t block, int32_t *radius, int32_t *angle)
{
	for (int i = 0; i < PAIRS; i++) {
		uint64_t z = rng_mix(key ^ rng_mix((uint64_t)(block * PAIRS + i)));
		radius[i] = (int32_t)(z >> 33);
		angle[i] = (int32_t)(uint32_t)z;
	}
}

/* -2 log((word + 1/2) / 2^31): mantissa m in [1/sqrt2, sqrt2), log m = 2 atanh((m-1)/(m+1)). */
static inline float minus_two_log(int32_t word)
{
	union {
		float f;
		int32_t i;
	} v = { .f = (float)word + 0.5f };
	int32_t shifted = v.i - 0x3f3504f3; /* bits of 1/sqrt2 */
	float exponent = (float)((shifted >> 23) - 31);
	v.i = (shifted & 0x7fffff) + 0x3f3504f3;
	float t = (v.f - 1.0f) / (v.f + 1.0f), t2 = t * t;
	float series = 1.0f / 3 + t2 * (1.0f / 5 + t2 * (1.0f / 7 + t2 * (1.0f / 9)));
	return -2.0f * (exponent * (float)M_LN2 + 2.0f * (t + t * t2 * series));
}

/* Cosine and sine of angle * pi / 2^31: the nearest multiple of a quarter turn, and the rest. */
static inline void turn(int32_t angle, float *ret_cos, float *ret_sin)
{
	uint32_t quarter = ((uint32_t)angle + (UINT32_C(1) << 29)) >> 30;
	float x = (float)(int32_t)((uint32_t)angle - (quarter << 30)) * (float)(M_PI / 2147483648.0);
	float x2 = x * x;
	float s = x + x * x2 * (-1.0f / 6 + x2 * (1.0f / 120 + x2 * (-1.0f / 5040)));
	float c = 1.0f + x2 * (-0.5f + x2 * (1.0f / 24 + x2 * (-1.0f / 720 + x2 * (1.0f / 40320))));
	float along = quarter & 1 ? s : c, across = quarter & 1 ? c : s;
	*ret_cos = (quarter + 1) & 2 ? -along : along;
	*ret_sin = quarter & 2 ? -across : across;
}

void engine_draw_normal(uint64_t key, int64_t block, float deviation, float *out)
{
	int32_t radius[PAIRS], angle[PAIRS];
	words(key, block, radius, angle);
#pragma omp simd
	for (int i = 0; i < PAIRS; i++) {
		float r = deviation * sqrtf(minus_two_log(radius[i])), c, s;
		turn(angle[i], &c, &s);
		out[2 * i] = r * c;
		out[2 * i + 1] = r * s;
	}
}

void engine_draw_uniform(uint64_t key, int64_t block, float width, float *out)
{
	const float unit = width / 2147483648.0f;
	for (int i = 0; i < PAIRS; i++) {
		uint64_t z = rng_mix(key ^ rng_mix((uint64_t)(block * PAIRS + i)));
		out[2 * i] = (float)(int32_t)(uint32_t)(z >> 32) * unit;
		out[2 * i + 1] = (float)(int32_t)(uint32_t)z * unit;
	}
}

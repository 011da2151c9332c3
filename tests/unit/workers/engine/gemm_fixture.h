/* SPDX-License-Identifier: Apache-2.0
 * What the tests of products share: a seeded source, the stored types in plain C, values behind
 * which NaNs lie, and the tables that this CPU can run. */
#pragma once

#include "tests/support/check.h"
#include "workers/engine/cpu/gemm_private.h"

#include <math.h>

#define FIXTURE_FN static __attribute__((unused))

enum { GUARD = 64 }; /* values behind what is used */

static struct check_random random_source;

FIXTURE_FN int64_t pick(int64_t min, int64_t max)
{
	return check_random_range(&random_source, min, max);
}

FIXTURE_FN bool chance(int64_t one_in)
{
	return pick(1, one_in) == 1;
}

/* ------------------------------------------------------------------ stored types, one by one */

FIXTURE_FN uint16_t to_bf16(float x)
{
	uint32_t u;
	memcpy(&u, &x, sizeof(u));
	return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

FIXTURE_FN float from_bf16(uint16_t h)
{
	uint32_t u = (uint32_t)h << 16;
	float x;
	memcpy(&x, &u, sizeof(x));
	return x;
}

FIXTURE_FN double from_f16(uint16_t h)
{
	int exponent = h >> 10 & 31, mantissa = h & 1023;
	double v = exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24);
	if (exponent == 31)
		v = mantissa ? NAN : INFINITY;
	return h & 0x8000 ? -v : v;
}

FIXTURE_FN double load(enum gemm_type type, const void *base, int64_t i)
{
	if (type == GEMM_F32)
		return (double)((const float *)base)[i];
	uint16_t h = ((const uint16_t *)base)[i];
	return type == GEMM_BF16 ? (double)from_bf16(h) : from_f16(h);
}

FIXTURE_FN int64_t size_of(enum gemm_type type)
{
	return type == GEMM_F32 ? 4 : 2;
}

FIXTURE_FN double unit_random(void)
{
	return (double)(check_random_bits(&random_source) >> 11) * 0x1p-52 - 1;
}

/* Values in (-1, 1), as exact as the type allows. */
FIXTURE_FN void *random_values(enum gemm_type type, int64_t count)
{
	char *mem = malloc((size_t)((count + GUARD) * size_of(type)));
	assert_non_null(mem);
	for (int64_t i = 0; i < count + GUARD; i++) {
		float x = i < count ? (float)unit_random() : NAN; /* what lies behind must not matter */
		if (type == GEMM_F32)
			((float *)mem)[i] = x;
		else if (type == GEMM_BF16)
			((uint16_t *)mem)[i] = i < count ? to_bf16(x) : 0x7fc0;
		else
			((uint16_t *)mem)[i] =
				i < count ? (uint16_t)(pick(0, 0x3bff) | pick(0, 1) << 15) : 0x7e00;
	}
	return mem;
}

/* Every table that can run the problem. */
#define FOR_KERNELS(p, k)                                           \
	for (int i_##k = 0; gemm_kernels_at(i_##k); i_##k++)            \
		for (const struct gemm_kernels *k = gemm_kernels_at(i_##k); \
			 k && (k->unit == 1 || (p)->bf16); k = NULL)

/* SPDX-License-Identifier: Apache-2.0
 * The activation type of this compilation: act_t in memory, fp32 in registers. Loads and stores of
 * SIMD_WIDTH values and of one; bf16 and fp16 round to nearest even, NaN stays NaN. Private to
 * cpu/ops. */
#pragma once

#include "workers/engine/cpu/isa.h"
#include "workers/engine/cpu/ops/narrow.h"

#include <stdint.h>
#include <string.h>

#define CPU_TYPE_IS_f32 1
#define CPU_TYPE_IS_bf16 2
#define CPU_TYPE_IS_f16 3
#define CPU_TYPE_IS(type) (CPU_JOIN(CPU_TYPE_IS, CPU_TYPE) == CPU_JOIN(CPU_TYPE_IS, type))

#if CPU_TYPE_IS(f32)
typedef float act_t;
CPU_INLINE simd_f32 act_load(const act_t *p)
{
	return simd_load(p);
}
CPU_INLINE void act_store(act_t *p, simd_f32 v)
{
	simd_store(p, v);
}
CPU_INLINE float act_get(const act_t *p)
{
	return *p;
}
CPU_INLINE void act_set(act_t *p, float v)
{
	*p = v;
}
#else
typedef uint16_t act_t;
#if CPU_TYPE_IS(bf16)
#define ACT_WIDEN bf16_widen
#define ACT_ROUND bf16_round
#else
#define ACT_WIDEN f16_widen
#define ACT_ROUND f16_round
#endif
CPU_INLINE simd_f32 act_load(const act_t *p)
{
	return ACT_WIDEN(*(const simd_u16 *)p);
}
CPU_INLINE void act_store(act_t *p, simd_f32 v)
{
	*(simd_u16 *)p = ACT_ROUND(v);
}
CPU_INLINE float act_get(const act_t *p)
{
	simd_u16 v = { *p };
	return ACT_WIDEN(v)[0];
}
CPU_INLINE void act_set(act_t *p, float x)
{
	simd_f32 v = { x };
	*p = ACT_ROUND(v)[0];
}
#endif

/* The first n (< SIMD_WIDTH) values; the others are 0. */
CPU_INLINE simd_f32 act_load_part(const act_t *p, int64_t n)
{
#if CPU_TYPE_IS(f32)
	return simd_load_part(p, n);
#elif defined(__AVX512BW__)
	return ACT_WIDEN((simd_u16)_mm256_maskz_loadu_epi16((__mmask16)((1u << n) - 1u), p));
#else
	act_t part[SIMD_WIDTH] = { 0 };
	memcpy(part, p, (size_t)n * sizeof(act_t));
	return act_load(part);
#endif
}

CPU_INLINE void act_store_part(act_t *p, simd_f32 v, int64_t n)
{
#if CPU_TYPE_IS(f32)
	simd_store_part(p, v, n);
#elif defined(__AVX512BW__)
	_mm256_mask_storeu_epi16(p, (__mmask16)((1u << n) - 1u), (__m256i)ACT_ROUND(v));
#else
	act_t part[SIMD_WIDTH];
	act_store(part, v);
	memcpy(p, part, (size_t)n * sizeof(act_t));
#endif
}

/* The first n values (all for n >= SIMD_WIDTH), for loops that end with a part. */
CPU_INLINE simd_f32 act_load_upto(const act_t *p, int64_t n)
{
	return n >= SIMD_WIDTH ? act_load(p) : act_load_part(p, n);
}

CPU_INLINE void act_store_upto(act_t *p, simd_f32 v, int64_t n)
{
	if (n >= SIMD_WIDTH)
		act_store(p, v);
	else
		act_store_part(p, v, n);
}

/* Elements that a thread takes in one turn of a loop over a flat range: whole vectors, so that the
 * number of threads never changes an element's instructions. */
enum { ACT_BLOCK = 4096 };

CPU_INLINE int64_t act_block_end(int64_t begin, int64_t count)
{
	return begin + ACT_BLOCK < count ? begin + ACT_BLOCK : count;
}

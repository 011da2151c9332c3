/* SPDX-License-Identifier: Apache-2.0
 * The activation type of this compilation: act_t in memory, fp32 in registers. Loads and stores of
 * 16 values and of one; bf16 and fp16 round to nearest even, NaN stays NaN. Private to cpu/ops. */
#pragma once

#include "workers/engine/cpu/isa.h"
#include "workers/engine/cpu/ops/simd.h"

#include <stdint.h>
#include <string.h>
#if defined(__F16C__)
#include <immintrin.h>
#endif

#define CPU_TYPE_IS_f32 1
#define CPU_TYPE_IS_bf16 2
#define CPU_TYPE_IS_f16 3
#define CPU_TYPE_IS(type) (CPU_JOIN(CPU_TYPE_IS, CPU_TYPE) == CPU_JOIN(CPU_TYPE_IS, type))

typedef uint32_t simd_u32 __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint16_t simd_u16 __attribute__((vector_size(32), aligned(2), may_alias));

CPU_INLINE simd_f32 bf16_widen(simd_u16 v)
{
	simd_u32 w = __builtin_convertvector(v, simd_u32) << 16;
	return (simd_f32)w;
}

CPU_INLINE simd_u16 bf16_round(simd_f32 v)
{
	simd_u32 u = (simd_u32)v;
	simd_u32 rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
	simd_u32 quiet = (u >> 16) | 0x40u;
	simd_u32 nan = (simd_u32)((u & 0x7fffffffu) > 0x7f800000u);
	return __builtin_convertvector((rounded & ~nan) | (quiet & nan), simd_u16);
}

CPU_INLINE simd_f32 f16_widen(simd_u16 v)
{
#if defined(__AVX512F__)
	return (simd_f32)_mm512_cvtph_ps((__m256i)v);
#elif defined(__F16C__)
	union {
		simd_u16 all;
		__m128i half[2];
	} in = { .all = v };
	union {
		__m256 half[2];
		simd_f32 all;
	} out = { .half = { _mm256_cvtph_ps(in.half[0]), _mm256_cvtph_ps(in.half[1]) } };
	return out.all;
#else
	simd_f32 out;
	for (int i = 0; i < SIMD_WIDTH; i++) {
		_Float16 h;
		uint16_t u = v[i];
		memcpy(&h, &u, sizeof(h));
		out[i] = (float)h;
	}
	return out;
#endif
}

CPU_INLINE simd_u16 f16_round(simd_f32 v)
{
#if defined(__AVX512F__)
	return (simd_u16)_mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(__F16C__)
	union {
		simd_f32 all;
		__m256 half[2];
	} in = { .all = v };
	union {
		__m128i half[2];
		simd_u16 all;
	} out = { .half = { _mm256_cvtps_ph(in.half[0], _MM_FROUND_TO_NEAREST_INT),
				  _mm256_cvtps_ph(in.half[1], _MM_FROUND_TO_NEAREST_INT) } };
	return out.all;
#else
	simd_u16 out;
	for (int i = 0; i < SIMD_WIDTH; i++) {
		_Float16 h = (_Float16)v[i];
		uint16_t u;
		memcpy(&u, &h, sizeof(u));
		out[i] = u;
	}
	return out;
#endif
}

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

/* The first n (< 16) values; the others are 0. */
CPU_INLINE simd_f32 act_load_part(const act_t *p, int64_t n)
{
	act_t part[SIMD_WIDTH] = { 0 };
	memcpy(part, p, (size_t)n * sizeof(act_t));
	return act_load(part);
}

CPU_INLINE void act_store_part(act_t *p, simd_f32 v, int64_t n)
{
	act_t part[SIMD_WIDTH];
	act_store(part, v);
	memcpy(p, part, (size_t)n * sizeof(act_t));
}

/* SPDX-License-Identifier: Apache-2.0
 * The vectors of the product kernels: as wide as the instruction set's own registers, so that the
 * compiler keeps them there. Conversions between fp32 and the stored types. GEMM_UNIT 2 compiles
 * for pairs of bf16. Private to cpu/ops/gemm_*.c. */
#pragma once

#include "workers/engine/cpu/gemm_private.h"

#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define GEMM_JOIN2(a, b) a##_##b
#define GEMM_JOIN(a, b) GEMM_JOIN2(a, b)
#define GEMM_FN(name) GEMM_JOIN(name, CPU_ISA) /* gemm_tile_avx512 */
#define GEMM_INLINE static inline __attribute__((always_inline, unused))

#if defined(__AVX512F__)
enum { GV = 16, GEMM_MR = 14 };
#define GEMM_EACH_MORE(X) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14)
#elif defined(__AVX2__)
enum { GV = 8, GEMM_MR = 6 };
#else
enum { GV = 4, GEMM_MR = 6 };
#endif
#if !defined(GEMM_EACH_MORE)
#define GEMM_EACH_MORE(X)
#endif
#define GEMM_EACH_ROWS(X) X(1) X(2) X(3) X(4) X(5) X(6) GEMM_EACH_MORE(X) /* to GEMM_MR */
#if defined(__AVX512BF16__)
enum { GEMM_UNIT = 2 };
#else
enum { GEMM_UNIT = 1 };
#endif
enum { GEMM_NR = 2 * GV };

typedef float gv_f32 __attribute__((vector_size(GV * 4), aligned(1), may_alias));
typedef uint32_t gv_u32 __attribute__((vector_size(GV * 4), aligned(1), may_alias));
typedef uint16_t gv_u16 __attribute__((vector_size(GV * 2), aligned(1), may_alias));

GEMM_INLINE gv_f32 gv_load(const void *p)
{
	return *(const gv_f32 *)p;
}

GEMM_INLINE void gv_store(void *p, gv_f32 v)
{
	*(gv_f32 *)p = v;
}

GEMM_INLINE gv_f32 gv_set1(float x)
{
#if defined(__AVX512F__)
	return (gv_f32)_mm512_set1_ps(x);
#elif defined(__AVX2__)
	return (gv_f32)_mm256_set1_ps(x);
#else
	return (gv_f32){ x, x, x, x };
#endif
}

/* A unit in every lane. AVX-512 could read it from memory within each product, twice a row instead
 * of once: more loads than the core has room for, so it is kept in a register by force. */
GEMM_INLINE gv_f32 gv_broadcast(const char *p)
{
	float x;
	memcpy(&x, p, sizeof(x));
	gv_f32 v = gv_set1(x);
#if defined(__AVX512F__)
	__asm__("" : "+v"(v));
#endif
	return v;
}

/* sum + a b, for units. */
GEMM_INLINE gv_f32 gv_product(gv_f32 sum, gv_f32 a, gv_f32 b)
{
#if defined(__AVX512BF16__)
	return (gv_f32)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
#else
	return sum + a * b;
#endif
}

#if defined(__AVX512F__)
GEMM_INLINE gv_u32 gv_widen(gv_u16 v)
{
	return (gv_u32)_mm512_cvtepu16_epi32((__m256i)v);
}
#else
GEMM_INLINE gv_u32 gv_widen(gv_u16 v)
{
	return __builtin_convertvector(v, gv_u32);
}
#endif

/* Pairs of two lines of bf16. */
GEMM_INLINE gv_f32 gv_pairs(const char *low, const char *high)
{
	return (gv_f32)(gv_widen(*(const gv_u16 *)low) | gv_widen(*(const gv_u16 *)high) << 16);
}

/* The first of a and b alternating, from their lower or upper halves. */
#if defined(__AVX512F__)
#define GV_LOW 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define GV_HIGH 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif defined(__AVX2__)
#define GV_LOW 0, 8, 1, 9, 2, 10, 3, 11
#define GV_HIGH 4, 12, 5, 13, 6, 14, 7, 15
#else
#define GV_LOW 0, 4, 1, 5
#define GV_HIGH 2, 6, 3, 7
#endif

GEMM_INLINE gv_f32 gv_from_bf16(gv_u16 v)
{
	return (gv_f32)(gv_widen(v) << 16);
}

/* The 32 bits rounded to bf16 in the upper half, the lower half still to be cut off. */
GEMM_INLINE gv_u32 gv_round_bits(gv_f32 v)
{
	gv_u32 u = (gv_u32)v;
	gv_u32 rounded = u + 0x7fffu + ((u >> 16) & 1u);
	gv_u32 nan = (gv_u32)((u & 0x7fffffffu) > 0x7f800000u);
	return (rounded & ~nan) | ((u | 0x400000u) & nan);
}

GEMM_INLINE gv_u16 gv_to_bf16(gv_f32 v)
{
#if defined(__AVX512BF16__)
	return (gv_u16)_mm512_cvtneps_pbh((__m512)v);
#else
	return __builtin_convertvector(gv_round_bits(v) >> 16, gv_u16);
#endif
}

GEMM_INLINE gv_f32 gv_round_bf16(gv_f32 v)
{
	return (gv_f32)(gv_round_bits(v) & 0xffff0000u);
}

GEMM_INLINE gv_f32 gv_from_f16(gv_u16 v)
{
#if defined(__AVX512F__)
	return (gv_f32)_mm512_cvtph_ps((__m256i)v);
#elif defined(__F16C__)
	return (gv_f32)_mm256_cvtph_ps((__m128i)v);
#else
	/* Multiplying by 2^112 moves the exponent, subnormals too; infinity and NaN are set apart. */
	gv_u32 h = gv_widen(v);
	gv_f32 magnitude = (gv_f32)((h & 0x7fffu) << 13) * gv_set1(0x1p112f);
	gv_u32 special = (gv_u32)((h & 0x7c00u) == 0x7c00u) & 0x7f800000u;
	return (gv_f32)((gv_u32)magnitude | special | (h & 0x8000u) << 16);
#endif
}

GEMM_INLINE gv_u16 gv_to_f16(gv_f32 v)
{
#if defined(__AVX512F__)
	return (gv_u16)_mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(__F16C__)
	return (gv_u16)_mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT);
#else
	gv_u32 u = (gv_u32)v, sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
	gv_u32 normal = (a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13;
	gv_u32 small = (gv_u32)((gv_f32)a + gv_set1(0.5f)) - 0x3f000000u; /* rounds to 2^-24 */
	gv_u32 is_small = (gv_u32)(a < 0x38800000u), is_large = (gv_u32)(a >= 0x477ff000u);
	gv_u32 is_nan = (gv_u32)(a > 0x7f800000u);
	gv_u32 r = (normal & ~is_small) | (small & is_small);
	r = (r & ~is_large) | (0x7c00u & is_large);
	return __builtin_convertvector(r | (0x200u & is_nan) | sign, gv_u16);
#endif
}

/* GV values of a stored type. */
GEMM_INLINE gv_f32 gv_load_as(const int type, const char *p)
{
	if (type == GEMM_F32)
		return gv_load(p);
	gv_u16 v = *(const gv_u16 *)p;
	return type == GEMM_BF16 ? gv_from_bf16(v) : gv_from_f16(v);
}

GEMM_INLINE void gv_store_as(const int type, char *p, gv_f32 v)
{
	if (type == GEMM_F32)
		gv_store(p, v);
	else
		*(gv_u16 *)p = type == GEMM_BF16 ? gv_to_bf16(v) : gv_to_f16(v);
}

GEMM_INLINE int64_t gv_type_bytes(const int type)
{
	return type == GEMM_F32 ? 4 : 2;
}

/* SPDX-License-Identifier: Apache-2.0
 * The vectors of the product kernels: as wide as the instruction set's own registers, so that the
 * compiler keeps them there. Conversions between fp32 and the stored types. GEMM_UNIT 2 compiles
 * for pairs of bf16. Private to cpu/ops/gemm_*.c. */
#pragma once

#include "workers/engine/cpu/gemm_private.h"
#include "workers/engine/cpu/ops/narrow.h"

#define GEMM_JOIN2(a, b) a##_##b
#define GEMM_JOIN(a, b) GEMM_JOIN2(a, b)
#define GEMM_FN(name) GEMM_JOIN(name, CPU_ISA) /* gemm_tile_avx512 */
#define GEMM_INLINE static inline __attribute__((always_inline, unused))

#if defined(__AVX512F__)
enum { GEMM_MR = 14 };
#define GEMM_EACH_MORE(X) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14)
#else
enum { GEMM_MR = 6 };
#define GEMM_EACH_MORE(X)
#endif
#define GEMM_EACH_ROWS(X) X(1) X(2) X(3) X(4) X(5) X(6) GEMM_EACH_MORE(X) /* to GEMM_MR */
#if defined(__AVX512BF16__)
enum { GEMM_UNIT = 2 };
#else
enum { GEMM_UNIT = 1 };
#endif
enum { GV = SIMD_WIDTH, GEMM_NR = 2 * GV };

/* Pairs of bf16 lie at any even byte, fp32 that is packed at any. */
typedef float gv_f32 SIMD_VECTOR(float) __attribute__((aligned(1)));
typedef uint32_t gv_u32 SIMD_VECTOR(uint32_t) __attribute__((aligned(1)));
typedef uint16_t gv_u16 SIMD_VECTOR(uint16_t) __attribute__((aligned(1)));

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

/* Pairs of two lines of bf16. */
GEMM_INLINE gv_f32 gv_pairs(const char *low, const char *high)
{
	return (gv_f32)(narrow_bits(*(const gv_u16 *)low) | narrow_bits(*(const gv_u16 *)high) << 16);
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

GEMM_INLINE gv_u16 gv_to_bf16(gv_f32 v)
{
#if defined(__AVX512BF16__)
	return (gv_u16)_mm512_cvtneps_pbh((__m512)v);
#else
	return bf16_round(v);
#endif
}

GEMM_INLINE gv_f32 gv_round_bf16(gv_f32 v)
{
	return (gv_f32)(bf16_round_bits(v) & 0xffff0000u);
}

/* GV values of a stored type. */
GEMM_INLINE gv_f32 gv_load_as(const int type, const char *p)
{
	if (type == GEMM_F32)
		return gv_load(p);
	gv_u16 v = *(const gv_u16 *)p;
	return type == GEMM_BF16 ? bf16_widen(v) : f16_widen(v);
}

GEMM_INLINE void gv_store_as(const int type, char *p, gv_f32 v)
{
	if (type == GEMM_F32)
		gv_store(p, v);
	else
		*(gv_u16 *)p = type == GEMM_BF16 ? gv_to_bf16(v) : f16_round(v);
}

GEMM_INLINE int64_t gv_type_bytes(const int type)
{
	return type == GEMM_F32 ? 4 : 2;
}

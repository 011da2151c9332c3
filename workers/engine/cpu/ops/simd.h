/* SPDX-License-Identifier: Apache-2.0
 * Small vector pieces for the operations: SIMD_WIDTH floats as one value, as wide as the
 * instruction set's registers (the compiler keeps nothing wider there), an exponential without
 * branches, transposing, and a register-tiled product of matrices that live in the cache. Loops go
 * over whole vectors and end with one part, so every element takes the same instructions whatever
 * the number of threads. Private to cpu/ops. */
#pragma once

#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define CPU_INLINE static inline __attribute__((always_inline, unused))

#if defined(__AVX512F__)
enum { SIMD_WIDTH = 16 };
#elif defined(__AVX2__)
enum { SIMD_WIDTH = 8 };
#else
enum { SIMD_WIDTH = 4 };
#endif
#define SIMD_VECTOR(type) __attribute__((vector_size(SIMD_WIDTH * sizeof(type)), may_alias))
typedef float simd_f32 SIMD_VECTOR(float) __attribute__((aligned(4)));
typedef int32_t simd_i32 SIMD_VECTOR(int32_t) __attribute__((aligned(4)));
typedef uint32_t simd_u32 SIMD_VECTOR(uint32_t) __attribute__((aligned(4)));
typedef uint16_t simd_u16 SIMD_VECTOR(uint16_t) __attribute__((aligned(2)));

CPU_INLINE simd_f32 simd_load(const float *p)
{
	return *(const simd_f32 *)p;
}

CPU_INLINE void simd_store(float *p, simd_f32 v)
{
	*(simd_f32 *)p = v;
}

CPU_INLINE simd_f32 simd_set(float x)
{
	return x - (simd_f32){ 0 }; /* nothing is subtracted: -0 stays */
}

/* A value in every lane. AVX-512 could read it within each product instead, once for every vector
 * that it is multiplied with: more loads than the core has room for, so it is kept by force. */
CPU_INLINE simd_f32 simd_broadcast(const float *p)
{
	simd_f32 v = simd_set(*p);
#if defined(__AVX512F__)
	__asm__("" : "+v"(v));
#endif
	return v;
}

/* The first n (< SIMD_WIDTH) values; the others are 0. */
CPU_INLINE simd_f32 simd_load_part(const float *p, int64_t n)
{
#if defined(__AVX512F__)
	return (simd_f32)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1u), p);
#else
	float part[SIMD_WIDTH] = { 0 };
	memcpy(part, p, (size_t)n * sizeof(float));
	return simd_load(part);
#endif
}

CPU_INLINE void simd_store_part(float *p, simd_f32 v, int64_t n)
{
#if defined(__AVX512F__)
	_mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1u), (__m512)v);
#else
	float part[SIMD_WIDTH];
	simd_store(part, v);
	memcpy(p, part, (size_t)n * sizeof(float));
#endif
}

/* The first n values (all for n >= SIMD_WIDTH), for loops that end with a part. */
CPU_INLINE simd_f32 simd_load_upto(const float *p, int64_t n)
{
	return n >= SIMD_WIDTH ? simd_load(p) : simd_load_part(p, n);
}

CPU_INLINE void simd_store_upto(float *p, simd_f32 v, int64_t n)
{
	if (n >= SIMD_WIDTH)
		simd_store(p, v);
	else
		simd_store_part(p, v, n);
}

/* All bits set in the first n lanes. */
CPU_INLINE simd_i32 simd_first(int64_t n)
{
	simd_i32 lane;
	for (int i = 0; i < SIMD_WIDTH; i++)
		lane[i] = i;
	return lane < (int32_t)(n < SIMD_WIDTH ? n : SIMD_WIDTH);
}

/* Lanes of a where the mask is set (all bits), of b elsewhere. */
CPU_INLINE simd_f32 simd_select(simd_i32 mask, simd_f32 a, simd_f32 b)
{
#if defined(__AVX512F__)
	return (simd_f32)_mm512_mask_blend_ps(
		_mm512_movepi32_mask((__m512i)mask), (__m512)b, (__m512)a);
#elif defined(__AVX2__)
	return (simd_f32)_mm256_blendv_ps((__m256)b, (__m256)a, (__m256)mask);
#else
	return (simd_f32)(((simd_i32)a & mask) | ((simd_i32)b & ~mask));
#endif
}

/* The larger; b where either is NaN. */
CPU_INLINE simd_f32 simd_max(simd_f32 a, simd_f32 b)
{
#if defined(__AVX512F__)
	return (simd_f32)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
	return (simd_f32)_mm256_max_ps((__m256)a, (__m256)b);
#else
	return simd_select(a > b, a, b);
#endif
}

/* The smaller; b where either is NaN. */
CPU_INLINE simd_f32 simd_min(simd_f32 a, simd_f32 b)
{
#if defined(__AVX512F__)
	return (simd_f32)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
	return (simd_f32)_mm256_min_ps((__m256)a, (__m256)b);
#else
	return simd_select(a < b, a, b);
#endif
}

/* The lanes' sum, by halves: one order on an instruction set. */
CPU_INLINE float simd_sum(simd_f32 v)
{
#if defined(__AVX512F__)
	return _mm512_reduce_add_ps((__m512)v);
#else
	for (int half = SIMD_WIDTH / 2; half > 0; half /= 2)
		for (int i = 0; i < half; i++)
			v[i] += v[i + half];
	return v[0];
#endif
}

/* The lanes' maximum; NaN lanes may be passed over. */
CPU_INLINE float simd_max_lane(simd_f32 v)
{
#if defined(__AVX512F__)
	return _mm512_reduce_max_ps((__m512)v);
#else
	float max = v[0];
	for (int i = 1; i < SIMD_WIDTH; i++)
		max = v[i] > max ? v[i] : max;
	return max;
#endif
}

CPU_INLINE simd_f32 simd_sqrt(simd_f32 v)
{
#if defined(__AVX512F__)
	return (simd_f32)_mm512_sqrt_ps((__m512)v);
#elif defined(__AVX2__)
	return (simd_f32)_mm256_sqrt_ps((__m256)v);
#elif defined(__SSE2__)
	return (simd_f32)_mm_sqrt_ps((__m128)v);
#else
	for (int i = 0; i < SIMD_WIDTH; i++)
		v[i] = __builtin_sqrtf(v[i]);
	return v;
#endif
}

static const float simd_magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to a whole number */

/* p 2^n; n in [-127, 127] given as n + simd_magic, whose exponent's bits are what counts (the rest
 * is shifted out). n = -127 gives 0. */
CPU_INLINE simd_f32 simd_scale(simd_f32 p, simd_f32 n_magic)
{
	return p * (simd_f32)(((simd_u32)n_magic << 23) + 0x3f800000u);
}

/* e^x to 1 ulp. 0 below about -87.7 (there are no subnormal results), at most e^88; NaN stays. */
CPU_INLINE simd_f32 simd_exp(simd_f32 x)
{
	x = simd_max(simd_set(-88.0f), x);
	x = simd_min(simd_set(88.0f), x);
	simd_f32 t = x * 1.44269504f + simd_magic, n = t - simd_magic;
	simd_f32 r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
	simd_f32 p = r * 1.38436467e-3f + 8.37416109e-3f; /* |r| <= ln(2) / 2: to 2e-9 */
	p = p * r + 4.16680016e-2f;
	p = p * r + 1.66664317e-1f;
	p = p * r + 4.9999994e-1f;
	p = p * r + 1.0f;
	return simd_scale(p * r + 1.0f, t);
}

/* 2^x to 1 ulp. 0 below -126.5; NaN stays; x <= 127 is the caller's business. */
CPU_INLINE simd_f32 simd_exp2(simd_f32 x)
{
	x = simd_max(simd_set(-127.0f), x);
	simd_f32 t = x + simd_magic, r = x - (t - simd_magic);
	simd_f32 p = r * 1.53533620e-4f + 1.33988750e-3f; /* |r| <= 1/2: to 2e-9 */
	p = p * r + 9.61843692e-3f;
	p = p * r + 5.55033237e-2f;
	p = p * r + 2.40226477e-1f;
	p = p * r + 6.93147182e-1f;
	return simd_scale(p * r + 1.0f, t);
}

/* Natural logarithm of a positive normal number, to 2 ulp; NaN for infinity and NaN. */
CPU_INLINE simd_f32 simd_log(simd_f32 x)
{
	/* x = m 2^n with m in [sqrt(1/2), sqrt(2)); log(m) = 2 atanh(s), s = (m - 1) / (m + 1). */
	simd_u32 shifted = (simd_u32)x - 0x3f3504f3u;
	simd_f32 n = __builtin_convertvector((simd_i32)shifted >> 23, simd_f32);
	simd_f32 m = (simd_f32)((shifted & 0x7fffffu) + 0x3f3504f3u);
	simd_f32 s = (m - 1.0f) / (m + 1.0f), q = s * s;
	simd_f32 p = q * 0.222222222f + 0.285714286f; /* 2/9, 2/7, 2/5, 2/3: to 1e-8 */
	p = p * q + 0.4f;
	p = p * q + 0.666666667f;
	return n * 0.693147181f + (p * q * s + (s + s)) + (x - x);
}

#if defined(__AVX512F__)
#define SIMD_LOW 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define SIMD_HIGH 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
enum { SIMD_WIDTH_LOG = 4 };
#elif defined(__AVX2__)
#define SIMD_LOW 0, 8, 1, 9, 2, 10, 3, 11
#define SIMD_HIGH 4, 12, 5, 13, 6, 14, 7, 15
enum { SIMD_WIDTH_LOG = 3 };
#else
#define SIMD_LOW 0, 4, 1, 5
#define SIMD_HIGH 2, 6, 3, 7
enum { SIMD_WIDTH_LOG = 2 };
#endif

/* Transposes SIMD_WIDTH vectors: each pass interleaves the first half of them with the second. */
CPU_INLINE void simd_transpose(simd_f32 *v)
{
#pragma GCC unroll 4
	for (int pass = 0; pass < SIMD_WIDTH_LOG; pass++) {
		simd_f32 u[SIMD_WIDTH];
#pragma GCC unroll 8
		for (int i = 0; i < SIMD_WIDTH / 2; i++) {
			u[2 * i] = __builtin_shufflevector(v[i], v[i + SIMD_WIDTH / 2], SIMD_LOW);
			u[2 * i + 1] = __builtin_shufflevector(v[i], v[i + SIMD_WIDTH / 2], SIMD_HIGH);
		}
#pragma GCC unroll 16
		for (int i = 0; i < SIMD_WIDTH; i++)
			v[i] = u[i];
	}
}

/* The sum, and the maximum (NaN are passed over), of each of SIMD_WIDTH vectors, in its lane. */
CPU_INLINE simd_f32 simd_sums(simd_f32 *v)
{
	simd_transpose(v);
#pragma GCC unroll 4
	for (int half = SIMD_WIDTH / 2; half > 0; half /= 2)
#pragma GCC unroll 8
		for (int i = 0; i < half; i++)
			v[i] += v[i + half];
	return v[0];
}

CPU_INLINE simd_f32 simd_maxima(simd_f32 *v)
{
	simd_transpose(v);
#pragma GCC unroll 4
	for (int half = SIMD_WIDTH / 2; half > 0; half /= 2)
#pragma GCC unroll 8
		for (int i = 0; i < half; i++)
			v[i] = simd_max(v[i], v[i + half]);
	return v[0];
}

/* c[m, nv * SIMD_WIDTH] (+)= a b with m and nv known to the compiler; a is read at row and column
 * strides. */
CPU_INLINE void simd_tile(const int m, const int nv, int64_t k, const float *a, int64_t a_row,
	int64_t a_col, const float *b, int64_t ldb, float *c, int64_t ldc, const int accumulate)
{
	simd_f32 acc[8][4];
#pragma GCC unroll 8
	for (int i = 0; i < m; i++)
#pragma GCC unroll 4
		for (int j = 0; j < nv; j++)
			acc[i][j] = accumulate ? simd_load(c + i * ldc + j * SIMD_WIDTH) : (simd_f32){ 0 };
	for (int64_t p = 0; p < k; p++) {
		simd_f32 row[4];
#pragma GCC unroll 4
		for (int j = 0; j < nv; j++)
			row[j] = simd_load(b + p * ldb + j * SIMD_WIDTH);
#pragma GCC unroll 8
		for (int i = 0; i < m; i++) {
			simd_f32 x = simd_broadcast(a + i * a_row + p * a_col);
#pragma GCC unroll 4
			for (int j = 0; j < nv; j++)
				acc[i][j] += x * row[j];
		}
	}
#pragma GCC unroll 8
	for (int i = 0; i < m; i++)
#pragma GCC unroll 4
		for (int j = 0; j < nv; j++)
			simd_store(c + i * ldc + j * SIMD_WIDTH, acc[i][j]);
}

/* c[m,n] (+)= a[m,k] b[k,n] for blocks that live in the cache; n in whole vectors. */
CPU_INLINE void simd_gemm(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_row,
	int64_t a_col, const float *b, int64_t ldb, float *c, int64_t ldc, const int accumulate)
{
	int64_t j = 0, i;
	for (; j + 2 * SIMD_WIDTH <= n; j += 2 * SIMD_WIDTH) {
		for (i = 0; i + 4 <= m; i += 4)
			simd_tile(
				4, 2, k, a + i * a_row, a_row, a_col, b + j, ldb, c + i * ldc + j, ldc, accumulate);
		for (; i < m; i++)
			simd_tile(
				1, 2, k, a + i * a_row, a_row, a_col, b + j, ldb, c + i * ldc + j, ldc, accumulate);
	}
	for (; j + SIMD_WIDTH <= n; j += SIMD_WIDTH) {
		for (i = 0; i + 4 <= m; i += 4)
			simd_tile(
				4, 1, k, a + i * a_row, a_row, a_col, b + j, ldb, c + i * ldc + j, ldc, accumulate);
		for (; i < m; i++)
			simd_tile(
				1, 1, k, a + i * a_row, a_row, a_col, b + j, ldb, c + i * ldc + j, ldc, accumulate);
	}
}

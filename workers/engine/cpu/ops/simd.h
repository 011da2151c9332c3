/* SPDX-License-Identifier: Apache-2.0
 * Small vector pieces for the operations: 16 floats as one value on every instruction set, an
 * exponential without branches, and a register-tiled product of small matrices. */
#pragma once

#include <stdint.h>

#define CPU_INLINE static inline __attribute__((always_inline, unused))

enum { SIMD_WIDTH = 16 };
typedef float simd_f32 __attribute__((vector_size(64), aligned(4), may_alias));

CPU_INLINE simd_f32 simd_load(const float *p)
{
	return *(const simd_f32 *)p;
}

CPU_INLINE void simd_store(float *p, simd_f32 v)
{
	*(simd_f32 *)p = v;
}

/* e^x to about 1 ulp of its range reduction; below -87.3 gives about 1e-38, above 88.3 saturates.
 * NaN stays NaN. */
CPU_INLINE float simd_exp(float x)
{
	float c = x < -87.3f ? -87.3f : x;
	c = c > 88.3f ? 88.3f : c;
	float t = c * 1.44269504f + 12582912.0f; /* rounds to an integer in the low bits */
	union {
		float f;
		uint32_t i;
	} n = { .f = t }, e;
	float k = t - 12582912.0f;
	float r = c - k * 0.693359375f + k * 2.12194440e-4f;
	float p = 1.9875691500e-4f;
	p = p * r + 1.3981999507e-3f;
	p = p * r + 8.3334519073e-3f;
	p = p * r + 4.1665795894e-2f;
	p = p * r + 1.6666665459e-1f;
	p = p * r + 5.0000001201e-1f;
	p = p * r * r + r + 1.0f;
	e.i = (n.i << 23) + 0x3f800000u; /* wraps: the exponent's bits are what counts */
	return p * e.f;
}

/* C[M, NV*16] (+)= A B with M and NV known to the compiler; a is read at row and column strides. */
CPU_INLINE void simd_tile(const int m, const int nv, int64_t k, const float *a, int64_t a_row,
	int64_t a_col, const float *b, int64_t ldb, float *c, int64_t ldc, const int accumulate)
{
	simd_f32 acc[8][2];
#pragma GCC unroll 8
	for (int i = 0; i < m; i++)
#pragma GCC unroll 2
		for (int j = 0; j < nv; j++)
			acc[i][j] = accumulate ? simd_load(c + i * ldc + j * SIMD_WIDTH) : (simd_f32){ 0 };
	for (int64_t p = 0; p < k; p++) {
		simd_f32 row[2];
#pragma GCC unroll 2
		for (int j = 0; j < nv; j++)
			row[j] = simd_load(b + p * ldb + j * SIMD_WIDTH);
#pragma GCC unroll 8
		for (int i = 0; i < m; i++)
#pragma GCC unroll 2
			for (int j = 0; j < nv; j++)
				acc[i][j] += a[i * a_row + p * a_col] * row[j];
	}
#pragma GCC unroll 8
	for (int i = 0; i < m; i++)
#pragma GCC unroll 2
		for (int j = 0; j < nv; j++)
			simd_store(c + i * ldc + j * SIMD_WIDTH, acc[i][j]);
}

/* The last columns, fewer than one vector. */
CPU_INLINE void simd_tail(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_row,
	int64_t a_col, const float *b, int64_t ldb, float *c, int64_t ldc, const int accumulate)
{
	for (int64_t i = 0; i < m; i++) {
		float acc[SIMD_WIDTH] = { 0 };
		for (int64_t p = 0; p < k; p++)
			for (int64_t j = 0; j < n; j++)
				acc[j] += a[i * a_row + p * a_col] * b[p * ldb + j];
		for (int64_t j = 0; j < n; j++)
			c[i * ldc + j] = acc[j] + (accumulate ? c[i * ldc + j] : 0.0f);
	}
}

/* C[m,n] (+)= A[m,k] B[k,n] for blocks that live in the cache. */
CPU_INLINE void simd_gemm(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_row,
	int64_t a_col, const float *b, int64_t ldb, float *c, int64_t ldc, const int accumulate)
{
	int64_t j = 0;
	for (; j + 2 * SIMD_WIDTH <= n; j += 2 * SIMD_WIDTH) {
		int64_t i = 0;
		for (; i + 8 <= m; i += 8)
			simd_tile(
				8, 2, k, a + i * a_row, a_row, a_col, b + j, ldb, c + i * ldc + j, ldc, accumulate);
		for (; i < m; i++)
			simd_tile(
				1, 2, k, a + i * a_row, a_row, a_col, b + j, ldb, c + i * ldc + j, ldc, accumulate);
	}
	for (; j + SIMD_WIDTH <= n; j += SIMD_WIDTH) {
		int64_t i = 0;
		for (; i + 8 <= m; i += 8)
			simd_tile(
				8, 1, k, a + i * a_row, a_row, a_col, b + j, ldb, c + i * ldc + j, ldc, accumulate);
		for (; i < m; i++)
			simd_tile(
				1, 1, k, a + i * a_row, a_row, a_col, b + j, ldb, c + i * ldc + j, ldc, accumulate);
	}
	if (j < n)
		simd_tail(m, n - j, k, a, a_row, a_col, b + j, ldb, c + j, ldc, accumulate);
}

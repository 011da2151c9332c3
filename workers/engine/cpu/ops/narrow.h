/* SPDX-License-Identifier: Apache-2.0
 * Vectors between fp32 and the two narrow types: to nearest even, NaN stays NaN. Used by act.h and
 * by the product kernels. Private to cpu/ops. */
#pragma once

#include "workers/engine/cpu/ops/simd.h"

CPU_INLINE simd_u32 narrow_bits(simd_u16 v)
{
#if defined(__AVX512F__)
	return (simd_u32)_mm512_cvtepu16_epi32((__m256i)v);
#else
	return __builtin_convertvector(v, simd_u32);
#endif
}

CPU_INLINE simd_f32 bf16_widen(simd_u16 v)
{
	return (simd_f32)(narrow_bits(v) << 16);
}

/* The 32 bits rounded to bf16 in the upper half, the lower half still to be cut off. */
CPU_INLINE simd_u32 bf16_round_bits(simd_f32 v)
{
	simd_u32 u = (simd_u32)v;
	simd_u32 rounded = u + 0x7fffu + ((u >> 16) & 1u);
	simd_u32 nan = (simd_u32)((u & 0x7fffffffu) > 0x7f800000u);
	return (rounded & ~nan) | ((u | 0x400000u) & nan);
}

CPU_INLINE simd_u16 bf16_round(simd_f32 v)
{
	return __builtin_convertvector(bf16_round_bits(v) >> 16, simd_u16);
}

CPU_INLINE simd_f32 f16_widen(simd_u16 v)
{
#if defined(__AVX512F__)
	return (simd_f32)_mm512_cvtph_ps((__m256i)v);
#elif defined(__F16C__)
	return (simd_f32)_mm256_cvtph_ps((__m128i)v);
#else
	/* Multiplying by 2^112 moves the exponent, subnormals too; infinity and NaN are set apart. */
	simd_u32 h = narrow_bits(v);
	simd_f32 magnitude = (simd_f32)((h & 0x7fffu) << 13) * 0x1p112f;
	simd_u32 special = (simd_u32)((h & 0x7c00u) == 0x7c00u) & 0x7f800000u;
	return (simd_f32)((simd_u32)magnitude | special | (h & 0x8000u) << 16);
#endif
}

CPU_INLINE simd_u16 f16_round(simd_f32 v)
{
#if defined(__AVX512F__)
	return (simd_u16)_mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(__F16C__)
	return (simd_u16)_mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT);
#else
	simd_u32 u = (simd_u32)v, sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
	simd_u32 normal = (a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13;
	simd_u32 small = (simd_u32)((simd_f32)a + 0.5f) - 0x3f000000u; /* adding rounds to 2^-24 */
	simd_u32 is_small = (simd_u32)(a < 0x38800000u), is_large = (simd_u32)(a >= 0x477ff000u);
	simd_u32 is_nan = (simd_u32)(a > 0x7f800000u);
	simd_u32 r = (normal & ~is_small) | (small & is_small);
	r = (r & ~is_large) | (0x7c00u & is_large);
	return __builtin_convertvector(r | (0x200u & is_nan) | sign, simd_u16);
#endif
}

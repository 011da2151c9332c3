/* SPDX-License-Identifier: Apache-2.0
 * One value between fp32 and the two 16-bit types, by its bits: bf16 and IEEE half ("fp16"). Rounds
 * to nearest even; a NaN stays a quiet one; beyond the largest is infinity. Pure. The engine's
 * kernels have vectors of their own; files and collectives use these. */
#pragma once

#include <stdint.h>
#include <string.h>

static inline float float16_of_bits(uint32_t bits)
{
	float x;
	memcpy(&x, &bits, sizeof(x));
	return x;
}

static inline uint32_t float16_bits_of(float x)
{
	uint32_t bits;
	memcpy(&bits, &x, sizeof(bits));
	return bits;
}

static inline float float16_from_bf16(uint16_t h)
{
	return float16_of_bits((uint32_t)h << 16);
}

static inline uint16_t float16_to_bf16(float x)
{
	uint32_t b = float16_bits_of(x), nan = b >> 16 | 0x40;
	uint32_t rounded = (b + 0x7fff + (b >> 16 & 1)) >> 16;
	return (uint16_t)((b & 0x7fffffff) > 0x7f800000 ? nan : rounded);
}

static inline float float16_from_half(uint16_t h)
{
	uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = (h >> 10) & 31, rest = h & 0x3ff;
	if (exponent == 31)
		return float16_of_bits(sign | 0x7f800000 | rest << 13);
	if (exponent == 0) { /* zero and subnormals: rest * 2^-24 */
		float x = (float)rest * 0x1.0p-24F;
		return sign ? -x : x;
	}
	return float16_of_bits(sign | (exponent + 112) << 23 | rest << 13);
}

static inline uint16_t float16_to_half(float x)
{
	uint32_t b = float16_bits_of(x), sign = b >> 16 & 0x8000, magnitude = b & 0x7fffffff;
	if (magnitude > 0x7f800000)
		return (uint16_t)(sign | 0x7e00);
	if (magnitude >= 0x477ff000) /* 65520 and above round to infinity */
		return (uint16_t)(sign | 0x7c00);
	if (magnitude < 0x38800000) {
		/* Below 2^-14: adding 1/2 leaves the value in units of 2^-24 in the low bits. */
		float y = float16_of_bits(magnitude) + 0.5F;
		return (uint16_t)(sign | (float16_bits_of(y) - float16_bits_of(0.5F)));
	}
	magnitude += 0xfff + (magnitude >> 13 & 1);
	return (uint16_t)(sign | (magnitude - (112U << 23)) >> 13);
}

/* SPDX-License-Identifier: Apache-2.0
 * Conversions of small floating-point types by their bits. */
#include "workers/trainer/half.h"

#include <string.h>

static float of_bits(uint32_t bits)
{
	float x;
	memcpy(&x, &bits, sizeof(x));
	return x;
}

static uint32_t bits_of(float x)
{
	uint32_t bits;
	memcpy(&bits, &x, sizeof(bits));
	return bits;
}

static float from_f16(uint16_t h)
{
	uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = (h >> 10) & 31, rest = h & 0x3ff;
	if (exponent == 31)
		return of_bits(sign | 0x7f800000 | rest << 13);
	if (exponent == 0) { /* zero and subnormals: rest * 2^-24 */
		float x = (float)rest * 0x1.0p-24F;
		return sign ? -x : x;
	}
	return of_bits(sign | (exponent + 112) << 23 | rest << 13);
}

static uint16_t to_bf16(float x)
{
	uint32_t b = bits_of(x);
	if ((b & 0x7fffffff) > 0x7f800000)
		return (uint16_t)(b >> 16 | 0x40); /* a quiet NaN stays one */
	return (uint16_t)((b + 0x7fff + (b >> 16 & 1)) >> 16);
}

static uint16_t to_f16(float x)
{
	uint32_t b = bits_of(x), sign = b >> 16 & 0x8000, magnitude = b & 0x7fffffff;
	if (magnitude > 0x7f800000)
		return (uint16_t)(sign | 0x7e00);
	if (magnitude >= 0x477ff000) /* 65520 and above round to infinity */
		return (uint16_t)(sign | 0x7c00);
	if (magnitude < 0x38800000) {
		/* Below 2^-14: adding 1/2 leaves the value in units of 2^-24 in the low bits. */
		float y = of_bits(magnitude) + 0.5F;
		return (uint16_t)(sign | (bits_of(y) - bits_of(0.5F)));
	}
	magnitude += 0xfff + (magnitude >> 13 & 1);
	return (uint16_t)(sign | (magnitude - (112U << 23)) >> 13);
}

bool half_type_of(const char *dtype, enum half_type *ret)
{
	static const char *const words[] = {
		[HALF_F32] = "F32", [HALF_BF16] = "BF16", [HALF_F16] = "F16"
	};
	for (int i = 0; i <= HALF_F16; i++)
		if (strcmp(dtype, words[i]) == 0) {
			*ret = (enum half_type)i;
			return true;
		}
	return false;
}

static float load(enum half_type type, const char *p, int64_t i)
{
	if (type == HALF_F32) {
		float x;
		memcpy(&x, p + 4 * i, sizeof(x));
		return x;
	}
	uint16_t h;
	memcpy(&h, p + 2 * i, sizeof(h));
	return type == HALF_BF16 ? of_bits((uint32_t)h << 16) : from_f16(h);
}

static void store(enum half_type type, char *p, int64_t i, float x)
{
	if (type == HALF_F32) {
		memcpy(p + 4 * i, &x, sizeof(x));
		return;
	}
	uint16_t h = type == HALF_BF16 ? to_bf16(x) : to_f16(x);
	memcpy(p + 2 * i, &h, sizeof(h));
}

void half_convert(
	int64_t count, enum half_type from_type, const void *from, enum half_type to_type, void *to)
{
	if (from_type == to_type) {
		memcpy(to, from, (size_t)count * (from_type == HALF_F32 ? 4 : 2));
		return;
	}
	for (int64_t i = 0; i < count; i++)
		store(to_type, to, i, load(from_type, from, i));
}

/* SPDX-License-Identifier: Apache-2.0
 * Conversions of small floating-point types by their bits. */
#include "workers/trainer/half.h"

#include "core/base/float16.h"

#include <string.h>

static const char *const words[] = { [HALF_F32] = "F32", [HALF_BF16] = "BF16", [HALF_F16] = "F16" };

const char *half_word(enum half_type type)
{
	return words[type];
}

bool half_type_of(const char *dtype, enum half_type *ret)
{
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
	return type == HALF_BF16 ? float16_from_bf16(h) : float16_from_half(h);
}

static void store(enum half_type type, char *p, int64_t i, float x)
{
	if (type == HALF_F32) {
		memcpy(p + 4 * i, &x, sizeof(x));
		return;
	}
	uint16_t h = type == HALF_BF16 ? float16_to_bf16(x) : float16_to_half(x);
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

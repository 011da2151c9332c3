/* SPDX-License-Identifier: Apache-2.0
 * Tensors between fp32, bf16 and fp16, for files whose type is not the engine's. Rounds to nearest
 * even; every bf16 and fp16 value is an fp32 value. Pure. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum half_type { HALF_F32, HALF_BF16, HALF_F16 };

/* The safetensors word of a type; false when it is none of the three. */
bool half_type_of(const char *dtype, enum half_type *ret);
const char *half_word(enum half_type type);

/* Of one element. */
static inline int64_t half_bytes(enum half_type type)
{
	return type == HALF_F32 ? 4 : 2;
}

/* count elements; from and to need no alignment and do not overlap. */
void half_convert(
	int64_t count, enum half_type from_type, const void *from, enum half_type to_type, void *to);

/* SPDX-License-Identifier: Apache-2.0
 * What operations over channels of any number need beside act.h: bytes by whole vectors and the
 * last part of a row (n >= SIMD_WIDTH is a vector, less is its first n values), and masks. Private
 * to cpu/ops. */
#pragma once

#include "workers/engine/cpu/ops/act.h"

typedef uint8_t simd_u8 SIMD_VECTOR(uint8_t) __attribute__((aligned(1)));

CPU_INLINE simd_i32 lanes_load_u8(const uint8_t *p, int64_t n)
{
	simd_u8 v = { 0 };
	if (n >= SIMD_WIDTH)
		v = *(const simd_u8 *)p;
	else
		memcpy(&v, p, (size_t)n % SIMD_WIDTH); /* the compiler sees the bound */
	return __builtin_convertvector(v, simd_i32);
}

CPU_INLINE void lanes_store_u8(uint8_t *p, simd_i32 x, int64_t n)
{
	simd_u8 v = __builtin_convertvector(x, simd_u8);
	if (n >= SIMD_WIDTH)
		*(simd_u8 *)p = v;
	else
		memcpy(p, &v, (size_t)n % SIMD_WIDTH);
}

/* v where the mask is set, 0 elsewhere. */
CPU_INLINE simd_f32 lanes_keep(simd_i32 mask, simd_f32 v)
{
	return (simd_f32)((simd_i32)v & mask);
}

/* max(v, 0); NaN stays. */
CPU_INLINE simd_f32 lanes_relu(simd_f32 v)
{
	return lanes_keep(~(simd_i32)(v < (simd_f32){ 0 }), v);
}

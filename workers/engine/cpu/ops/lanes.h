/* SPDX-License-Identifier: Apache-2.0
 * Whole vectors and the last part of a row by one call: n >= SIMD_WIDTH is a vector, less is its
 * first n values. For operations over channels of any number. Private to cpu/ops. */
#pragma once

#include "workers/engine/cpu/ops/act.h"

typedef uint8_t simd_u8 SIMD_VECTOR(uint8_t) __attribute__((aligned(1)));

CPU_INLINE simd_f32 lanes_load(const act_t *p, int64_t n)
{
	return n >= SIMD_WIDTH ? act_load(p) : act_load_part(p, n);
}

CPU_INLINE void lanes_store(act_t *p, simd_f32 v, int64_t n)
{
	if (n >= SIMD_WIDTH)
		act_store(p, v);
	else
		act_store_part(p, v, n);
}

CPU_INLINE simd_f32 lanes_load_f32(const float *p, int64_t n)
{
	return n >= SIMD_WIDTH ? simd_load(p) : simd_load_part(p, n);
}

CPU_INLINE void lanes_store_f32(float *p, simd_f32 v, int64_t n)
{
	if (n >= SIMD_WIDTH)
		simd_store(p, v);
	else
		simd_store_part(p, v, n);
}

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

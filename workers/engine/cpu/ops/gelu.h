/* SPDX-License-Identifier: Apache-2.0
 * GELU in its tanh form, as x * sigmoid(2u) with u = sqrt(2/pi) (x + 0.044715 x^3): no
 * cancellation where x is very negative. Private to cpu/ops. */
#pragma once

#include "workers/engine/cpu/ops/simd.h"

static const float gelu_two_root = 1.5957691216f; /* 2 sqrt(2/pi) */
static const float gelu_cubic = 0.044715f;

CPU_INLINE simd_f32 gelu_value(simd_f32 x)
{
	simd_f32 u = x * (gelu_two_root * gelu_cubic * (x * x) + gelu_two_root); /* 2u */
	return x / (1.0f + simd_exp(-u));
}

CPU_INLINE simd_f32 gelu_slope(simd_f32 x)
{
	simd_f32 square = x * x;
	simd_f32 u = x * (gelu_two_root * gelu_cubic * square + gelu_two_root);
	simd_f32 e = simd_exp(-u), s = 1.0f / (1.0f + e);
	simd_f32 du = 3.0f * gelu_two_root * gelu_cubic * square + gelu_two_root;
	return s + x * s * (e * s) * du; /* e s = 1 - s, exact also where s is about 1 */
}

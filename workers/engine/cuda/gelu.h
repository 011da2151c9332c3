/* SPDX-License-Identifier: Apache-2.0
 * GELU in its tanh form, as x * sigmoid(2u) with u = sqrt(2/pi) (x + 0.044715 x^3): no
 * cancellation where x is very negative. Whoever computes GELU again from what was stored must get
 * the same bits, so products and PLAN_OP_GELU share this, and fused operations are written out. */
#pragma once

#include "workers/engine/cuda/kernel.h"

#define GELU_TWO_ROOT 1.5957691216f /* 2 sqrt(2/pi) */
#define GELU_CUBIC 0.044715f

static __device__ __forceinline__ float gelu_value(float x)
{
	float u = x * fmaf(GELU_TWO_ROOT * GELU_CUBIC, x * x, GELU_TWO_ROOT); /* 2u */
	return x / (1.0f + expf(-u));
}

static __device__ __forceinline__ float gelu_slope(float x)
{
	float square = x * x;
	float u = x * fmaf(GELU_TWO_ROOT * GELU_CUBIC, square, GELU_TWO_ROOT);
	float e = expf(fminf(-u, 87.0f)), s = 1.0f / (1.0f + e); /* e finite: e s is 1 - s also there */
	float du = fmaf(3.0f * GELU_TWO_ROOT * GELU_CUBIC, square, GELU_TWO_ROOT);
	return fmaf(x * s * (e * s), du, s);
}

/* SPDX-License-Identifier: Apache-2.0
 * Functions of one value whose accuracy follows the activation type T: exact to about an ulp for
 * fp32, the processor's fast ones where the result is rounded to 8 or 11 bits anyway. GELU is here
 * because a product's epilogue and PLAN_OP_GELU must agree bit by bit. Private to cuda/ops. */
#pragma once

#include "workers/engine/cuda/kernel.h"

template <typename T> static __device__ __forceinline__ float act_exp(float x)
{
	return sizeof(T) == sizeof(float) ? expf(x) : __expf(x);
}

/* 0 where y is infinite. */
template <typename T> static __device__ __forceinline__ float act_quotient(float x, float y)
{
	return sizeof(T) == sizeof(float) ? x / y : __fdividef(x, y);
}

/* tanh form, as x * sigmoid(2u) with u = sqrt(2/pi) (x + 0.044715 x^3): no cancellation where x is
 * very negative. */
template <typename T> static __device__ __forceinline__ float act_gelu(float x)
{
	const float two_root = 1.5957691216f; /* 2 sqrt(2/pi) */
	float u = x * (two_root * 0.044715f * (x * x) + two_root);
	return act_quotient<T>(x, 1.0f + act_exp<T>(-u));
}

template <typename T> static __device__ __forceinline__ float act_gelu_slope(float x)
{
	const float two_root = 1.5957691216f;
	float square = x * x, u = x * (two_root * 0.044715f * square + two_root);
	float e = act_exp<T>(-u), s = act_quotient<T>(1.0f, 1.0f + e);
	float du = 3.0f * two_root * 0.044715f * square + two_root;
	/* e s = 1 - s, exact also where s is about 1; where e is infinite s is 0. */
	float rest = s > 0.0f ? e * s : 1.0f;
	return s + x * s * rest * du;
}

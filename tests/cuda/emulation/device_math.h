/* SPDX-License-Identifier: Apache-2.0
 * Functions of device code that the CUDA headers leave to nvcc: fast and rounded arithmetic, bits,
 * conversions, cached loads, and what of bf16 and fp16 has no host code. Fast ones are exact here:
 * the comparison with the CPU backend has the tolerance for both. Included by emulation.h. */
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <math.h>
#include <stdint.h>
#include <string.h>
#include <type_traits>

/* ------------------------------------------------------------------------------ min, max, floats
 */

template <typename A, typename B, typename C = std::common_type_t<A, B>>
static inline std::enable_if_t<std::is_integral<C>::value, C> min(A a, B b)
{
	return (C)a < (C)b ? (C)a : (C)b;
}
template <typename A, typename B, typename C = std::common_type_t<A, B>>
static inline std::enable_if_t<std::is_integral<C>::value, C> max(A a, B b)
{
	return (C)a > (C)b ? (C)a : (C)b;
}
template <typename A, typename B, typename C = std::common_type_t<A, B>>
static inline std::enable_if_t<std::is_floating_point<C>::value, C> min(A a, B b)
{
	return (C)fmin((C)a, (C)b);
}
template <typename A, typename B, typename C = std::common_type_t<A, B>>
static inline std::enable_if_t<std::is_floating_point<C>::value, C> max(A a, B b)
{
	return (C)fmax((C)a, (C)b);
}

static inline float rsqrtf(float x)
{
	return (float)(1.0 / sqrt((double)x));
}
static inline double rsqrt(double x)
{
	return 1.0 / sqrt(x);
}
static inline float normcdff(float x)
{
	return (float)(0.5 * erfc(-(double)x * 0.70710678118654752440));
}
static inline float __saturatef(float x)
{
	return x > 0.0f ? x < 1.0f ? x : 1.0f : 0.0f;
}

#define EMULATION_FLOAT_1(name, value) \
	static inline float name(float x)  \
	{                                  \
		return value;                  \
	}
#define EMULATION_FLOAT_2(name, value)         \
	static inline float name(float x, float y) \
	{                                          \
		return value;                          \
	}
EMULATION_FLOAT_1(__frcp_rn, 1.0f / x)
EMULATION_FLOAT_1(__fsqrt_rn, sqrtf(x))
EMULATION_FLOAT_1(__frsqrt_rn, rsqrtf(x))
EMULATION_FLOAT_2(__fdividef, x / y)
EMULATION_FLOAT_2(fdividef, x / y)
EMULATION_FLOAT_2(__fdiv_rn, x / y)
EMULATION_FLOAT_2(__fadd_rn, x + y)
EMULATION_FLOAT_2(__fsub_rn, x - y)
EMULATION_FLOAT_2(__fmul_rn, x *y)
#undef EMULATION_FLOAT_1
#undef EMULATION_FLOAT_2
static inline float __fmaf_rn(float x, float y, float z)
{
	return fmaf(x, y, z);
}
static inline double __dadd_rn(double x, double y)
{
	return x + y;
}
static inline double __dmul_rn(double x, double y)
{
	return x * y;
}
static inline double __fma_rn(double x, double y, double z)
{
	return fma(x, y, z);
}
/* libm has these names for itself, with C linkage. */
#define __expf(x) expf(x)
#define __exp10f(x) exp10f(x)
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
#define __log10f(x) log10f(x)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
#define __tanf(x) tanf(x)
#define __tanhf(x) tanhf(x)
#define __powf(x, y) powf(x, y)
#define __sincosf(x, ret_sin, ret_cos) sincosf(x, ret_sin, ret_cos)

/* ------------------------------------------------------------------------------------ conversions
 */

template <typename To, typename From> static inline To emulation_bits(From x)
{
	static_assert(sizeof(To) == sizeof(From), "the same bits");
	To to;
	memcpy(&to, &x, sizeof(to));
	return to;
}

/* A conversion out of range gives the nearest value, and NaN gives 0: as devices do. */
template <typename To> static inline To emulation_integer_of(double x)
{
	constexpr To low = std::is_signed<To>::value ? (To)((uint64_t)1 << (sizeof(To) * 8 - 1)) : 0;
	constexpr To high = (To)~low;
	if (isnan(x))
		return 0;
	return x <= (double)low ? low : x >= (double)high ? high : (To)x;
}

#define EMULATION_CONVERT(name, to, from, value) \
	static inline to name(from x)                \
	{                                            \
		return value;                            \
	}
EMULATION_CONVERT(__float_as_int, int, float, emulation_bits<int>(x))
EMULATION_CONVERT(__float_as_uint, unsigned, float, emulation_bits<unsigned>(x))
EMULATION_CONVERT(__int_as_float, float, int, emulation_bits<float>(x))
EMULATION_CONVERT(__uint_as_float, float, unsigned, emulation_bits<float>(x))
EMULATION_CONVERT(__double_as_longlong, long long, double, emulation_bits<long long>(x))
EMULATION_CONVERT(__longlong_as_double, double, long long, emulation_bits<double>(x))
EMULATION_CONVERT(__float2int_rn, int, float, emulation_integer_of<int>(nearbyint(x)))
EMULATION_CONVERT(__float2int_rz, int, float, emulation_integer_of<int>(trunc(x)))
EMULATION_CONVERT(__float2int_rd, int, float, emulation_integer_of<int>(floor(x)))
EMULATION_CONVERT(__float2int_ru, int, float, emulation_integer_of<int>(ceil(x)))
EMULATION_CONVERT(__float2uint_rn, unsigned, float, emulation_integer_of<unsigned>(nearbyint(x)))
EMULATION_CONVERT(__float2uint_rz, unsigned, float, emulation_integer_of<unsigned>(trunc(x)))
EMULATION_CONVERT(__float2ll_rn, long long, float, emulation_integer_of<long long>(nearbyint(x)))
EMULATION_CONVERT(__double2ll_rn, long long, double, emulation_integer_of<long long>(nearbyint(x)))
EMULATION_CONVERT(__double2float_rn, float, double, (float)x)
EMULATION_CONVERT(__int2float_rn, float, int, (float)x)
EMULATION_CONVERT(__uint2float_rn, float, unsigned, (float)x)
EMULATION_CONVERT(__ll2float_rn, float, long long, (float)x)
EMULATION_CONVERT(__ull2float_rn, float, unsigned long long, (float)x)

/* ------------------------------------------------------------------------------------------- bits
 */

EMULATION_CONVERT(__popc, int, unsigned, __builtin_popcount(x))
EMULATION_CONVERT(__popcll, int, unsigned long long, __builtin_popcountll(x))
EMULATION_CONVERT(__clz, int, int, x == 0 ? 32 : __builtin_clz((unsigned)x))
EMULATION_CONVERT(__clzll, int, long long, x == 0 ? 64 : __builtin_clzll((unsigned long long)x))
EMULATION_CONVERT(__ffs, int, int, __builtin_ffs(x))
EMULATION_CONVERT(__ffsll, int, long long, __builtin_ffsll(x))
#undef EMULATION_CONVERT
static inline unsigned __umulhi(unsigned x, unsigned y)
{
	return (unsigned)(((uint64_t)x * y) >> 32);
}
static inline int __mulhi(int x, int y)
{
	return (int)(((int64_t)x * y) >> 32);
}
static inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y)
{
	return (unsigned long long)(((unsigned __int128)x * y) >> 64);
}
static inline unsigned __brev(unsigned x)
{
	unsigned y = 0;
	for (int i = 0; i < 32; i++)
		y |= (x >> i & 1) << (31 - i);
	return y;
}
static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned select)
{
	uint64_t both = (uint64_t)y << 32 | x;
	unsigned result = 0;
	for (int i = 0; i < 4; i++)
		result |= (unsigned)(both >> (8 * (select >> (4 * i) & 7)) & 0xFF) << (8 * i);
	return result;
}
static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift)
{
	return (unsigned)((((uint64_t)high << 32 | low) << (shift & 31)) >> 32);
}
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift)
{
	return (unsigned)(((uint64_t)high << 32 | low) >> (shift & 31));
}

/* --------------------------------------------------------------------------------- cached accesses
 */

#define EMULATION_LOAD(name)                               \
	template <typename T> static inline T name(const T *p) \
	{                                                      \
		return *p;                                         \
	}
#define EMULATION_STORE(name)                                                    \
	template <typename T> static inline void name(T *p, std::common_type_t<T> x) \
	{                                                                            \
		*p = x;                                                                  \
	}
EMULATION_LOAD(__ldg)
EMULATION_LOAD(__ldcg)
EMULATION_LOAD(__ldca)
EMULATION_LOAD(__ldcs)
EMULATION_LOAD(__ldlu)
EMULATION_LOAD(__ldcv)
EMULATION_STORE(__stwb)
EMULATION_STORE(__stcg)
EMULATION_STORE(__stcs)
EMULATION_STORE(__stwt)
#undef EMULATION_LOAD
#undef EMULATION_STORE

/* ---------------------------------------------------------------------------------- bf16 and fp16
 */

/* One rounding: the product is exact in fp64, and the sum has bits to spare. */
static inline __nv_bfloat16 __hfma(__nv_bfloat16 x, __nv_bfloat16 y, __nv_bfloat16 z)
{
	return __double2bfloat16(
		fma((double)__bfloat162float(x), (double)__bfloat162float(y), (double)__bfloat162float(z)));
}
static inline __half __hfma(__half x, __half y, __half z)
{
	return __double2half(
		fma((double)__half2float(x), (double)__half2float(y), (double)__half2float(z)));
}
static inline __nv_bfloat162 __hfma2(__nv_bfloat162 x, __nv_bfloat162 y, __nv_bfloat162 z)
{
	return __halves2bfloat162(__hfma(__low2bfloat16(x), __low2bfloat16(y), __low2bfloat16(z)),
		__hfma(__high2bfloat16(x), __high2bfloat16(y), __high2bfloat16(z)));
}
static inline __half2 __hfma2(__half2 x, __half2 y, __half2 z)
{
	return __halves2half2(__hfma(__low2half(x), __low2half(y), __low2half(z)),
		__hfma(__high2half(x), __high2half(y), __high2half(z)));
}

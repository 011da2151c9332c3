/* SPDX-License-Identifier: Apache-2.0
 * What every kernel file of cuda/ops includes: launches, shared memory, activation types,
 * 16-byte packs, reductions of a warp and of a block. Kernels are compiled by nvcc for devices, and
 * unchanged by the host's C++ compiler with tests/cuda/emulation, which brings the three macros of
 * CUDA_EMULATION and the built-in names; only this file and mma.h know the difference. */
#pragma once

#include "workers/engine/cuda/cuda.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <stdint.h>
#include <string.h>

/* CUDA_LAUNCH(kernel, grid, block, shared bytes, arguments...): on the thread's stream. A kernel
 * with several template arguments stands in parentheses.
 * CUDA_SHARED(type, name, count): an array of the block's; holds anything until written.
 * CUDA_SHARED_DYNAMIC(type, name): the launch's shared bytes; one a kernel. */
#ifdef CUDA_EMULATION
#include "tests/cuda/emulation/emulation.h"
#else
#define CUDA_LAUNCH(kernel, grid, block, shared_bytes, ...)                \
	do {                                                                   \
		kernel<<<grid, block, shared_bytes, cuda_stream()>>>(__VA_ARGS__); \
		cuda_launched(#kernel);                                            \
	} while (0)
#define CUDA_SHARED(type, name, count) __shared__ type name[count]
#define CUDA_SHARED_DYNAMIC(type, name)                         \
	extern __shared__ __align__(16) unsigned char cuda_bytes[]; \
	type *const name = reinterpret_cast<type *>(cuda_bytes)
#endif

enum {
	CUDA_WARP = 32,
	CUDA_THREADS = 256, /* of a block, where nothing asks for another number */
	CUDA_GRID_PER_MULTIPROCESSOR = 8,
};

/* Exports a function template over the activation type as the three functions of the tables. */
#define CUDA_EXPORT(name, parameters, arguments) \
	extern "C" void name##_cuda_f32 parameters   \
	{                                            \
		name<float> arguments;                   \
	}                                            \
	extern "C" void name##_cuda_bf16 parameters  \
	{                                            \
		name<__nv_bfloat16> arguments;           \
	}                                            \
	extern "C" void name##_cuda_f16 parameters   \
	{                                            \
		name<__half> arguments;                  \
	}

/* ----------------------------------------------------------------------------- activation types */

static __device__ __forceinline__ float act_float(float x)
{
	return x;
}
static __device__ __forceinline__ float act_float(__nv_bfloat16 x)
{
	return __bfloat162float(x);
}
static __device__ __forceinline__ float act_float(__half x)
{
	return __half2float(x);
}

/* To nearest even; NaN stays NaN. */
template <typename T> static __device__ __forceinline__ T act_round(float x);
template <> __device__ __forceinline__ float act_round<float>(float x)
{
	return x;
}
template <> __device__ __forceinline__ __nv_bfloat16 act_round<__nv_bfloat16>(float x)
{
	return __float2bfloat16_rn(x);
}
template <> __device__ __forceinline__ __half act_round<__half>(float x)
{
	return __float2half_rn(x);
}

/* 16 bytes of values, moved by one instruction. p is a multiple of 16. */
template <typename T> struct cuda_pack {
	static constexpr int count = 16 / (int)sizeof(T);
	T v[count];
};

template <typename T> static __device__ __forceinline__ cuda_pack<T> pack_load(const T *p)
{
	cuda_pack<T> x;
	int4 bits = *reinterpret_cast<const int4 *>(p);
	memcpy(&x, &bits, sizeof(bits));
	return x;
}

template <typename T> static __device__ __forceinline__ void pack_store(T *p, const cuda_pack<T> &x)
{
	int4 bits;
	memcpy(&bits, &x, sizeof(bits));
	*reinterpret_cast<int4 *>(p) = bits;
}

/* Whether packs may be used from p on. */
static inline bool pack_fits(const void *p)
{
	return reinterpret_cast<uintptr_t>(p) % 16 == 0;
}

/* ------------------------------------------------------------------------------------- geometry */

/* Element of a loop over [0, count) by the whole grid, which takes any count in any grid:
 * for (int64_t i = grid_begin(); i < count; i += grid_stride()) */
static __device__ __forceinline__ int64_t grid_begin(void)
{
	return (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
}
static __device__ __forceinline__ int64_t grid_stride(void)
{
	return (int64_t)gridDim.x * blockDim.x;
}

/* Blocks for such a loop: no more than the device has room for. */
static inline unsigned grid_of(int64_t count, int threads)
{
	int64_t want = (count + threads - 1) / threads;
	int64_t room = (int64_t)cuda_multiprocessors() * CUDA_GRID_PER_MULTIPROCESSOR;
	return (unsigned)(want < 1 ? 1 : want < room ? want : room);
}

/* ----------------------------------------------------------------------------------- reductions */

/* Every lane gets the result; all lanes of the warp take part. The order of additions is fixed. */
template <typename F> static __device__ __forceinline__ F warp_sum(F x)
{
	for (int step = CUDA_WARP / 2; step > 0; step /= 2)
		x += __shfl_xor_sync(0xffffffffu, x, step);
	return x;
}

static __device__ __forceinline__ float warp_max(float x)
{
	for (int step = CUDA_WARP / 2; step > 0; step /= 2)
		x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
	return x;
}

/* Every thread gets the sum over the block of THREADS threads (a multiple of CUDA_WARP), in a fixed
 * order. room: THREADS / CUDA_WARP values of the block's, free again when it returns. */
template <int THREADS, typename F> static __device__ __forceinline__ F block_sum(F x, F *room)
{
	x = warp_sum(x);
	if (threadIdx.x % CUDA_WARP == 0)
		room[threadIdx.x / CUDA_WARP] = x;
	__syncthreads();
	F sum = 0;
	for (int i = 0; i < THREADS / CUDA_WARP; i++)
		sum += room[i];
	__syncthreads();
	return sum;
}

template <int THREADS> static __device__ __forceinline__ float block_max(float x, float *room)
{
	x = warp_max(x);
	if (threadIdx.x % CUDA_WARP == 0)
		room[threadIdx.x / CUDA_WARP] = x;
	__syncthreads();
	float largest = room[0];
	for (int i = 1; i < THREADS / CUDA_WARP; i++)
		largest = fmaxf(largest, room[i]);
	__syncthreads();
	return largest;
}

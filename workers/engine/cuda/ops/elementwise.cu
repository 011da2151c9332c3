/* SPDX-License-Identifier: Apache-2.0
 * Functions of each element alone: PLAN_OP_CAST, PLAN_OP_ADD, PLAN_OP_ACCUMULATE, PLAN_OP_AVERAGE,
 * PLAN_OP_RELU_BACKWARD, and filling. One file, since each is a line and a file costs the compiler
 * seconds. A thread takes packs of a flat range (map.h). */
#include "workers/engine/cuda/ops/map.h"

/* fp32 to the activation type, nearest even. */
struct cast_value {
	static constexpr int operands = 1;
	__device__ __forceinline__ float operator()(float x, float) const { return x; }
};

template <typename T> static void cast(int64_t count, const float *x, void *y)
{
	map<T, float>(count, cast_value(), x, NULL, y);
}

struct add_value {
	static constexpr int operands = 2;
	__device__ __forceinline__ float operator()(float y, float a) const { return y + a; }
};

template <typename T> static void add(int64_t count, const void *a, void *y)
{
	map<T, T>(count, add_value(), y, a, y);
}

struct relu_slope {
	static constexpr int operands = 2;
	__device__ __forceinline__ float operator()(float y, float dy) const
	{
		return y > 0.0f ? dy : 0.0f;
	}
};

template <typename T>
static void relu_backward(int64_t count, const void *y, const void *dy, void *dx)
{
	map<T, T>(count, relu_slope(), y, dy, dx);
}

struct average_value {
	static constexpr int operands = 2;
	float step;
	__device__ __forceinline__ float operator()(float y, float x) const
	{
		return y + step * (x - y);
	}
};

struct fill_value {
	static constexpr int operands = 0;
	float value;
	__device__ __forceinline__ float operator()(float, float) const { return value; }
};

CUDA_EXPORT(cast, (int64_t count, const float *x, void *y), (count, x, y))
CUDA_EXPORT(add, (int64_t count, const void *a, void *y), (count, a, y))
CUDA_EXPORT(
	relu_backward, (int64_t count, const void *y, const void *dy, void *dx), (count, y, dy, dx))

extern "C" void add_f32_cuda(int64_t count, const float *x, float *y)
{
	add<float>(count, x, y);
}

extern "C" void average_cuda(int64_t count, float decay, const float *x, float *y)
{
	map<float, float>(count, average_value{ 1.0f - decay }, y, x, y);
}

extern "C" void fill_cuda(int64_t count, float value, float *y)
{
	map<float, float>(count, fill_value{ value }, NULL, NULL, y);
}

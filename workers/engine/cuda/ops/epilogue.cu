/* SPDX-License-Identifier: Apache-2.0
 * What follows a product's sums (cuda/epilogue.h). A thread takes a pack of 16 bytes of a row's
 * output at a time where strides and pointers allow, otherwise one element. */
#include "workers/engine/cuda/epilogue.h"
#include "workers/engine/cuda/ops/act_math.h"

/* NaN stays NaN: a broken run must show. */
static __device__ __forceinline__ float relu_value(float x)
{
	return x < 0.0f ? 0.0f : x;
}

/* COUNT neighbours of a type; with COUNT > 1 from a multiple of 16 bytes. */
template <typename T, int COUNT> static __device__ __forceinline__ void load(const T *p, float *v)
{
	if constexpr (COUNT == 1) {
		v[0] = act_float(p[0]);
	} else {
		for (int i = 0; i < COUNT; i += cuda_pack<T>::count) {
			cuda_pack<T> x = pack_load(p + i);
			for (int j = 0; j < cuda_pack<T>::count; j++)
				v[i + j] = act_float(x.v[j]);
		}
	}
}

template <typename T, int COUNT> static __device__ __forceinline__ void store(T *p, const float *v)
{
	if constexpr (COUNT == 1) {
		p[0] = act_round<T>(v[0]);
	} else {
		cuda_pack<T> x;
		for (int j = 0; j < COUNT; j++)
			x.v[j] = act_round<T>(v[j]);
		pack_store(p, x);
	}
}

/* Of COUNT neighbours: v becomes what is stored in y. */
template <typename T, int COUNT>
static __device__ __forceinline__ void finish(
	const struct cuda_epilogue &e, int64_t at, int64_t column, float *v)
{
	float other[COUNT];
	if (e.bias)
		for (int j = 0; j < COUNT; j++)
			v[j] += e.bias[column + j];
	if (e.pre || e.act == PLAN_ACT_GELU)
		for (int j = 0; j < COUNT; j++)
			v[j] = act_float(act_round<T>(v[j]));
	if (e.pre)
		store<T, COUNT>(static_cast<T *>(e.pre) + at, v);
	if (e.act == PLAN_ACT_GELU)
		for (int j = 0; j < COUNT; j++)
			v[j] = act_gelu<T>(v[j]);
	else if (e.act == PLAN_ACT_RELU)
		for (int j = 0; j < COUNT; j++)
			v[j] = relu_value(v[j]);
	if (e.residual) {
		load<T, COUNT>(static_cast<const T *>(e.residual) + at, other);
		for (int j = 0; j < COUNT; j++)
			v[j] += other[j];
	}
	if (e.gate_act == PLAN_ACT_NONE)
		return;
	load<T, COUNT>(static_cast<const T *>(e.gate) + at, other);
	for (int j = 0; j < COUNT; j++)
		if (e.gate_act == PLAN_ACT_GELU)
			v[j] *= act_gelu_slope<T>(other[j]);
		else
			v[j] = other[j] > 0.0f ? v[j] : 0.0f;
}

template <typename T, typename S, int COUNT>
static __global__ void epilogue_kernel(struct cuda_epilogue e)
{
	int64_t width = e.columns / COUNT, count = e.rows * width;
	bool narrow = count <= INT32_MAX; /* a division of 64 bits costs as much as the rest */
	for (int64_t i = grid_begin(); i < count; i += grid_stride()) {
		int64_t row = narrow ? (uint32_t)i / (uint32_t)width : i / width;
		int64_t column = (i - row * width) * COUNT, at = row * e.stride + column;
		float v[COUNT];
		load<S, COUNT>(static_cast<const S *>(e.sums) + row * e.sums_stride + column, v);
		finish<T, COUNT>(e, at, column, v);
		store<T, COUNT>(static_cast<T *>(e.y) + at, v);
	}
}

template <typename T, typename S> static void launch(const struct cuda_epilogue *e)
{
	constexpr int pack = cuda_pack<T>::count;
	bool packs = e->columns % pack == 0 && e->stride % pack == 0 && e->sums_stride % pack == 0 &&
		pack_fits(e->sums) && pack_fits(e->pre) && pack_fits(e->residual) && pack_fits(e->gate) &&
		pack_fits(e->y);
	int64_t count = e->rows * e->columns;
	if (packs)
		CUDA_LAUNCH((epilogue_kernel<T, S, pack>), grid_of(count / pack, CUDA_THREADS),
			CUDA_THREADS, 0, *e);
	else
		CUDA_LAUNCH(
			(epilogue_kernel<T, S, 1>), grid_of(count, CUDA_THREADS), CUDA_THREADS, 0, *e);
}

void cuda_epilogue(const struct cuda_epilogue *e)
{
	bool wide = e->sums_type == PLAN_F32;
	if (e->type == PLAN_F32)
		launch<float, float>(e);
	else if (e->type == PLAN_BF16 && wide)
		launch<__nv_bfloat16, float>(e);
	else if (e->type == PLAN_BF16)
		launch<__nv_bfloat16, __nv_bfloat16>(e);
	else if (wide)
		launch<__half, float>(e);
	else
		launch<__half, __half>(e);
}

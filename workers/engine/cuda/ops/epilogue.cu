/* SPDX-License-Identifier: Apache-2.0
 * What follows a product's sums (cuda/epilogue.h). A thread takes a pack of 16 bytes of a row's
 * output at a time where strides and pointers allow, otherwise one element. */
#include "workers/engine/cuda/epilogue.h"
#include "workers/engine/cuda/ops/act_math.h"
#include "workers/engine/cuda/ops/map.h"

/* NaN stays NaN: a broken run must show. */
static __device__ __forceinline__ float relu_value(float x)
{
	return x < 0.0f ? 0.0f : x;
}

/* Of COUNT neighbours: v becomes what is stored in y. */
template <typename T, int COUNT>
static __device__ __forceinline__ void finish(
	const struct cuda_epilogue &e, int64_t at, int64_t column, float (&v)[COUNT])
{
	float other[COUNT];
	if (e.bias)
		for (int j = 0; j < COUNT; j++)
			v[j] += e.bias[column + j];
	if (e.pre || e.act == PLAN_ACT_GELU)
		for (int j = 0; j < COUNT; j++)
			v[j] = act_float(act_round<T>(v[j]));
	if (e.pre)
		values_store<COUNT>(static_cast<T *>(e.pre) + at, v);
	if (e.act == PLAN_ACT_GELU)
		for (int j = 0; j < COUNT; j++)
			v[j] = act_gelu<T>(v[j]);
	else if (e.act == PLAN_ACT_RELU)
		for (int j = 0; j < COUNT; j++)
			v[j] = relu_value(v[j]);
	if (e.residual) {
		values_load<COUNT>(static_cast<const T *>(e.residual) + at, other);
		for (int j = 0; j < COUNT; j++)
			v[j] += other[j];
	}
	if (e.gate_act == PLAN_ACT_NONE)
		return;
	values_load<COUNT>(static_cast<const T *>(e.gate) + at, other);
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
	for (int64_t i = grid_begin(); i < count; i += grid_stride()) {
		struct map_place place = map_place_of(i, width);
		int64_t column = place.column * COUNT, at = place.row * e.stride + column;
		float v[COUNT];
		values_load<COUNT>(static_cast<const S *>(e.sums) + place.row * e.sums_stride + column, v);
		finish<T, COUNT>(e, at, column, v);
		values_store<COUNT>(static_cast<T *>(e.y) + at, v);
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
		CUDA_LAUNCH((epilogue_kernel<T, S, 1>), grid_of(count, CUDA_THREADS), CUDA_THREADS, 0, *e);
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

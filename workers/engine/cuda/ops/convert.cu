/* SPDX-License-Identifier: Apache-2.0
 * Matrices from one type to another (cuda/convert.h): weights that do not have the type of the
 * activations, which is rare. An element a thread. */
#include "workers/engine/cuda/convert.h"
#include "workers/engine/cuda/kernel.h"

template <typename F, typename T>
static __global__ void convert_kernel(
	int64_t rows, int64_t columns, const F *from, int64_t stride, T *to)
{
	for (int64_t i = grid_begin(); i < rows * columns; i += grid_stride())
		to[i] = act_round<T>(act_float(from[i / columns * stride + i % columns]));
}

template <typename F, typename T> static void launch(const struct cuda_convert *c)
{
	CUDA_LAUNCH((convert_kernel<F, T>), grid_of(c->rows * c->columns, CUDA_THREADS), CUDA_THREADS,
		0, c->rows, c->columns, static_cast<const F *>(c->from), c->from_stride,
		static_cast<T *>(c->to));
}

template <typename F> static void launch_from(const struct cuda_convert *c)
{
	if (c->to_type == PLAN_F32)
		launch<F, float>(c);
	else if (c->to_type == PLAN_BF16)
		launch<F, __nv_bfloat16>(c);
	else
		launch<F, __half>(c);
}

void cuda_convert(const struct cuda_convert *c)
{
	if (c->from_type == PLAN_F32)
		launch_from<float>(c);
	else if (c->from_type == PLAN_BF16)
		launch_from<__nv_bfloat16>(c);
	else
		launch_from<__half>(c);
}

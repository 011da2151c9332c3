/* SPDX-License-Identifier: Apache-2.0
 * PLAN_OP_MSE and PLAN_OP_BCE; the gradient replaces the prediction. MSE: a warp takes a row of y
 * [rows, outputs], its lanes every 32nd output. BCE: a thread takes a row, in double. */
#include "workers/engine/cuda/kernel.h"

template <typename T> struct regress_call {
	int64_t rows, outputs;
	float scale;
	T *y;
	const float *targets;
	float *row_loss, *row_hit;
};

template <typename T> static __global__ void mse_kernel(struct regress_call<T> c)
{
	int64_t n = c.outputs, warp = grid_begin() / CUDA_WARP, warps = grid_stride() / CUDA_WARP;
	int lane = (int)threadIdx.x % CUDA_WARP;
	float inv = 1.0f / (float)n, slope = 2.0f * inv * c.scale;
	for (int64_t r = warp; r < c.rows; r += warps) {
		T *y = c.y + r * n;
		const float *target = c.targets + r * n;
		bool ignored = isnan(target[0]);
		float sum = 0;
		for (int64_t i = lane; i < n; i += CUDA_WARP) {
			float diff = ignored ? 0.0f : act_float(y[i]) - target[i];
			sum += diff * diff;
			if (c.scale > 0)
				y[i] = act_round<T>(diff * slope);
		}
		sum = warp_sum(sum);
		if (lane == 0)
			c.row_loss[r] = sum * inv;
	}
}

template <typename T> static __global__ void bce_kernel(struct regress_call<T> c)
{
	for (int64_t r = grid_begin(); r < c.rows; r += grid_stride()) {
		double y = (double)act_float(c.y[r]), target = (double)c.targets[r];
		bool ignored = isnan(target);
		/* log(1 + e^y) - target y, without e^y where it overflows. */
		double small = exp(-fabs(y));
		double loss = (y > 0 ? y : 0) + log1p(small) - target * y;
		double p = y > 0 ? 1 / (1 + small) : small / (1 + small);
		c.row_loss[r] = ignored ? 0.0f : (float)loss;
		c.row_hit[r] = !ignored && (y > 0) == (target > 0.5) ? 1.0f : 0.0f;
		if (c.scale > 0)
			c.y[r] = act_round<T>(ignored ? 0.0f : (float)((p - target) * (double)c.scale));
	}
}

template <typename T>
static struct regress_call<T> regress_call_of(const struct backend_regress *d) {
	return { d->rows, d->outputs, d->scale, static_cast<T *>(d->y), d->targets, d->row_loss,
		d->row_hit };
}

template <typename T>
static void mse(const struct backend_regress *d)
{
	CUDA_LAUNCH((mse_kernel<T>), grid_of(d->rows * CUDA_WARP, CUDA_THREADS), CUDA_THREADS, 0,
		regress_call_of<T>(d));
}

template <typename T> static void bce(const struct backend_regress *d)
{
	CUDA_LAUNCH(
		(bce_kernel<T>), grid_of(d->rows, CUDA_THREADS), CUDA_THREADS, 0, regress_call_of<T>(d));
}

CUDA_EXPORT(mse, (const struct backend_regress *d), (d))
CUDA_EXPORT(bce, (const struct backend_regress *d), (d))

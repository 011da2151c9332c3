/* SPDX-License-Identifier: Apache-2.0
 * PLAN_OP_SPARSE_ADAMW, PLAN_OP_SPARSE_SGD: the rows of a table that a step looked up, and their
 * moments; those of others stay as they are. How many rows there are, only the device knows. A
 * thread takes N units of a row in a turn: a pack, or one. */
#include "workers/engine/cuda/ops/map.h"

struct sparse_update_call {
	int64_t d;
	const int32_t *rows, *count;
	float *w, *m, *v;
	const float *g;
	float grad_scale, learning_rate;
	float beta1, beta2, eps, correct1, correct2;
	float momentum;
};

template <int N> static __global__ void sparse_adamw_kernel(struct sparse_update_call c)
{
	int64_t width = c.d / N, all = *c.count * width;
	for (int64_t i = grid_begin(); i < all; i += grid_stride()) {
		struct map_place place = map_place_of(i, width);
		int64_t at = c.rows[place.row] * c.d + place.column * N;
		float g[N], w[N], m[N], v[N];
		values_load<N>(c.g + i * N, g);
		values_load<N>(c.w + at, w);
		values_load<N>(c.m + at, m);
		values_load<N>(c.v + at, v);
#pragma unroll
		for (int k = 0; k < N; k++) {
			float scaled = g[k] * c.grad_scale;
			m[k] = c.beta1 * m[k] + (1.0f - c.beta1) * scaled;
			v[k] = c.beta2 * v[k] + (1.0f - c.beta2) * scaled * scaled;
			w[k] -= c.learning_rate * (m[k] * c.correct1) / (sqrtf(v[k] * c.correct2) + c.eps);
		}
		values_store<N>(c.m + at, m);
		values_store<N>(c.v + at, v);
		values_store<N>(c.w + at, w);
	}
}

template <int N, bool MOMENTUM>
static __global__ void sparse_sgd_kernel(struct sparse_update_call c)
{
	int64_t width = c.d / N, all = *c.count * width;
	for (int64_t i = grid_begin(); i < all; i += grid_stride()) {
		struct map_place place = map_place_of(i, width);
		int64_t at = c.rows[place.row] * c.d + place.column * N;
		float g[N], w[N], m[N] = {};
		values_load<N>(c.g + i * N, g);
		values_load<N>(c.w + at, w);
		if (MOMENTUM)
			values_load<N>(c.m + at, m);
#pragma unroll
		for (int k = 0; k < N; k++) {
			m[k] = (MOMENTUM ? c.momentum * m[k] : 0.0f) + g[k] * c.grad_scale;
			w[k] -= c.learning_rate * m[k];
		}
		if (MOMENTUM)
			values_store<N>(c.m + at, m);
		values_store<N>(c.w + at, w);
	}
}

static struct sparse_update_call sparse_update_of(const struct backend_update *d)
{
	return { d->d, d->rows, d->count, d->w, d->m, d->v, d->g, d->grad_scale, d->learning_rate,
		d->beta1, d->beta2, d->eps, d->correct1, d->correct2, d->momentum };
}

static bool sparse_update_packs(const struct backend_update *d)
{
	return d->d % 4 == 0 && pack_fits(d->w) && pack_fits(d->m) && pack_fits(d->v) &&
		pack_fits(d->g);
}

static unsigned sparse_update_grid(void)
{
	return (unsigned)(cuda_multiprocessors() * CUDA_GRID_PER_MULTIPROCESSOR);
}

extern "C" void sparse_adamw_cuda(const struct backend_update *d)
{
	struct sparse_update_call c = sparse_update_of(d);
	unsigned grid = sparse_update_grid();
	if (sparse_update_packs(d))
		CUDA_LAUNCH(sparse_adamw_kernel<4>, grid, CUDA_THREADS, 0, c);
	else
		CUDA_LAUNCH(sparse_adamw_kernel<1>, grid, CUDA_THREADS, 0, c);
}

extern "C" void sparse_sgd_cuda(const struct backend_update *d)
{
	struct sparse_update_call c = sparse_update_of(d);
	unsigned grid = sparse_update_grid();
	if (sparse_update_packs(d) && d->m)
		CUDA_LAUNCH((sparse_sgd_kernel<4, true>), grid, CUDA_THREADS, 0, c);
	else if (sparse_update_packs(d))
		CUDA_LAUNCH((sparse_sgd_kernel<4, false>), grid, CUDA_THREADS, 0, c);
	else if (d->m)
		CUDA_LAUNCH((sparse_sgd_kernel<1, true>), grid, CUDA_THREADS, 0, c);
	else
		CUDA_LAUNCH((sparse_sgd_kernel<1, false>), grid, CUDA_THREADS, 0, c);
}

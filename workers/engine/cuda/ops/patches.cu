/* SPDX-License-Identifier: Apache-2.0
 * Patches of images (cuda/patches.h). A thread takes a pack of 16 bytes of a tap's channels at a
 * time where those fit, otherwise one element; weights go an element a thread. */
#include "workers/engine/cuda/kernel.h"
#include "workers/engine/cuda/patches.h"

/* Where tap k of output o lies in an image of `size`; -1: nowhere. */
static __device__ __forceinline__ int64_t place(
	const struct cuda_patches &p, int64_t o, int64_t k, int64_t size)
{
	int64_t v = o * p.stride + p.origin + k * p.tap_step;
	if (v < 0)
		return -1;
	if (p.hole > 1) {
		if (v % p.hole != 0)
			return -1;
		v /= p.hole;
	}
	return v < size ? v : -1;
}

/* x becomes x / by, the rest is returned. */
static __device__ __forceinline__ int64_t split(int64_t *x, int64_t by, bool narrow)
{
	int64_t q = narrow ? (uint32_t)*x / (uint32_t)by : *x / by;
	int64_t rest = *x - q * by;
	*x = q;
	return rest;
}

template <typename V>
static __global__ void patches_kernel(
	struct cuda_patches p, int64_t first, int64_t rows, int64_t width, const V *image, V *to)
{
	int64_t count = rows * p.kernel * p.kernel * width;
	bool narrow = count <= INT32_MAX && first + rows <= INT32_MAX;
	for (int64_t i = grid_begin(); i < count; i += grid_stride()) {
		int64_t rest = i;
		int64_t channel = split(&rest, width, narrow);
		int64_t kx = split(&rest, p.kernel, narrow), ky = split(&rest, p.kernel, narrow);
		rest += first;
		int64_t ox = split(&rest, p.out_w, narrow), oy = split(&rest, p.out_h, narrow);
		int64_t y = place(p, oy, ky, p.h), x = place(p, ox, kx, p.w);
		V v;
		memset(&v, 0, sizeof(v));
		if (y >= 0 && x >= 0)
			v = image[((rest * p.h + y) * p.w + x) * width + channel];
		to[i] = v;
	}
}

template <typename V>
static void launch(const struct cuda_patches *p, int64_t first, int64_t rows, void *to)
{
	int64_t width = p->c * plan_type_bytes(p->type) / (int64_t)sizeof(V);
	int64_t count = rows * p->kernel * p->kernel * width;
	CUDA_LAUNCH((patches_kernel<V>), grid_of(count, CUDA_THREADS), CUDA_THREADS, 0, *p, first, rows,
		width, static_cast<const V *>(p->image), static_cast<V *>(to));
}

/* Values are only moved, so that the size of a type is all that matters. */
void cuda_patches_gather(const struct cuda_patches *p, int64_t first, int64_t rows, void *to)
{
	int64_t bytes = p->c * plan_type_bytes(p->type);
	if (bytes % 16 == 0 && pack_fits(p->image) && pack_fits(to))
		launch<int4>(p, first, rows, to);
	else if (p->type == PLAN_F32)
		launch<uint32_t>(p, first, rows, to);
	else
		launch<uint16_t>(p, first, rows, to);
}

/* -------------------------------------------------------------------------------------- weights */

/* forward: to[out][tap][in], otherwise to[tap][out][in]. */
template <typename V>
static __global__ void order_kernel(
	int64_t out, int64_t in, int64_t taps, bool forward, const V *from, V *to)
{
	for (int64_t i = grid_begin(); i < out * in * taps; i += grid_stride()) {
		int64_t row = i / in, o = forward ? row / taps : row % out;
		int64_t tap = forward ? row % taps : row / out;
		to[i] = from[(o * in + i % in) * taps + tap];
	}
}

static void order(const struct cuda_patches_weights *w, bool forward, void *to)
{
	unsigned grid = grid_of(w->out * w->in * w->taps, CUDA_THREADS);
	if (w->type == PLAN_F32)
		CUDA_LAUNCH((order_kernel<uint32_t>), grid, CUDA_THREADS, 0, w->out, w->in, w->taps,
			forward, static_cast<const uint32_t *>(w->weight), static_cast<uint32_t *>(to));
	else
		CUDA_LAUNCH((order_kernel<uint16_t>), grid, CUDA_THREADS, 0, w->out, w->in, w->taps,
			forward, static_cast<const uint16_t *>(w->weight), static_cast<uint16_t *>(to));
}

void cuda_patches_forward_weights(const struct cuda_patches_weights *w, void *to)
{
	order(w, true, to);
}

void cuda_patches_backward_weights(const struct cuda_patches_weights *w, void *to)
{
	order(w, false, to);
}

static __global__ void add_weights_kernel(
	int64_t out, int64_t in, int64_t taps, const float *from, float *dw)
{
	for (int64_t i = grid_begin(); i < out * in * taps; i += grid_stride()) {
		int64_t row = i / taps;
		dw[i] += from[(row / in * taps + i % taps) * in + row % in];
	}
}

void cuda_patches_add_weights(int64_t out, int64_t in, int64_t taps, const float *from, float *dw)
{
	CUDA_LAUNCH(add_weights_kernel, grid_of(out * in * taps, CUDA_THREADS), CUDA_THREADS, 0, out,
		in, taps, from, dw);
}

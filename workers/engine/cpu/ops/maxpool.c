/* SPDX-License-Identifier: Apache-2.0
 * Max pooling, channels last: any square window, stride and padding. `which` is the place of the
 * first largest value in its window (ky * kernel + kx); padding is never chosen. A NaN is the
 * largest. The backward pass gathers, so overlapping windows add up in one order. */
#include "workers/engine/cpu/ops/lanes.h"

static int64_t pooled(const struct backend_pool *d, int64_t size)
{
	return (size + 2 * d->pad - d->kernel) / d->stride + 1;
}

/* The taps [ret_first, ret_end) of the window at `out` that lie inside. */
static void taps(
	const struct backend_pool *d, int64_t out, int64_t size, int64_t *ret_first, int64_t *ret_end)
{
	int64_t origin = out * d->stride - d->pad;
	*ret_first = origin < 0 ? -origin : 0;
	*ret_end = origin + d->kernel > size ? size - origin : d->kernel;
}

/* n channels of one output pixel; x is the window's tap 0 (which may lie outside). */
static void window_forward(const struct backend_pool *d, const act_t *x, const int64_t y[2],
	const int64_t xs[2], int64_t n, act_t *out, uint8_t *which)
{
	simd_f32 best = { 0 };
	simd_i32 at = { 0 };
	for (int64_t ky = y[0]; ky < y[1]; ky++)
		for (int64_t kx = xs[0]; kx < xs[1]; kx++) {
			simd_f32 v = act_load_upto(x + (ky * d->w + kx) * d->c, n);
			simd_i32 tap = (simd_i32){ 0 } + (int32_t)(ky * d->kernel + kx);
			simd_i32 take = (simd_i32)(v > best) | (simd_i32)(v != v);
			if (ky == y[0] && kx == xs[0])
				take = (simd_i32){ 0 } - 1;
			take &= (simd_i32)(best == best); /* the first NaN stays */
			best = simd_select(take, v, best);
			at = (tap & take) | (at & ~take);
		}
	act_store_upto(out, best, n);
	lanes_store_u8(which, at, n);
}

void CPU_FN(maxpool_forward)(const struct backend_pool *d)
{
	int64_t oh = pooled(d, d->h), ow = pooled(d, d->w);
#pragma omp parallel for schedule(static) if (d->n * d->h * d->w * d->c > CPU_PARALLEL_MIN)
	for (int64_t row = 0; row < d->n * oh; row++) {
		int64_t image = row / oh, y[2], x[2];
		taps(d, row % oh, d->h, &y[0], &y[1]);
		for (int64_t col = 0; col < ow; col++) {
			taps(d, col, d->w, &x[0], &x[1]);
			int64_t in =
				(image * d->h + row % oh * d->stride - d->pad) * d->w + col * d->stride - d->pad;
			int64_t out = (row * ow + col) * d->c;
			for (int64_t i = 0; i < d->c; i += SIMD_WIDTH)
				window_forward(d, (const act_t *)d->x + in * d->c + i, y, x, d->c - i,
					(act_t *)d->y + out + i, d->which + out + i);
		}
	}
}

/* The windows [ret_first, ret_end) that hold the place `at`. */
static void windows(
	const struct backend_pool *d, int64_t at, int64_t count, int64_t *ret_first, int64_t *ret_end)
{
	int64_t low = at + d->pad - d->kernel + 1;
	int64_t end = (at + d->pad) / d->stride + 1;
	*ret_first = low <= 0 ? 0 : (low + d->stride - 1) / d->stride;
	*ret_end = end < count ? end : count;
}

static void pixel_backward(
	const struct backend_pool *d, int64_t row, int64_t col, int64_t oh, int64_t ow)
{
	int64_t image = row / d->h, y = row % d->h, wy[2], wx[2];
	windows(d, y, oh, &wy[0], &wy[1]);
	windows(d, col, ow, &wx[0], &wx[1]);
	for (int64_t i = 0; i < d->c; i += SIMD_WIDTH) {
		int64_t n = d->c - i;
		simd_f32 sum = { 0 };
		for (int64_t oy = wy[0]; oy < wy[1]; oy++)
			for (int64_t ox = wx[0]; ox < wx[1]; ox++) {
				int64_t out = ((image * oh + oy) * ow + ox) * d->c + i;
				int64_t tap =
					(y + d->pad - oy * d->stride) * d->kernel + col + d->pad - ox * d->stride;
				simd_i32 mine = (simd_i32)(lanes_load_u8(d->which + out, n) == (int32_t)tap);
				simd_f32 g = act_load_upto((const act_t *)d->dy + out, n);
				sum += lanes_keep(mine, g);
			}
		act_store_upto((act_t *)d->dx + (row * d->w + col) * d->c + i, sum, n);
	}
}

void CPU_FN(maxpool_backward)(const struct backend_pool *d)
{
	int64_t oh = pooled(d, d->h), ow = pooled(d, d->w);
#pragma omp parallel for schedule(static) if (d->n * d->h * d->w * d->c > CPU_PARALLEL_MIN)
	for (int64_t row = 0; row < d->n * d->h; row++)
		for (int64_t col = 0; col < d->w; col++)
			pixel_backward(d, row, col, oh, ow);
}

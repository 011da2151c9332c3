/* SPDX-License-Identifier: Apache-2.0
 * Winograd's convolution F(4x4, 3x3): a tile of 4x4 outputs is 36 products instead of 144, between
 * transformed inputs and transformed weights, at the points 0, 1, -1, 1/2, -2 and infinity (whose
 * rounding error is about three times a plain sum's). All in fp32 whatever the activations' type.
 * Called by conv.c for 3x3 convolutions of stride 1; private to cpu/ops. */
#pragma once

#include "workers/engine/cpu/gemm_private.h"
#include "workers/engine/cpu/ops/lanes.h"

enum {
	WINOGRAD_OUT = 4, /* outputs of a tile, each way */
	WINOGRAD_IN = 6,  /* inputs of a tile, each way */
	WINOGRAD_POINTS = WINOGRAD_IN * WINOGRAD_IN,
	WINOGRAD_TILES = 32,    /* of a block: a thread's scratch fits its second-level cache */
	WINOGRAD_CHANNELS = 64, /* of a block, summed over and produced */
	WINOGRAD_PAD = 16,      /* floats between planes, which keep them out of the same cache sets */
};

/* Whether it pays. */
bool CPU_FN(winograd_fits)(const struct backend_conv *d);
void CPU_FN(winograd_forward)(const struct backend_conv *d);
void CPU_FN(winograd_backward_data)(const struct backend_conv *d);
void CPU_FN(winograd_backward_weight)(const struct backend_conv *d);

/* The transforms of one line; strides of the arrays in elements. */
CPU_INLINE void winograd_input(const simd_f32 *d, int from, simd_f32 *v, int to)
{
	simd_f32 even = d[4 * from] - d[2 * from], odd = d[3 * from] - d[from];
	v[0] = (d[0] + d[4 * from] - 2.0f * d[2 * from]) + 1.5f * odd;
	v[to] = (d[4 * from] + 0.5f * d[2 * from]) + (2.5f * d[3 * from] - d[from]);
	v[2 * to] = (d[4 * from] - 2.5f * d[2 * from]) + (0.5f * d[3 * from] + d[from]);
	v[3 * to] = even + 2.0f * odd;
	v[4 * to] = even - 0.5f * odd;
	v[5 * to] = (d[from] + d[5 * from] - 2.0f * d[3 * from]) + 1.5f * even;
}

/* Of 3 weights, or of 4 gradients. */
CPU_INLINE void winograd_filter(const simd_f32 *g, int from, const int taps, simd_f32 *u, int to)
{
	simd_f32 g3 = taps == 4 ? g[3 * from] : (simd_f32){ 0 };
	simd_f32 even = g[0] + g[2 * from], odd = g[from] + g3;
	u[0] = g[0];
	u[to] = (even + odd) * (1.0f / 3);
	u[2 * to] = (odd - even) * (1.0f / 3);
	u[3 * to] = (g[0] + 0.5f * g[from] + 0.25f * g[2 * from] + 0.125f * g3) * (-16.0f / 15);
	u[4 * to] = (g[0] - 2.0f * g[from] + 4.0f * g[2 * from] - 8.0f * g3) * (1.0f / 15);
	u[5 * to] = taps == 4 ? g3 : g[2 * from];
}

/* To 4 outputs, or to 3 weights' gradients. */
CPU_INLINE void winograd_output(const simd_f32 *m, int from, const int count, simd_f32 *y, int to)
{
	simd_f32 sum = m[from] + m[2 * from], apart = m[from] - m[2 * from];
	y[0] = (m[0] + sum) + (m[3 * from] + m[4 * from]);
	y[to] = apart + (0.5f * m[3 * from] - 2.0f * m[4 * from]);
	y[2 * to] = sum + (0.25f * m[3 * from] + 4.0f * m[4 * from]);
	if (count == 3)
		y[2 * to] += m[5 * from];
	else
		y[3 * to] = (apart + m[5 * from]) + (0.125f * m[3 * from] - 8.0f * m[4 * from]);
}

/* The tensor that tiles are cut from: `size` rows and columns a tile takes, tile (ty, tx) of an
 * image begins at ty * WINOGRAD_OUT - pad. What lies outside is 0. */
struct winograd_image {
	const act_t *base;
	int64_t h, w, c, pad;
	int64_t tiles_y, tiles_x; /* of one image */
};

/* n channels of a tile's pixels, from channel c on. */
CPU_INLINE void winograd_load(const struct winograd_image *im, int64_t tile, int64_t c, int64_t n,
	const int size, simd_f32 *d)
{
	int64_t image = tile / (im->tiles_y * im->tiles_x), at = tile % (im->tiles_y * im->tiles_x);
	int64_t y = at / im->tiles_x * WINOGRAD_OUT - im->pad;
	int64_t x = at % im->tiles_x * WINOGRAD_OUT - im->pad;
	const act_t *p = im->base + ((image * im->h + y) * im->w + x) * im->c + c;
	if (y >= 0 && x >= 0 && y + size <= im->h && x + size <= im->w && n >= SIMD_WIDTH) {
		for (int i = 0; i < size; i++)
			for (int j = 0; j < size; j++)
				d[i * size + j] = act_load(p + (i * im->w + j) * im->c);
		return;
	}
	for (int i = 0; i < size; i++)
		for (int j = 0; j < size; j++) {
			bool inside = y + i >= 0 && y + i < im->h && x + j >= 0 && x + j < im->w;
			d[i * size + j] = (simd_f32){ 0 };
			if (inside)
				d[i * size + j] = act_load_upto(p + (i * im->w + j) * im->c, n);
		}
}

/* The fp32 kernels of this instruction set. */
CPU_INLINE const struct gemm_kernels *winograd_kernels(void)
{
	return &CPU_PLAIN(gemm_kernels);
}

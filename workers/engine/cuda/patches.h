/* SPDX-License-Identifier: Apache-2.0
 * Patches of images as the rows of a matrix, and the orders of convolutions' weights that go with
 * them. Called by cuda/ops/conv.c. */
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

#include "workers/plan/plan_op.h"

/* Of a tensor [n, h, w, c] (any n): a row for each output pixel, (image * out_h + oy) * out_w + ox,
 * and a column for each tap and channel, (ky * kernel + kx) * c + channel. The element is the
 * tensor's value at the pixel
 *	vy = oy * stride + origin + ky * tap_step,  y = vy / hole,  and x likewise,
 * and 0 where vy is no multiple of hole or y lies outside.
 *	forward, backward weight: of x; origin = -pad, tap_step 1, hole 1, the convolution's stride;
 *	backward data: of dy, output pixels being the input's; origin = pad, tap_step -1, stride 1,
 *	hole = the convolution's stride. */
struct cuda_patches {
	enum plan_type type;
	int64_t h, w, c, out_h, out_w;
	int64_t kernel, stride, hole, origin, tap_step;
	const void *image;
};

/* Rows [first, first + rows) into `to`, packed. */
void cuda_patches_gather(const struct cuda_patches *p, int64_t first, int64_t rows, void *to);

struct cuda_patches_weights {
	enum plan_type type;
	int64_t out, in, taps;
	const void *weight; /* [out][in][tap] */
};
/* to[out][tap][in]: rows as patches of x have columns. */
void cuda_patches_forward_weights(const struct cuda_patches_weights *w, void *to);
/* to[tap][out][in]: columns of patches of dy by channels of x. */
void cuda_patches_backward_weights(const struct cuda_patches_weights *w, void *to);

/* dw[out][in][tap] += from[out][tap][in] */
void cuda_patches_add_weights(int64_t out, int64_t in, int64_t taps, const float *from, float *dw);

#ifdef __cplusplus
}
#endif

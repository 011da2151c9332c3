/* SPDX-License-Identifier: Apache-2.0
 * Convolutions, channels last, as products of patches (patches.h): as many pixels at a time as the
 * workspace holds. Every sum has its fixed order. The three functions below are all that a library
 * of convolutions (cuDNN) would replace. Called through the backend's tables. */
#include "core/base/num.h"
#include "workers/engine/cuda/column_sum.h"
#include "workers/engine/cuda/cuda.h"
#include "workers/engine/cuda/patches.h"
#include "workers/engine/cuda/product.h"

#include <assert.h>

static int64_t out_size(const struct backend_conv *d, int64_t size)
{
	return (size + 2 * d->pad - d->kernel) / d->stride + 1;
}

static int64_t out_pixels(const struct backend_conv *d)
{
	return d->n * out_size(d, d->h) * out_size(d, d->w);
}

/* A plain product over pixels. */
static bool pointwise(const struct backend_conv *d)
{
	return d->kernel == 1 && d->stride == 1 && d->pad == 0;
}

/* The workspace: weights in the order of patches, patches of some pixels, and the products'. */
struct room {
	void *weights, *patches;
	int64_t pixels;
	struct backend_workspace rest;
};

/* Pixels 0: it is too small, which is reported. */
static struct room room_of(const struct backend_conv *d, int64_t weights_bytes, int64_t row_bytes)
{
	int64_t used = num_round_up(weights_bytes, PLAN_ALIGN_BYTES), rest = d->ws.bytes - used;
	int64_t half = rest / 2 / PLAN_ALIGN_BYTES * PLAN_ALIGN_BYTES;
	if (half < row_bytes)
		half = rest;
	if (half < row_bytes) {
		cuda_failed_because("a convolution", "its workspace holds no pixel's patch");
		return (struct room){ 0 };
	}
	char *base = d->ws.data;
	return (struct room){ .weights = base,
		.patches = base + used,
		.pixels = half / row_bytes,
		.rest = { base + used + half, rest - half } };
}

static int64_t least(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static const void *at(const void *base, int64_t offset, enum plan_type type)
{
	return (const char *)base + offset * plan_type_bytes(type);
}

static struct cuda_gemm_source matrix(
	enum plan_type type, const void *base, int64_t stride, bool transposed)
{
	return (struct cuda_gemm_source){
		.type = type, .base = base, .stride = stride, .transposed = transposed
	};
}

/* Of x, as forward and backward weight want them. */
static struct cuda_patches patches_of_input(const struct backend_conv *d, enum plan_type type)
{
	return (struct cuda_patches){ .type = type,
		.h = d->h,
		.w = d->w,
		.c = d->in,
		.out_h = out_size(d, d->h),
		.out_w = out_size(d, d->w),
		.kernel = d->kernel,
		.stride = d->stride,
		.hole = 1,
		.origin = -d->pad,
		.tap_step = 1,
		.image = d->x };
}

/* p with the rows of its A as they are patched together, as many at a time as there is room for.
 * order puts the weights as patches want them. */
static void multiply_patches(const struct backend_conv *d, struct cuda_product p,
	const struct cuda_patches *patches,
	void (*order)(const struct cuda_patches_weights *w, void *to))
{
	int64_t size = plan_type_bytes(p.type), rows = p.m;
	struct cuda_patches_weights weights = { .type = p.type,
		.out = d->out,
		.in = d->in,
		.taps = d->kernel * d->kernel,
		.weight = d->weight };
	struct room room = room_of(d, d->kernel > 1 ? p.n * p.k * size : 0, p.k * size);
	if (room.pixels == 0)
		return;
	if (d->kernel > 1) { /* otherwise the orders are the same */
		order(&weights, room.weights);
		p.b.base = room.weights;
	}
	p.a = matrix(p.type, room.patches, p.k, false);
	p.ws = room.rest;
	void *const c = p.c;
	for (int64_t i = 0; i < rows; i += room.pixels) {
		p.m = least(room.pixels, rows - i);
		p.c = (void *)at(c, i * p.n, p.type);
		p.residual = p.residual ? p.c : NULL; /* which is what is added to */
		cuda_patches_gather(patches, i, p.m, room.patches);
		cuda_product(&p);
	}
}

static void conv(const struct backend_conv *d, enum plan_type type)
{
	assert(d->w_type == type);
	struct cuda_patches patches = patches_of_input(d, type);
	int64_t depth = d->in * d->kernel * d->kernel;
	struct cuda_product p = { .m = out_pixels(d),
		.n = d->out,
		.k = depth,
		.a = matrix(type, d->x, d->in, false),
		.b = matrix(type, d->weight, depth, true),
		.alpha = 1,
		.type = type,
		.c = d->y,
		.c_stride = d->out,
		.bias = d->bias,
		.act = d->act,
		.ws = d->ws };
	if (pointwise(d))
		cuda_product(&p);
	else
		multiply_patches(d, p, &patches, cuda_patches_forward_weights);
}

/* Strides above 1 multiply with zeros: stride^2 times the work. */
static void conv_backward_data(const struct backend_conv *d, enum plan_type type)
{
	assert(d->w_type == type);
	struct cuda_patches patches = { .type = type,
		.h = out_size(d, d->h),
		.w = out_size(d, d->w),
		.c = d->out,
		.out_h = d->h,
		.out_w = d->w,
		.kernel = d->kernel,
		.stride = 1,
		.hole = d->stride,
		.origin = d->pad,
		.tap_step = -1,
		.image = d->dy };
	struct cuda_product p = { .m = d->n * d->h * d->w,
		.n = d->in,
		.k = d->out * d->kernel * d->kernel,
		.a = matrix(type, d->dy, d->out, false),
		.b = matrix(type, d->weight, d->in, false),
		.alpha = 1,
		.type = type,
		.c = d->dx,
		.c_stride = d->in,
		.residual = d->accumulate ? d->dx : NULL,
		.ws = d->ws };
	if (pointwise(d))
		cuda_product(&p);
	else
		multiply_patches(d, p, &patches, cuda_patches_backward_weights);
}

/* dw[out][tap][in] = dy' patches, summed over the pixels of one part after the other in fp32. */
static void sum_weights(const struct backend_conv *d, enum plan_type type)
{
	bool direct = d->kernel == 1; /* the orders are the same */
	int64_t depth = d->in * d->kernel * d->kernel, pixels = out_pixels(d);
	int64_t sums_bytes = direct ? 0 : d->out * depth * plan_type_bytes(PLAN_F32);
	struct cuda_patches patches = patches_of_input(d, type);
	struct room room = { .pixels = pixels, .rest = d->ws };
	if (!pointwise(d))
		room = room_of(d, sums_bytes, depth * plan_type_bytes(type));
	if (room.pixels == 0)
		return;
	float *sums = direct ? d->dw : room.weights;
	for (int64_t i = 0; i < pixels; i += room.pixels) {
		int64_t rows = least(room.pixels, pixels - i);
		if (room.patches)
			cuda_patches_gather(&patches, i, rows, room.patches);
		cuda_gemm(&(struct cuda_gemm){ .m = d->out,
			.n = depth,
			.k = rows,
			.a = matrix(type, at(d->dy, i * d->out, type), d->out, true),
			.b = matrix(type, room.patches ? room.patches : d->x, depth, false),
			.alpha = 1,
			.beta = direct || i > 0 ? 1 : 0,
			.c = sums,
			.c_stride = depth,
			.d_type = PLAN_F32,
			.d = sums,
			.d_stride = depth,
			.workspace = room.rest.data,
			.workspace_bytes = room.rest.bytes });
	}
	if (!direct)
		cuda_patches_add_weights(d->out, d->in, d->kernel * d->kernel, sums, d->dw);
}

static void conv_backward_weight(const struct backend_conv *d, enum plan_type type)
{
	sum_weights(d, type);
	if (d->db)
		cuda_column_sum(&(struct cuda_column_sum){ .m = out_pixels(d),
			.n = d->out,
			.type = type,
			.x = d->dy,
			.stride = d->out,
			.sums = d->db,
			.ws = d->ws });
}

CUDA_EXPORT_OF(conv, struct backend_conv)
CUDA_EXPORT_OF(conv_backward_data, struct backend_conv)
CUDA_EXPORT_OF(conv_backward_weight, struct backend_conv)

/* SPDX-License-Identifier: Apache-2.0
 * Convolutions, channels last, as products whose operand is the patches of an image (gemm.h). The
 * weights [out, in, kernel, kernel] are put into the order of the patches in the workspace, once a
 * call; the plan has its size (plan_conv.c). Called through the backend's table. */
#include "core/base/num.h"
#include "workers/engine/cpu/gemm.h"
#include "workers/engine/cpu/ops/winograd.h"
#include "workers/engine/cpu/workspace.h"

#include <assert.h>

#if CPU_TYPE_IS(f32)
#define CONV_TYPE GEMM_F32
#define CONV_PLAN_TYPE PLAN_F32
#elif CPU_TYPE_IS(bf16)
#define CONV_TYPE GEMM_BF16
#define CONV_PLAN_TYPE PLAN_BF16
#else
#define CONV_TYPE GEMM_F16
#define CONV_PLAN_TYPE PLAN_F16
#endif

static int64_t out_size(const struct backend_conv *d, int64_t size)
{
	return (size + 2 * d->pad - d->kernel) / d->stride + 1;
}

/* A plain product over pixels. */
static bool pointwise(const struct backend_conv *d)
{
	return d->kernel == 1 && d->stride == 1 && d->pad == 0;
}

static struct gemm product(const struct backend_conv *d, int64_t used_bytes)
{
	int64_t used = num_round_up(used_bytes, PLAN_ALIGN_BYTES);
	return (struct gemm){ .bf16 = CONV_TYPE == GEMM_BF16,
		.alpha = 1,
		.c_type = CONV_TYPE,
		.workspace = (char *)d->ws.data + used,
		.workspace_bytes = d->ws.bytes - used };
}

static struct gemm_source matrix(const void *base, int64_t row_stride)
{
	return (struct gemm_source){ .type = CONV_TYPE, .base = base, .row_stride = row_stride };
}

/* [out][in][tap] -> [out][tap][in] */
static void order_forward(const struct backend_conv *d, act_t *dst)
{
	const act_t *w = d->weight;
	int64_t taps = d->kernel * d->kernel, in = d->in;
#pragma omp parallel for schedule(static) if (d->out * in * taps > CPU_PARALLEL_MIN)
	for (int64_t o = 0; o < d->out; o++)
		for (int64_t t = 0; t < taps; t++)
			for (int64_t i = 0; i < in; i++)
				dst[(o * taps + t) * in + i] = w[(o * in + i) * taps + t];
}

static struct gemm_patches patches_forward(const struct backend_conv *d)
{
	return (struct gemm_patches){ .n = d->n,
		.h = d->h,
		.w = d->w,
		.c = d->in,
		.out_h = out_size(d, d->h),
		.out_w = out_size(d, d->w),
		.kernel_h = d->kernel,
		.kernel_w = d->kernel,
		.stride = d->stride,
		.hole = 1,
		.origin_y = -d->pad,
		.origin_x = -d->pad,
		.tap_step = 1 };
}

void CPU_FN(conv_forward)(const struct backend_conv *d)
{
	assert(d->w_type == CONV_PLAN_TYPE);
	if (CPU_FN(winograd_fits)(d)) {
		CPU_FN(winograd_forward)(d);
		return;
	}
	const struct gemm_patches patches = patches_forward(d);
	int64_t depth = d->in * d->kernel * d->kernel;
	const void *weight = d->weight;
	int64_t used = 0;
	if (d->kernel > 1) {
		order_forward(d, d->ws.data);
		weight = d->ws.data;
		used = d->out * depth * (int64_t)sizeof(act_t);
	}
	struct gemm g = product(d, used);
	g.m = d->n * patches.out_h * patches.out_w;
	g.n = d->out;
	g.k = depth;
	g.a = matrix(d->x, d->in);
	if (!pointwise(d))
		g.a.patches = &patches;
	g.b = matrix(weight, depth);
	g.b.transposed = true;
	g.c = d->y;
	g.c_stride = d->out;
	g.bias = d->bias;
	g.act = d->act == PLAN_ACT_RELU ? GEMM_RELU : GEMM_NONE;
	gemm_run(&g);
}

/* ------------------------------------------------------------------ backward, data */

/* The pixels of one phase: every stride-th from `first` on. They see the taps first_tap, first_tap
 * + stride, ...; the last of those reads the gradient at `origin`, the others follow it. */
struct conv_phase {
	int64_t first, pixels;
	int64_t first_tap, taps;
	int64_t origin;
};

static struct conv_phase phase_of(const struct backend_conv *d, int64_t first, int64_t size)
{
	struct conv_phase p = { .first = first,
		.pixels = (size - first + d->stride - 1) / d->stride,
		.first_tap = (first + d->pad) % d->stride };
	if (p.first_tap < d->kernel)
		p.taps = (d->kernel - p.first_tap + d->stride - 1) / d->stride;
	p.origin = (first + d->pad - p.first_tap) / d->stride - (p.taps - 1);
	return p;
}

/* [out][in][tap] -> [tap][out][in], of the phase's taps, last first: so they lie in the order of
 * the gradient's pixels. */
static void order_backward(const struct backend_conv *d, const struct conv_phase *y,
	const struct conv_phase *x, act_t *dst)
{
	const act_t *w = d->weight;
	int64_t taps = d->kernel * d->kernel, in = d->in;
#pragma omp parallel for schedule(static) if (d->out * in * taps > CPU_PARALLEL_MIN)
	for (int64_t o = 0; o < d->out; o++)
		for (int64_t ky = 0; ky < y->taps; ky++)
			for (int64_t kx = 0; kx < x->taps; kx++) {
				int64_t tap = (y->first_tap + (y->taps - 1 - ky) * d->stride) * d->kernel +
					x->first_tap + (x->taps - 1 - kx) * d->stride;
				act_t *row = dst + ((ky * x->taps + kx) * d->out + o) * in;
				for (int64_t i = 0; i < in; i++)
					row[i] = w[(o * in + i) * taps + tap];
			}
}

/* From the phase's own image into dx. */
static void scatter(const struct backend_conv *d, const struct conv_phase *y,
	const struct conv_phase *x, const float *from)
{
	int64_t rows = d->n * y->pixels;
#pragma omp parallel for schedule(static) if (rows * x->pixels * d->in > CPU_PARALLEL_MIN)
	for (int64_t row = 0; row < rows; row++)
		for (int64_t col = 0; col < x->pixels; col++) {
			int64_t image = row / y->pixels, at = y->first + row % y->pixels * d->stride;
			act_t *to =
				(act_t *)d->dx + ((image * d->h + at) * d->w + x->first + col * d->stride) * d->in;
			const float *in = from ? from + (row * x->pixels + col) * d->in : NULL;
			for (int64_t i = 0; i < d->in; i += SIMD_WIDTH) {
				simd_f32 v = { 0 };
				if (in)
					v = simd_load_upto(in + i, d->in - i);
				if (d->accumulate)
					v += act_load_upto(to + i, d->in - i);
				act_store_upto(to + i, v, d->in - i);
			}
		}
}

static void run_phase(
	const struct backend_conv *d, const struct conv_phase *y, const struct conv_phase *x)
{
	struct gemm_patches patches = { .n = d->n,
		.h = out_size(d, d->h),
		.w = out_size(d, d->w),
		.c = d->out,
		.out_h = y->pixels,
		.out_w = x->pixels,
		.kernel_h = y->taps,
		.kernel_w = x->taps,
		.stride = 1,
		.hole = 1,
		.origin_y = y->origin,
		.origin_x = x->origin,
		.tap_step = 1 };
	if (y->taps == 0 || x->taps == 0) {
		if (!d->accumulate)
			scatter(d, y, x, NULL);
		return;
	}
	bool whole = d->stride == 1;
	int64_t taps = y->taps * x->taps, pixels = d->n * y->pixels * x->pixels;
	act_t *weight = d->ws.data;
	int64_t ordered = d->kernel > 1 ? taps * d->out * d->in * (int64_t)sizeof(act_t) : 0;
	if (d->kernel > 1)
		order_backward(d, y, x, weight);
	/* Rounded once, after dx was added to. */
	ordered = num_round_up(ordered, PLAN_ALIGN_BYTES);
	float *image = (float *)(void *)((char *)d->ws.data + ordered);
	struct gemm g = product(d, ordered + (whole ? 0 : pixels * d->in * (int64_t)sizeof(float)));
	g.m = pixels;
	g.n = d->in;
	g.k = taps * d->out;
	g.a = matrix(d->dy, d->out);
	if (!pointwise(d))
		g.a.patches = &patches;
	g.b = matrix(d->kernel > 1 ? weight : d->weight, d->in);
	g.c = whole ? d->dx : image;
	g.c_type = whole ? CONV_TYPE : GEMM_F32;
	g.c_stride = d->in;
	if (whole && d->accumulate)
		g.residual = d->dx;
	gemm_run(&g);
	if (!whole)
		scatter(d, y, x, image);
}

void CPU_FN(conv_backward_data)(const struct backend_conv *d)
{
	assert(d->w_type == CONV_PLAN_TYPE);
	if (CPU_FN(winograd_fits)(d)) {
		CPU_FN(winograd_backward_data)(d);
		return;
	}
	for (int64_t y = 0; y < d->stride && y < d->h; y++)
		for (int64_t x = 0; x < d->stride && x < d->w; x++) {
			struct conv_phase py = phase_of(d, y, d->h), px = phase_of(d, x, d->w);
			run_phase(d, &py, &px);
		}
}

/* ------------------------------------------------------------------ backward, weights */

/* dw[out][in][tap] += from[out][tap][in] */
static void add_weights(const struct backend_conv *d, const float *from)
{
	int64_t taps = d->kernel * d->kernel, in = d->in;
#pragma omp parallel for schedule(static) if (d->out * in * taps > CPU_PARALLEL_MIN)
	for (int64_t o = 0; o < d->out; o++)
		for (int64_t i = 0; i < in; i++)
			for (int64_t t = 0; t < taps; t++)
				d->dw[(o * in + i) * taps + t] += from[(o * taps + t) * in + i];
}

static void direct_backward_weight(const struct backend_conv *d)
{
	const struct gemm_patches patches = patches_forward(d);
	int64_t depth = d->in * d->kernel * d->kernel;
	bool direct = d->kernel == 1;
	struct gemm g = product(d, direct ? 0 : d->out * depth * (int64_t)sizeof(float));
	g.m = d->out;
	g.n = depth;
	g.k = d->n * patches.out_h * patches.out_w;
	g.a = matrix(d->dy, d->out);
	g.a.transposed = true;
	g.b = matrix(d->x, d->in);
	if (!pointwise(d))
		g.b.patches = &patches;
	g.c_type = GEMM_F32;
	g.c = direct ? d->dw : d->ws.data;
	g.c_stride = depth;
	g.accumulate = direct;
	gemm_run(&g);
	if (!direct)
		add_weights(d, d->ws.data);
}

void CPU_FN(conv_backward_weight)(const struct backend_conv *d)
{
	if (CPU_FN(winograd_fits)(d))
		CPU_FN(winograd_backward_weight)(d);
	else
		direct_backward_weight(d);
	if (d->db)
		CPU_FN(column_sum)
	(d->n * out_size(d, d->h) * out_size(d, d->w), d->out, d->dy, d->out, d->db);
}

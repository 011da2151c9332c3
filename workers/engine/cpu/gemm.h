/* SPDX-License-Identifier: Apache-2.0
 * Matrix products of the CPU backend: C = epilogue(alpha A B), where A and B are matrices of any of
 * our types, or the patches of images (implicit im2col). Called by linear.c, conv.c and the
 * classifier from the engine's thread; runs on the OpenMP team; allocates nothing; cannot fail. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum gemm_type { GEMM_F32, GEMM_BF16, GEMM_F16 };
enum gemm_act { GEMM_NONE, GEMM_RELU, GEMM_GELU };

/* Patches of an image tensor [n, h, w, c], channels last, as a matrix that is never stored: a row
 * for each output pixel, (image * out_h + oy) * out_w + ox, and a column for each tap and channel,
 * (ky * kernel_w + kx) * c + channel. The element is the tensor's value at the pixel
 *
 *	vy = oy * stride + origin_y + ky * tap_step,  y = vy / hole,  and x likewise,
 *
 * and 0 where vy is not a multiple of hole or y lies outside of the image. So
 *
 *	forward:        origin = -padding, tap_step = 1,  hole = 1, the convolution's stride;
 *	                y[pixels, out] = patches(x) w, w as [kernel_h * kernel_w * in, out];
 *	backward data:  origin = +padding, tap_step = -1, hole = the convolution's stride, stride 1,
 *	                outputs = the input's pixels; dx[pixels, in] = patches(dy) w,
 *	                w as [kernel_h * kernel_w * out, in];
 *	backward weight: as forward, as the operand whose rows are summed over:
 *	                dw[out, taps * in] = dy' patches(x). Patches as B are read without transposing
 *	                and as A transposed; both work, B is faster.
 *
 * Taps outside cost a zero fill, not a product less. */
struct gemm_patches {
	int64_t n, h, w, c;         /* the tensor */
	int64_t out_h, out_w;       /* rows: n * out_h * out_w */
	int64_t kernel_h, kernel_w; /* columns: kernel_h * kernel_w * c */
	int64_t stride, hole;       /* >= 1 */
	int64_t origin_y, origin_x; /* where tap 0 of output 0 lies */
	int64_t tap_step;           /* 1 or -1 */
};

/* One operand. The stored matrix has element (r, c) at base[r * row_stride + c]; `transposed` reads
 * it as its transpose. With group > 0 stored rows come in groups: row r begins at
 * (r / group) * group_stride + (r % group) * row_stride. With patches the stored matrix is the
 * patches of the tensor at base, and strides are not read. Strides in elements. */
struct gemm_source {
	enum gemm_type type;
	bool transposed;
	const void *base;
	int64_t row_stride;
	int64_t group, group_stride;
	const struct gemm_patches *patches;
};

/* A product. With t = alpha A B + bias (a value for each column):
 *	pre = t;  t = act(t);  t += residual;  t *= act'(gate) by gate_act;  C = t
 * each step only where its member is set. pre rounds t to C's type, and so does GELU without it, so
 * that who computes GELU again from pre has the same. GELU is the tanh form; GEMM_RELU as gate_act
 * multiplies by gate > 0, GEMM_GELU by the derivative at gate. pre, residual and gate have C's type
 * and stride, and residual and gate may be C itself. With accumulate (C fp32, no epilogue) it is
 * C += alpha A B instead.
 *
 * All sums are fp32. bf16: both operands are rounded to bf16 (nearest even) before they are
 * multiplied, in the CPU's own bf16 instructions where it has them; otherwise values are multiplied
 * as they are. The order of each sum depends on m, n, k, the types and the instruction set, never
 * on threads or workspace: any number of threads gives the same bits. All sizes >= 1. */
struct gemm {
	int64_t m, n, k;
	struct gemm_source a, b;
	bool bf16;
	float alpha;
	enum gemm_type c_type;
	void *c;
	int64_t c_stride;
	bool accumulate;
	const float *bias;
	enum gemm_act act;
	void *pre;
	const void *residual;
	enum gemm_act gate_act;
	const void *gate;
	void *workspace;         /* any alignment */
	int64_t workspace_bytes; /* >= GEMM_WORKSPACE_MIN or gemm_workspace_bytes() */
};

enum {
	GEMM_K_BLOCK = 768, /* of 32-bit units: floats, or pairs of bf16 */
	GEMM_WORKSPACE_MIN = 256 * 1024,
	GEMM_WORKSPACE_MAX = 8 * 1024 * 1024,
};

/* What a product should be given; less than that, down to GEMM_WORKSPACE_MIN, costs speed, not
 * results. Threads share it. The plan repeats this formula:
 *	min(MAX, max(MIN, 16 * (min(k, K_BLOCK) + 1024) * min(n rounded up to 32, 256) + MIN)) */
int64_t gemm_workspace_bytes(int64_t m, int64_t n, int64_t k);

/* Runs it on the calling thread's OpenMP team. */
void gemm_run(const struct gemm *g);

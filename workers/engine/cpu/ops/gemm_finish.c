/* SPDX-License-Identifier: Apache-2.0
 * From a tile of sums to C: alpha, bias, activation, residual, gate, type. Runs once for each
 * element, while the sums are in the first-level cache. */
#include "workers/engine/cpu/ops/gemm_ops.h"

/* GELU in its tanh form is x * s with s = sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3). */
#define GELU_2U 1.5957691216f /* 2 sqrt(2/pi) */
#define GELU_CUBE 0.044715f

GEMM_INLINE gv_f32 gelu_sigmoid(gv_f32 x)
{
	gv_f32 u2 = x * GELU_2U * (x * x * GELU_CUBE + 1.0f);
	return 1.0f / (gv_exp(-u2) + 1.0f);
}

GEMM_INLINE gv_f32 gelu(gv_f32 x)
{
	return x * gelu_sigmoid(x);
}

GEMM_INLINE gv_f32 gelu_slope(gv_f32 x)
{
	gv_f32 s = gelu_sigmoid(x);
	gv_f32 slope_2u = x * x * (3.0f * GELU_CUBE * GELU_2U) + GELU_2U;
	return s + x * s * (1.0f - s) * slope_2u;
}

/* NaN stays NaN: a broken run must show. */
GEMM_INLINE gv_f32 relu(gv_f32 x)
{
	return (gv_f32)((gv_u32)x & ~(gv_u32)(x < 0.0f));
}

GEMM_INLINE gv_f32 where_positive(gv_f32 x, gv_f32 v)
{
	return (gv_f32)((gv_u32)(x > 0.0f) & (gv_u32)v);
}

/* One vector of C and its companions, at byte offset `at` of each; bias NULL: none. */
GEMM_INLINE gv_f32 epilogue(
	const int type, const struct gemm *g, gv_f32 v, const char *bias, int64_t at)
{
	v *= g->alpha;
	if (bias)
		v += gv_load(bias);
	if (g->pre)
		gv_store_as(type, (char *)g->pre + at, v);
	if (g->act == GEMM_RELU)
		v = relu(v);
	else if (g->act == GEMM_GELU)
		v = gelu(v);
	if (g->residual)
		v += gv_load_as(type, (const char *)g->residual + at);
	if (g->gate_act == GEMM_RELU)
		v = where_positive(gv_load_as(type, (const char *)g->gate + at), v);
	else if (g->gate_act == GEMM_GELU)
		v *= gelu_slope(gv_load_as(type, (const char *)g->gate + at));
	return v;
}

/* The last columns, fewer than a vector: the same in padded copies. */
GEMM_INLINE void edge(const int type, const struct gemm *g, const float *sums, int64_t count,
	int64_t at, int64_t column)
{
	const size_t bytes = (size_t)(count * gv_type_bytes(type));
	char sum[GV * 4] = { 0 }, bias[GV * 4] = { 0 }, c[GV * 4] = { 0 }, pre[GV * 4] = { 0 };
	char residual[GV * 4] = { 0 }, gate[GV * 4] = { 0 };
	struct gemm part = *g;
	memcpy(sum, sums, (size_t)count * sizeof(float));
	if (g->bias)
		memcpy(bias, g->bias + column, (size_t)count * sizeof(float));
	if (g->residual)
		part.residual = memcpy(residual, (const char *)g->residual + at, bytes);
	if (g->gate)
		part.gate = memcpy(gate, (const char *)g->gate + at, bytes);
	if (g->pre)
		part.pre = pre;
	gv_f32 v = epilogue(type, &part, gv_load(sum), g->bias ? bias : NULL, 0);
	if (g->accumulate) {
		memcpy(c, (const char *)g->c + at, bytes);
		v += gv_load(c);
	}
	gv_store_as(type, c, v);
	memcpy((char *)g->c + at, c, bytes);
	if (g->pre)
		memcpy((char *)g->pre + at, pre, bytes);
}

GEMM_INLINE void finish(const int type, const struct gemm_finish *f)
{
	const struct gemm *g = f->g;
	const int64_t size = gv_type_bytes(type);
	for (int64_t i = 0; i < f->rows; i++) {
		const float *sums = f->sums + i * f->sums_stride;
		int64_t at = ((f->row + i) * g->c_stride + f->column) * size, j = 0;
		for (; j + GV <= f->columns; j += GV, at += GV * size) {
			const float *bias = g->bias ? g->bias + f->column + j : NULL;
			gv_f32 v = epilogue(type, g, gv_load(sums + j), (const char *)bias, at);
			if (g->accumulate)
				v += gv_load((const char *)g->c + at);
			gv_store_as(type, (char *)g->c + at, v);
		}
		if (j < f->columns)
			edge(type, g, sums + j, f->columns - j, at, f->column + j);
	}
}

void GEMM_FN(gemm_finish)(const struct gemm_finish *f)
{
	if (f->g->c_type == GEMM_F32)
		finish(GEMM_F32, f);
	else if (f->g->c_type == GEMM_BF16)
		finish(GEMM_BF16, f);
	else
		finish(GEMM_F16, f);
}

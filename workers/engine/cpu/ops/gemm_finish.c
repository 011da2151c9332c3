/* SPDX-License-Identifier: Apache-2.0
 * From a tile of sums to C: alpha, bias, activation, residual, gate, type. Runs once for each
 * element, while the sums are in the first-level cache. */
#include "workers/engine/cpu/ops/gelu.h"
#include "workers/engine/cpu/ops/gemm_ops.h"

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
	if (g->pre || g->act == GEMM_GELU) {
		/* GELU of what is stored, or would be: who computes it again from there has the same. */
		char stored[GV * 4], *pre = g->pre ? (char *)g->pre + at : stored;
		gv_store_as(type, pre, v);
		v = gv_load_as(type, pre);
	}
	if (g->act == GEMM_RELU)
		v = relu(v);
	else if (g->act == GEMM_GELU)
		v = gelu_value(v);
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
	/* A copy: no store through C can change it, so it stays in registers. */
	const struct gemm own = *f->g;
	const struct gemm *g = &own;
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

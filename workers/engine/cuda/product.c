/* SPDX-License-Identifier: Apache-2.0
 * Products with what follows them. Called by cuda/ops/linear.c, conv.c and classifier.cu. */
#include "workers/engine/cuda/product.h"

#include "workers/engine/cuda/cuda.h"
#include "workers/engine/cuda/epilogue.h"

/* Three ways, of which the first that gives the right rounding is taken:
 *	whole     cuBLASLt does all of it: bias, and a residual as its C;
 *	in place  the product in C's type first, where what follows starts from the rounded value or
 *	          does not round again;
 *	parts     sums in fp32 in the workspace, a part of C at a time. */

enum { PART_UNIT = 8, REST = 4 /* parts leave a quarter of the workspace to products */ };

/* The product alone; its bias, and the residual where nothing is between. */
static struct cuda_gemm gemm_of(const struct cuda_product *p, void *d)
{
	return (struct cuda_gemm){ .m = p->m,
		.n = p->n,
		.k = p->k,
		.a = p->a,
		.b = p->b,
		.alpha = p->alpha,
		.d_type = p->type,
		.d = d,
		.d_stride = p->c_stride,
		.bias = p->bias,
		.workspace = p->ws.data,
		.workspace_bytes = p->ws.bytes };
}

static struct cuda_epilogue epilogue_of(const struct cuda_product *p)
{
	return (struct cuda_epilogue){ .rows = p->m,
		.columns = p->n,
		.type = p->type,
		.bias = p->bias,
		.act = p->act,
		.gate_act = p->gate ? p->gate_act : PLAN_ACT_NONE,
		.pre = p->pre,
		.residual = p->residual,
		.gate = p->gate,
		.y = p->c,
		.stride = p->c_stride };
}

static const void *at(const void *base, int64_t offset, enum plan_type type)
{
	return base ? (const char *)base + offset * plan_type_bytes(type) : NULL;
}

static struct cuda_gemm_source from(struct cuda_gemm_source s, int64_t row, int64_t column)
{
	int64_t offset = s.transposed ? column * s.stride + row : row * s.stride + column;
	s.base = at(s.base, offset, s.type);
	return s;
}

/* `rows` by `columns` of C, from (row, column). */
static void run_part(const struct cuda_product *p, int64_t row, int64_t rows, int64_t column,
	int64_t columns, int64_t sums_bytes)
{
	int64_t offset = row * p->c_stride + column;
	cuda_gemm(&(struct cuda_gemm){ .m = rows,
		.n = columns,
		.k = p->k,
		.a = from(p->a, row, 0),
		.b = from(p->b, 0, column),
		.alpha = p->alpha,
		.d_type = PLAN_F32,
		.d = p->ws.data,
		.d_stride = columns,
		.workspace = (char *)p->ws.data + sums_bytes,
		.workspace_bytes = p->ws.bytes - sums_bytes });
	struct cuda_epilogue e = epilogue_of(p);
	e.rows = rows;
	e.columns = columns;
	e.sums_type = PLAN_F32;
	e.sums = p->ws.data;
	e.sums_stride = columns;
	e.bias = at(p->bias, column, PLAN_F32);
	e.pre = (void *)at(p->pre, offset, p->type);
	e.residual = at(p->residual, offset, p->type);
	e.gate = at(p->gate, offset, p->type);
	e.y = (void *)at(p->c, offset, p->type);
	cuda_epilogue(&e);
}

static int64_t least(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

/* Whole rows where the workspace holds one. */
static void run_parts(const struct cuda_product *p)
{
	int64_t sums_bytes = p->ws.bytes - p->ws.bytes / REST;
	sums_bytes -= sums_bytes % PLAN_ALIGN_BYTES;
	int64_t room = sums_bytes / plan_type_bytes(PLAN_F32);
	int64_t columns = least(p->n, room);
	if (columns < p->n && columns >= PART_UNIT)
		columns -= columns % PART_UNIT;
	if (columns < 1) {
		cuda_failed_because("a product", "its workspace is too small");
		return;
	}
	int64_t rows = least(p->m, room / columns);
	if (rows < p->m && rows >= PART_UNIT)
		rows -= rows % PART_UNIT;
	for (int64_t i = 0; i < p->m; i += rows)
		for (int64_t j = 0; j < p->n; j += columns)
			run_part(p, i, least(rows, p->m - i), j, least(columns, p->n - j), sums_bytes);
}

/* What the sums come to before anything that cuBLASLt does not do. */
static void run_in_place(const struct cuda_product *p, void *sums, bool with_residual)
{
	struct cuda_gemm g = gemm_of(p, sums);
	if (with_residual && p->residual) {
		g.c = p->residual;
		g.c_stride = p->c_stride;
		g.beta = 1;
	}
	cuda_gemm(&g);
	if (p->act == PLAN_ACT_NONE && !p->gate)
		return;
	struct cuda_epilogue e = epilogue_of(p);
	e.sums_type = p->type;
	e.sums = sums;
	e.sums_stride = p->c_stride;
	e.bias = NULL;
	e.pre = NULL;
	if (with_residual)
		e.residual = NULL;
	cuda_epilogue(&e);
}

void cuda_product(const struct cuda_product *p)
{
	struct cuda_gemm g = gemm_of(p, p->c);
	bool wide = p->type == PLAN_F32; /* nothing is rounded on the way */
	bool gelu = p->act == PLAN_ACT_GELU, relu = p->act == PLAN_ACT_RELU;
	bool apart = p->residual != p->c; /* C may hold the sums until it is added */
	bool gate_apart = !p->gate || p->gate != p->c;
	bool takes_bias = !p->bias || cuda_gemm_takes_bias(&g);
	if (!takes_bias || !gate_apart || (p->pre && !gelu))
		run_parts(p);
	else if (p->act == PLAN_ACT_NONE && (wide || !p->gate || p->gate_act == PLAN_ACT_RELU))
		/* Without a gate, cuBLASLt's whole. x gated by RELU is x or 0: rounded before as after. */
		run_in_place(p, p->c, true);
	else if (gelu && (p->pre || apart) && (wide || !p->gate))
		/* GELU is of the rounded value. */
		run_in_place(p, p->pre ? p->pre : p->c, false);
	else if (relu && apart && (wide || (!p->residual && !p->gate)))
		/* RELU of the rounded is the rounded of RELU; cuBLASLt's own would lose NaN. */
		run_in_place(p, p->c, false);
	else
		run_parts(p);
}

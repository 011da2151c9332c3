/* SPDX-License-Identifier: Apache-2.0
 * Products by cuBLASLt (gemm.h). What it needs to know of a shape, and the algorithm it chose, are
 * made when a shape is first seen and remembered: a step's products allocate nothing. cuBLASLt's
 * matrices are column-major, so that it is asked for D' = B' A', whose operands are ours as they
 * are stored. */
#include "workers/engine/cuda/gemm.h"

#include "core/base/num.h"
#include "workers/engine/cuda/convert.h"
#include "workers/engine/cuda/cublaslt_library.h"
#include "workers/engine/cuda/cuda.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum {
	SETS = 256, /* a power of two */
	WAYS = 4,   /* the oldest goes */
	ALIGN_BYTES_MAX = 256,
	COLUMN_UNIT = 8,
};

enum matrix { A, B, C, D, MATRICES };

/* All that an algorithm is chosen by. No padding: compared as bytes. beta is not part of it, so
 * that writing and adding to zeros give the same bits. */
struct shape {
	int64_t m, n, k, batch;
	int64_t stride[MATRICES], batch_stride[MATRICES], align[MATRICES];
	int64_t type, d_type, tf32;
	int64_t transposed[2];
	int64_t bias_align; /* 0: none */
	int64_t workspace_bytes;
};

struct entry {
	bool used, supported;
	struct shape shape;
	cublasLtMatmulDesc_t product;
	cublasLtMatrixLayout_t layout[MATRICES];
	cublasLtMatmulAlgo_t algorithm;
};

struct cuda_gemm_ctx {
	const struct cublaslt *lt;
	cublasLtHandle_t handle;
	cublasLtMatmulPreference_t preference;
	struct entry entry[SETS][WAYS];
	int oldest[SETS];
};

static _Thread_local struct cuda_gemm_ctx *current;

static void failed(const struct cuda_gemm_ctx *ctx, cublasStatus_t status)
{
	cuda_failed_because("a product by cuBLASLt", ctx->lt->cublasLtGetStatusString(status));
}

/* --------------------------------------------------------------------------------------- shapes */

static cudaDataType_t type_of(int64_t type)
{
	assert(type == PLAN_F32 || type == PLAN_BF16 || type == PLAN_F16);
	return type == PLAN_F32 ? CUDA_R_32F : type == PLAN_BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

static int64_t align_of(const void *p)
{
	uintptr_t bits = (uintptr_t)p | ALIGN_BYTES_MAX;
	return (int64_t)(bits & -bits);
}

static struct shape shape_of(const struct cuda_gemm *g)
{
	const void *c = g->c ? g->c : g->d;
	return (struct shape){ .m = g->m,
		.n = g->n,
		.k = g->k,
		.batch = g->batch > 1 ? g->batch : 1,
		.stride = { g->a.stride, g->b.stride, g->c ? g->c_stride : g->d_stride, g->d_stride },
		.batch_stride = { g->a.batch_stride, g->b.batch_stride,
			g->c ? g->c_batch_stride : g->d_batch_stride, g->d_batch_stride },
		.align = { align_of(g->a.base), align_of(g->b.base), align_of(c), align_of(g->d) },
		.type = g->a.type,
		.d_type = g->d_type,
		.tf32 = g->a.type == PLAN_F32 && cuda_tf32(),
		.transposed = { g->a.transposed, g->b.transposed },
		.bias_align = g->bias ? align_of(g->bias) : 0,
		.workspace_bytes = g->workspace_bytes };
}

static unsigned set_of(const struct shape *s)
{
	uint64_t words[sizeof(*s) / sizeof(uint64_t)], hash = 0;
	memcpy(words, s, sizeof(words));
	for (size_t i = 0; i < ARRAY_LEN(words); i++) {
		hash = (hash ^ words[i]) * 0x9e3779b97f4a7c15u;
		hash ^= hash >> 32;
	}
	return (unsigned)(hash % SETS);
}

/* A matrix of ours as stored: `rows` of `columns`, which are columns of cuBLASLt's. */
static cublasStatus_t make_layout(const struct cublaslt *lt, const struct shape *s, enum matrix i,
	int64_t rows, int64_t columns, cublasLtMatrixLayout_t *ret)
{
	int32_t batch = (int32_t)s->batch;
	int64_t type = i == A || i == B ? s->type : s->d_type;
	cublasStatus_t rc = lt->cublasLtMatrixLayoutCreate(
		ret, type_of(type), (uint64_t)columns, (uint64_t)rows, s->stride[i]);
	if (rc == CUBLAS_STATUS_SUCCESS && batch > 1)
		rc = lt->cublasLtMatrixLayoutSetAttribute(
			*ret, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof(batch));
	if (rc == CUBLAS_STATUS_SUCCESS && batch > 1)
		rc = lt->cublasLtMatrixLayoutSetAttribute(*ret, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
			&s->batch_stride[i], sizeof(s->batch_stride[i]));
	return rc;
}

static cublasStatus_t make_layouts(
	const struct cublaslt *lt, const struct shape *s, cublasLtMatrixLayout_t *ret)
{
	bool at = s->transposed[A], bt = s->transposed[B];
	cublasStatus_t rc = make_layout(lt, s, A, at ? s->k : s->m, at ? s->m : s->k, &ret[A]);
	if (rc == CUBLAS_STATUS_SUCCESS)
		rc = make_layout(lt, s, B, bt ? s->n : s->k, bt ? s->k : s->n, &ret[B]);
	if (rc == CUBLAS_STATUS_SUCCESS)
		rc = make_layout(lt, s, C, s->m, s->n, &ret[C]);
	if (rc == CUBLAS_STATUS_SUCCESS)
		rc = make_layout(lt, s, D, s->m, s->n, &ret[D]);
	return rc;
}

/* Sums in fp32. bias: of the shape's alignment; the call brings its own. */
static cublasStatus_t make_product(
	const struct cublaslt *lt, const struct shape *s, const void *bias, cublasLtMatmulDesc_t *ret)
{
	cublasOperation_t a = s->transposed[A] ? CUBLAS_OP_T : CUBLAS_OP_N;
	cublasOperation_t b = s->transposed[B] ? CUBLAS_OP_T : CUBLAS_OP_N;
	cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
	int32_t bias_type = CUDA_R_32F;
	cublasComputeType_t compute = s->tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
	cublasStatus_t rc = lt->cublasLtMatmulDescCreate(ret, compute, CUDA_R_32F);
	struct {
		cublasLtMatmulDescAttributes_t attribute;
		const void *value;
		size_t bytes;
	} set[] = {
		{ CUBLASLT_MATMUL_DESC_TRANSA, &b, sizeof(b) },
		{ CUBLASLT_MATMUL_DESC_TRANSB, &a, sizeof(a) },
		{ CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue) },
		{ CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &bias_type, sizeof(bias_type) },
		{ CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof(bias) },
	};
	size_t count = s->bias_align > 0 ? ARRAY_LEN(set) : 2;
	for (size_t i = 0; i < count && rc == CUBLAS_STATUS_SUCCESS; i++)
		rc = lt->cublasLtMatmulDescSetAttribute(*ret, set[i].attribute, set[i].value, set[i].bytes);
	return rc;
}

/* Partial sums of a split K are added up in fp32 or not made: D is rounded once. */
static cublasStatus_t prefer(const struct cuda_gemm_ctx *ctx, const struct shape *s)
{
	uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
	uint64_t workspace = (uint64_t)s->workspace_bytes;
	uint32_t align[MATRICES];
	for (int i = 0; i < MATRICES; i++)
		align[i] = (uint32_t)s->align[i];
	const struct {
		cublasLtMatmulPreferenceAttributes_t attribute;
		const void *value;
		size_t bytes;
	} set[] = {
		{ CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reduction, sizeof(reduction) },
		{ CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof(workspace) },
		{ CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &align[B], sizeof(align[B]) },
		{ CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &align[A], sizeof(align[A]) },
		{ CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &align[C], sizeof(align[C]) },
		{ CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &align[D], sizeof(align[D]) },
	};
	cublasStatus_t rc = CUBLAS_STATUS_SUCCESS;
	for (size_t i = 0; i < ARRAY_LEN(set) && rc == CUBLAS_STATUS_SUCCESS; i++)
		rc = ctx->lt->cublasLtMatmulPreferenceSetAttribute(
			ctx->preference, set[i].attribute, set[i].value, set[i].bytes);
	return rc;
}

static void clear_entry(const struct cublaslt *lt, struct entry *e)
{
	for (int i = 0; i < MATRICES; i++)
		if (e->layout[i])
			(void)lt->cublasLtMatrixLayoutDestroy(e->layout[i]);
	if (e->product)
		(void)lt->cublasLtMatmulDescDestroy(e->product);
	memset(e, 0, sizeof(*e));
}

/* Without an algorithm the entry stays, unsupported. */
static cublasStatus_t fill_entry(
	struct cuda_gemm_ctx *ctx, const struct shape *s, const void *bias, struct entry *e)
{
	const struct cublaslt *lt = ctx->lt;
	cublasLtMatmulHeuristicResult_t found;
	int count = 0;
	cublasStatus_t rc = make_layouts(lt, s, e->layout);
	if (rc == CUBLAS_STATUS_SUCCESS)
		rc = make_product(lt, s, bias, &e->product);
	if (rc == CUBLAS_STATUS_SUCCESS)
		rc = prefer(ctx, s);
	if (rc != CUBLAS_STATUS_SUCCESS)
		return rc;
	memset(&found, 0, sizeof(found));
	rc = lt->cublasLtMatmulAlgoGetHeuristic(ctx->handle, e->product, e->layout[B], e->layout[A],
		e->layout[C], e->layout[D], ctx->preference, 1, &found, &count);
	e->supported = rc == CUBLAS_STATUS_SUCCESS && count > 0 && found.state == CUBLAS_STATUS_SUCCESS;
	e->algorithm = found.algo;
	e->shape = *s;
	e->used = true;
	return CUBLAS_STATUS_SUCCESS;
}

/* NULL when something failed, which is reported. */
static struct entry *entry_of(struct cuda_gemm_ctx *ctx, const struct cuda_gemm *g)
{
	struct shape s = shape_of(g);
	unsigned set = set_of(&s);
	struct entry *ways = ctx->entry[set];
	for (int i = 0; i < WAYS; i++)
		if (ways[i].used && memcmp(&ways[i].shape, &s, sizeof(s)) == 0)
			return &ways[i];
	struct entry *e = &ways[ctx->oldest[set]];
	ctx->oldest[set] = (ctx->oldest[set] + 1) % WAYS;
	clear_entry(ctx->lt, e);
	cublasStatus_t rc = fill_entry(ctx, &s, g->bias, e);
	if (rc == CUBLAS_STATUS_SUCCESS)
		return e;
	clear_entry(ctx->lt, e);
	failed(ctx, rc);
	return NULL;
}

/* ------------------------------------------------------------------------------------- products */

/* cuBLASLt wants its workspace aligned. */
static struct cuda_gemm with_aligned_workspace(const struct cuda_gemm *g)
{
	struct cuda_gemm aligned = *g;
	int64_t skip = -(int64_t)(uintptr_t)g->workspace & (ALIGN_BYTES_MAX - 1);
	bool fits = g->workspace && g->workspace_bytes > skip;
	aligned.workspace = fits ? (char *)g->workspace + skip : NULL;
	aligned.workspace_bytes = fits ? g->workspace_bytes - skip : 0;
	return aligned;
}

static void run(const struct cuda_gemm *g)
{
	struct cuda_gemm_ctx *ctx = current;
	struct entry *e = entry_of(ctx, g);
	if (!e)
		return;
	if (!e->supported) {
		failed(ctx, CUBLAS_STATUS_NOT_SUPPORTED);
		return;
	}
	cublasStatus_t rc = CUBLAS_STATUS_SUCCESS;
	if (g->bias)
		rc = ctx->lt->cublasLtMatmulDescSetAttribute(
			e->product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &g->bias, sizeof(g->bias));
	if (rc == CUBLAS_STATUS_SUCCESS)
		rc = ctx->lt->cublasLtMatmul(ctx->handle, e->product, &g->alpha, g->b.base, e->layout[B],
			g->a.base, e->layout[A], &g->beta, g->c ? g->c : g->d, e->layout[C], g->d, e->layout[D],
			&e->algorithm, g->workspace, (size_t)g->workspace_bytes, cuda_stream());
	if (rc != CUBLAS_STATUS_SUCCESS)
		failed(ctx, rc);
}

/* B in A's type, as many columns at a time as a half of the workspace holds. */
static void run_mixed(const struct cuda_gemm *g)
{
	int64_t from_bytes = plan_type_bytes(g->b.type), to_bytes = plan_type_bytes(g->a.type);
	int64_t d_bytes = plan_type_bytes(g->d_type), room = g->workspace_bytes / 2;
	if (room < g->k * to_bytes)
		room = g->workspace_bytes;
	int64_t most = room / (g->k * to_bytes);
	if (most >= COLUMN_UNIT)
		most -= most % COLUMN_UNIT;
	if (most < 1) {
		cuda_failed_because("a product of two types", "its workspace is too small");
		return;
	}
	for (int64_t j = 0; j < g->n; j += most) {
		struct cuda_gemm part = *g;
		bool t = g->b.transposed;
		part.n = most < g->n - j ? most : g->n - j;
		cuda_convert(&(struct cuda_convert){ .rows = t ? part.n : g->k,
			.columns = t ? g->k : part.n,
			.from_type = g->b.type,
			.from = (const char *)g->b.base + j * (t ? g->b.stride : 1) * from_bytes,
			.from_stride = g->b.stride,
			.to_type = g->a.type,
			.to = g->workspace });
		part.b.type = g->a.type;
		part.b.base = g->workspace;
		part.b.stride = t ? g->k : part.n;
		part.c = g->c ? (const char *)g->c + j * d_bytes : NULL;
		part.d = (char *)g->d + j * d_bytes;
		part.bias = g->bias ? g->bias + j : NULL;
		part.workspace = (char *)g->workspace + room;
		part.workspace_bytes = g->workspace_bytes - room;
		part = with_aligned_workspace(&part);
		run(&part);
	}
}

void cuda_gemm(const struct cuda_gemm *g)
{
	assert(g->m > 0 && g->n > 0 && g->k > 0);
	assert(g->d_type == g->a.type || g->d_type == PLAN_F32);
	assert(g->c || g->beta == 0);
	struct cuda_gemm aligned = with_aligned_workspace(g);
	if (g->a.type == g->b.type)
		run(&aligned);
	else
		run_mixed(&aligned);
}

bool cuda_gemm_takes_bias(const struct cuda_gemm *g)
{
	if (g->d_type == PLAN_F32)
		return true;
	if (g->a.type != g->b.type)
		return false; /* in parts, of shapes of their own */
	struct cuda_gemm aligned = with_aligned_workspace(g);
	const struct entry *e = entry_of(current, &aligned);
	return e && e->supported;
}

/* -------------------------------------------------------------------------------------- context */

int cuda_gemm_create(struct cuda_gemm_ctx **ret, struct err *err)
{
	const struct cublaslt *lt = NULL;
	int code = cublaslt_library(&lt, err);
	if (code)
		return code;
	struct cuda_gemm_ctx *ctx = calloc(1, sizeof(*ctx));
	if (!ctx)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for the device's products");
	ctx->lt = lt;
	cublasStatus_t rc = lt->cublasLtCreate(&ctx->handle);
	if (rc == CUBLAS_STATUS_SUCCESS)
		rc = lt->cublasLtMatmulPreferenceCreate(&ctx->preference);
	if (rc != CUBLAS_STATUS_SUCCESS) {
		cuda_gemm_destroy(ctx);
		return err_set(err, ERR_UNAVAILABLE, NULL, "cuBLASLt cannot be used: %s",
			lt->cublasLtGetStatusString(rc));
	}
	*ret = ctx;
	return 0;
}

void cuda_gemm_destroy(struct cuda_gemm_ctx *ctx)
{
	if (!ctx)
		return;
	for (int set = 0; set < SETS; set++)
		for (int way = 0; way < WAYS; way++)
			clear_entry(ctx->lt, &ctx->entry[set][way]);
	if (ctx->preference)
		(void)ctx->lt->cublasLtMatmulPreferenceDestroy(ctx->preference);
	if (ctx->handle)
		(void)ctx->lt->cublasLtDestroy(ctx->handle);
	if (current == ctx)
		current = NULL;
	free(ctx);
}

void cuda_gemm_enter(struct cuda_gemm_ctx *ctx)
{
	current = ctx;
}

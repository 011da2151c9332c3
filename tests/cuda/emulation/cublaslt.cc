/* SPDX-License-Identifier: Apache-2.0
 * A stand-in of the part of cuBLASLt that workers/engine/cuda calls, under its real names: plain
 * products on the stream's thread, with sums in fp32; of operands rounded to TF32 where asked. */
#include "tests/cuda/emulation/emulation.h"
#include "tests/cuda/emulation/report.h"

/* It refuses what the library's header and documentation refuse, and ends the process where a
 * device would read or write what nobody meant: pointers less aligned than was said, a workspace
 * too small. A product fills its workspace with poison. Half of the seeds know a bias in fp32 for
 * an output in 16 bits, which the header excludes and libraries are free to have. */

#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <stdint.h>
#include <string.h>
#include <vector>

enum { CUBLASLT_ALIGN_BYTES = 256, CUBLASLT_WORKSPACE_MAX = 32 * 1024 * 1024 };

struct cublasLtContext {
	bool open;
};

/* Bodies of the opaque descriptors. */
struct lt_desc {
	bool tf32;
	cublasOperation_t a, b;
	uint32_t epilogue;
	int32_t bias_type; /* -1: D's */
	const void *bias;
};

struct lt_layout {
	cudaDataType_t type;
	uint64_t rows, columns;
	int64_t ld, batch_stride;
	int32_t batch;
};

struct lt_preference {
	uint64_t workspace_bytes;
	uint32_t reduction, align[4]; /* A, B, C, D */
};

/* What an algorithm was chosen by, and relies on. */
struct lt_algo {
	uint64_t rows, columns, depth;
	uint64_t workspace_bytes;
	uint32_t align[4], bias_align;
};

template <typename T, typename O> static T *body(O *opaque)
{
	static_assert(sizeof(T) <= sizeof(*opaque), "the header's room");
	return reinterpret_cast<T *>(opaque);
}

static size_t type_bytes(int type)
{
	return type == CUDA_R_32F ? 4 : type == CUDA_R_16BF || type == CUDA_R_16F ? 2 : 0;
}

static uint32_t align_of(const void *p)
{
	uintptr_t bits = (uintptr_t)p | CUBLASLT_ALIGN_BYTES;
	return (uint32_t)(bits & (~bits + 1));
}

template <typename V> static cublasStatus_t take(V *to, const void *from, size_t bytes)
{
	if (from == nullptr || bytes != sizeof(V))
		return CUBLAS_STATUS_INVALID_VALUE;
	memcpy(to, from, bytes);
	return CUBLAS_STATUS_SUCCESS;
}

/* ---------------------------------------------------------------------------------- descriptors */

cublasStatus_t cublasLtCreate(cublasLtHandle_t *ret)
{
	*ret = new cublasLtContext{ true };
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
	delete handle;
	return CUBLAS_STATUS_SUCCESS;
}

const char *cublasLtGetStatusString(cublasStatus_t status)
{
	switch (status) {
	case CUBLAS_STATUS_SUCCESS: return "success";
	case CUBLAS_STATUS_INVALID_VALUE: return "an unsupported value or parameter was passed";
	case CUBLAS_STATUS_NOT_SUPPORTED: return "the functionality requested is not supported";
	default: return "another failure";
	}
}

cublasStatus_t cublasLtMatmulDescCreate(
	cublasLtMatmulDesc_t *ret, cublasComputeType_t compute, cudaDataType_t scale)
{
	bool tf32 = compute == CUBLAS_COMPUTE_32F_FAST_TF32;
	if ((compute != CUBLAS_COMPUTE_32F && !tf32) || scale != CUDA_R_32F)
		return CUBLAS_STATUS_NOT_SUPPORTED;
	*ret = new cublasLtMatmulDescOpaque_t();
	*body<lt_desc>(
		*ret) = { tf32, CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT, -1, nullptr };
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc)
{
	delete desc;
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
	cublasLtMatmulDescAttributes_t attribute, const void *value, size_t bytes)
{
	struct lt_desc *d = body<lt_desc>(desc);
	switch (attribute) {
	case CUBLASLT_MATMUL_DESC_TRANSA: return take(&d->a, value, bytes);
	case CUBLASLT_MATMUL_DESC_TRANSB: return take(&d->b, value, bytes);
	case CUBLASLT_MATMUL_DESC_EPILOGUE: return take(&d->epilogue, value, bytes);
	case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: return take(&d->bias_type, value, bytes);
	case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return take(&d->bias, value, bytes);
	default: return CUBLAS_STATUS_INVALID_VALUE;
	}
}

cublasStatus_t cublasLtMatrixLayoutCreate(
	cublasLtMatrixLayout_t *ret, cudaDataType type, uint64_t rows, uint64_t columns, int64_t ld)
{
	*ret = new cublasLtMatrixLayoutOpaque_t();
	*body<lt_layout>(*ret) = { type, rows, columns, ld, 0, 1 };
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
	delete layout;
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
	cublasLtMatrixLayoutAttribute_t attribute, const void *value, size_t bytes)
{
	struct lt_layout *l = body<lt_layout>(layout);
	switch (attribute) {
	case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT: return take(&l->batch, value, bytes);
	case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET: return take(&l->batch_stride, value, bytes);
	default: return CUBLAS_STATUS_INVALID_VALUE;
	}
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *ret)
{
	*ret = new cublasLtMatmulPreferenceOpaque_t();
	*body<lt_preference>(*ret) = { 0, CUBLASLT_REDUCTION_SCHEME_MASK, { 256, 256, 256, 256 } };
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
	delete preference;
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
	cublasLtMatmulPreferenceAttributes_t attribute, const void *value, size_t bytes)
{
	struct lt_preference *p = body<lt_preference>(preference);
	switch (attribute) {
	case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: return take(&p->workspace_bytes, value, bytes);
	case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: return take(&p->reduction, value, bytes);
	case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES: return take(&p->align[0], value, bytes);
	case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES: return take(&p->align[1], value, bytes);
	case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES: return take(&p->align[2], value, bytes);
	case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: return take(&p->align[3], value, bytes);
	default: return CUBLAS_STATUS_INVALID_VALUE;
	}
}

/* --------------------------------------------------------------------------------------- checks */

/* A product as it will run: all by value. */
struct lt_product {
	struct lt_desc desc;
	struct lt_layout a, b, c, d;
	float alpha, beta;
	const void *a_data, *b_data, *c_data;
	void *d_data;
	uint64_t depth;
};

static bool layout_fits(const struct lt_layout *l, uint64_t rows, uint64_t columns, int32_t batch)
{
	return type_bytes(l->type) > 0 && l->rows == rows && l->columns == columns && rows > 0 &&
		columns > 0 && rows <= INT32_MAX && columns <= INT32_MAX && l->ld >= (int64_t)rows &&
		l->batch == batch;
}

static bool bias_known(const struct lt_desc *d, cudaDataType_t output)
{
	if (d->epilogue == CUBLASLT_EPILOGUE_DEFAULT)
		return true;
	if (d->epilogue != CUBLASLT_EPILOGUE_BIAS || d->bias == nullptr)
		return false;
	int type = d->bias_type < 0 ? (int)output : d->bias_type;
	return type == output || (type == CUDA_R_32F && emulation_seed() % 2 == 0);
}

static cublasStatus_t check(const struct lt_product *p)
{
	bool at = p->desc.a != CUBLAS_OP_N, bt = p->desc.b != CUBLAS_OP_N;
	uint64_t rows = p->d.rows, columns = p->d.columns, depth = at ? p->a.rows : p->a.columns;
	int32_t batch = p->d.batch;
	if (!layout_fits(&p->a, at ? depth : rows, at ? rows : depth, batch) ||
		!layout_fits(&p->b, bt ? columns : depth, bt ? depth : columns, batch) ||
		!layout_fits(&p->c, rows, columns, batch) || !layout_fits(&p->d, rows, columns, batch))
		return CUBLAS_STATUS_INVALID_VALUE;
	if (p->a.type != p->b.type || p->c.type != p->d.type ||
		(p->d.type != p->a.type && p->d.type != CUDA_R_32F) ||
		(p->desc.tf32 && p->a.type != CUDA_R_32F) || !bias_known(&p->desc, p->d.type))
		return CUBLAS_STATUS_NOT_SUPPORTED;
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
	cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
	cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference, int asked,
	cublasLtMatmulHeuristicResult_t ret_results[], int *ret_count)
{
	const struct lt_preference *wish = body<lt_preference>(preference);
	struct lt_product p = {};
	p.desc = *body<lt_desc>(desc);
	p.a = *body<lt_layout>(a);
	p.b = *body<lt_layout>(b);
	p.c = *body<lt_layout>(c);
	p.d = *body<lt_layout>(d);
	*ret_count = 0;
	if (handle == nullptr || asked < 1)
		return CUBLAS_STATUS_INVALID_VALUE;
	cublasStatus_t rc = check(&p);
	if (rc != CUBLAS_STATUS_SUCCESS)
		return rc;
	size_t bytes[] = { type_bytes(p.a.type), type_bytes(p.b.type), type_bytes(p.c.type),
		type_bytes(p.d.type) };
	for (int i = 0; i < 4; i++)
		if (wish->align[i] < bytes[i])
			return CUBLAS_STATUS_NOT_SUPPORTED;
	if (wish->reduction & ~(uint32_t)CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)
		emulation_report(
			"cuBLASLt may round partial sums: reduction schemes 0x%x", wish->reduction);
	struct lt_algo *algo = body<lt_algo>(&ret_results[0].algo);
	*algo = { p.d.rows, p.d.columns, p.desc.a == CUBLAS_OP_N ? p.a.columns : p.a.rows,
		wish->workspace_bytes < CUBLASLT_WORKSPACE_MAX ? wish->workspace_bytes : 0, {}, 0 };
	memcpy(algo->align, wish->align, sizeof(algo->align));
	algo->bias_align = p.desc.bias ? align_of(p.desc.bias) : 0;
	ret_results[0].workspaceSize = algo->workspace_bytes;
	ret_results[0].state = CUBLAS_STATUS_SUCCESS;
	*ret_count = 1;
	return CUBLAS_STATUS_SUCCESS;
}

/* ------------------------------------------------------------------------------------- products */

static float load(int type, const void *base, int64_t i)
{
	if (type == CUDA_R_32F)
		return ((const float *)base)[i];
	if (type == CUDA_R_16F)
		return __half2float(((const __half *)base)[i]);
	return __bfloat162float(((const __nv_bfloat16 *)base)[i]);
}

static void store(int type, void *base, int64_t i, float v)
{
	if (type == CUDA_R_32F)
		((float *)base)[i] = v;
	else if (type == CUDA_R_16F)
		((__half *)base)[i] = __float2half_rn(v);
	else
		((__nv_bfloat16 *)base)[i] = __float2bfloat16_rn(v);
}

/* To 10 bits of mantissa, to nearest, ties away from 0; infinity and NaN stay. */
static float round_tf32(float x)
{
	uint32_t u;
	memcpy(&u, &x, sizeof(u));
	if ((u & 0x7f800000u) != 0x7f800000u)
		u = (u + 0x1000u) & ~0x1fffu;
	memcpy(&x, &u, sizeof(x));
	return x;
}

/* op(matrix) in fp32, columns one after the other. */
static std::vector<float> unpack(
	const struct lt_layout *l, bool transposed, bool tf32, const void *data, int64_t batch)
{
	std::vector<float> v(l->rows * l->columns);
	for (uint64_t j = 0; j < l->columns; j++)
		for (uint64_t i = 0; i < l->rows; i++)
			v[transposed ? i * l->columns + j : j * l->rows + i] =
				load(l->type, data, batch * l->batch_stride + (int64_t)j * l->ld + (int64_t)i);
	for (float &x : v)
		x = tf32 ? round_tf32(x) : x;
	return v;
}

enum { RUN = 64 }; /* terms added up before they join the sum: a device's tiles do so */

static void multiply(const struct lt_product *p, int64_t batch)
{
	uint64_t rows = p->d.rows;
	const struct lt_desc *desc = &p->desc;
	std::vector<float> a = unpack(&p->a, desc->a != CUBLAS_OP_N, desc->tf32, p->a_data, batch);
	std::vector<float> b = unpack(&p->b, desc->b != CUBLAS_OP_N, desc->tf32, p->b_data, batch);
	std::vector<float> sums(rows), run(rows);
	int bias_type = p->desc.bias_type < 0 ? (int)p->d.type : p->desc.bias_type;
	for (uint64_t j = 0; j < p->d.columns; j++) {
		std::fill(sums.begin(), sums.end(), 0.0f);
		for (uint64_t first = 0; first < p->depth; first += RUN) {
			std::fill(run.begin(), run.end(), 0.0f);
			for (uint64_t k = first; k < p->depth && k < first + RUN; k++) {
				float x = b[j * p->depth + k];
				const float *column = &a[k * rows];
				for (uint64_t i = 0; i < rows; i++)
					run[i] += column[i] * x;
			}
			for (uint64_t i = 0; i < rows; i++)
				sums[i] += run[i];
		}
		for (uint64_t i = 0; i < rows; i++) {
			int64_t c = batch * p->c.batch_stride + (int64_t)j * p->c.ld + (int64_t)i;
			int64_t d = batch * p->d.batch_stride + (int64_t)j * p->d.ld + (int64_t)i;
			float v = p->alpha * sums[i];
			if (p->beta != 0)
				v += p->beta * load(p->c.type, p->c_data, c);
			if (p->desc.epilogue == CUBLASLT_EPILOGUE_BIAS)
				v += load(bias_type, p->desc.bias, (int64_t)i);
			store(p->d.type, p->d_data, d, v);
		}
	}
}

static void check_pointers(
	const struct lt_product *p, const struct lt_algo *algo, const void *workspace, size_t bytes)
{
	const void *data[] = { p->a_data, p->b_data, p->c_data, p->d_data };
	if (algo->rows != p->d.rows || algo->columns != p->d.columns || algo->depth != p->depth)
		emulation_report("cuBLASLt: an algorithm for another shape");
	for (int i = 0; i < 4; i++)
		if (data[i] == nullptr || align_of(data[i]) < algo->align[i])
			emulation_report("cuBLASLt: %c at %p is not aligned to %u bytes as was said", 'A' + i,
				data[i], algo->align[i]);
	if (p->desc.epilogue == CUBLASLT_EPILOGUE_BIAS && align_of(p->desc.bias) < algo->bias_align)
		emulation_report("cuBLASLt: the bias is not aligned as was said");
	if (bytes < algo->workspace_bytes ||
		(algo->workspace_bytes > 0 && align_of(workspace) < CUBLASLT_ALIGN_BYTES))
		emulation_report("cuBLASLt: a workspace of %zu bytes at %p, not %llu", bytes, workspace,
			(unsigned long long)algo->workspace_bytes);
	if (p->c_data == p->d_data && (p->c.ld != p->d.ld || p->c.batch_stride != p->d.batch_stride))
		emulation_report("cuBLASLt: C in place of D with another layout");
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha,
	const void *a, cublasLtMatrixLayout_t a_layout, const void *b, cublasLtMatrixLayout_t b_layout,
	const void *beta, const void *c, cublasLtMatrixLayout_t c_layout, void *d,
	cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algorithm, void *workspace,
	size_t workspace_bytes, cudaStream_t stream)
{
	struct lt_algo algo;
	struct lt_product p = { *body<lt_desc>(desc), *body<lt_layout>(a_layout),
		*body<lt_layout>(b_layout), *body<lt_layout>(c_layout), *body<lt_layout>(d_layout), 0, 0, a,
		b, c, d, 0 };
	memcpy(&algo, algorithm, sizeof(algo));
	memcpy(&p.alpha, alpha, sizeof(p.alpha));
	memcpy(&p.beta, beta, sizeof(p.beta));
	p.depth = p.desc.a == CUBLAS_OP_N ? p.a.columns : p.a.rows;
	if (handle == nullptr)
		return CUBLAS_STATUS_NOT_INITIALIZED;
	cublasStatus_t rc = check(&p);
	if (rc != CUBLAS_STATUS_SUCCESS)
		return rc;
	check_pointers(&p, &algo, workspace, workspace_bytes);
	cudaError_t given = emulation_enqueue(stream, [p, workspace, algo]() {
		for (int32_t i = 0; i < p.d.batch; i++)
			multiply(&p, i);
		emulation_poison(workspace, algo.workspace_bytes);
	});
	return given == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

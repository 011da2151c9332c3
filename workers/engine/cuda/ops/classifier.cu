/* SPDX-License-Identifier: Apache-2.0
 * PLAN_OP_CLASSIFIER: the head and its loss without the full logits. A chunk of rows at a time
 * becomes logits in the workspace, then their gradient in place (xent_row.h), then gradients of x
 * and w. The host does not know the labels: a chunk without any costs its products too, of zeros.
 */
#include "workers/engine/cuda/gemm.h"
#include "workers/engine/cuda/ops/xent_row.h"

static enum plan_type classifier_type(const float *)
{
	return PLAN_F32;
}
static enum plan_type classifier_type(const __nv_bfloat16 *)
{
	return PLAN_BF16;
}
static enum plan_type classifier_type(const __half *)
{
	return PLAN_F16;
}

static struct cuda_gemm_source classifier_source(
	enum plan_type type, const void *base, int64_t stride, bool transposed)
{
	struct cuda_gemm_source source = { type, transposed, base, stride, 0 };
	return source;
}

/* d[m,n] = a b + beta d, in the scratch behind the logits. */
template <typename T>
static void classifier_product(const struct backend_classifier *d, int64_t m, int64_t n, int64_t k,
	struct cuda_gemm_source a, struct cuda_gemm_source b, enum plan_type type, void *out,
	float beta)
{
	int64_t logits = (d->chunk * d->v * (int64_t)sizeof(T) + PLAN_ALIGN_BYTES - 1) /
		PLAN_ALIGN_BYTES * PLAN_ALIGN_BYTES; /* plan_workspace_classifier */
	struct cuda_gemm g = {};
	g.m = m;
	g.n = n;
	g.k = k;
	g.a = a;
	g.b = b;
	g.alpha = 1.0f;
	g.beta = beta;
	g.c = beta != 0 ? out : NULL;
	g.c_stride = n;
	g.d_type = type;
	g.d = out;
	g.d_stride = n;
	g.workspace = static_cast<char *>(d->ws.data) + logits;
	g.workspace_bytes = d->ws.bytes - logits;
	cuda_gemm(&g);
}

/* Rows [first, first + rows). */
template <typename T>
static void classifier_chunk(
	const struct backend_classifier *d, int64_t first, int64_t rows, bool overwrite)
{
	const enum plan_type type = classifier_type(static_cast<const T *>(NULL));
	const enum plan_type w_type = d->w_type == PLAN_F32 ? PLAN_F32 : type;
	struct cuda_gemm_source x =
		classifier_source(type, static_cast<const T *>(d->x) + first * d->c, d->c, false);
	T *logits = static_cast<T *>(d->ws.data);
	classifier_product<T>(
		d, rows, d->v, d->c, x, classifier_source(w_type, d->w, d->c, true), type, logits, 0.0f);
	struct backend_softmax_xent xent = { rows, d->v, logits, d->labels + first, d->row_loss + first,
		d->row_hit + first, d->scale, d->smoothing };
	xent_rows<T>(&xent);
	if (!(d->scale > 0))
		return;
	classifier_product<T>(d, rows, d->c, d->v, classifier_source(type, logits, d->v, false),
		classifier_source(w_type, d->w, d->c, false), type, static_cast<T *>(d->dx) + first * d->c,
		0.0f);
	if (d->dw)
		classifier_product<T>(d, d->v, d->c, rows, classifier_source(type, logits, d->v, true), x,
			PLAN_F32, d->dw, overwrite ? 0.0f : 1.0f);
}

template <typename T> static void classifier(const struct backend_classifier *d)
{
	for (int64_t first = 0; first < d->rows; first += d->chunk)
		classifier_chunk<T>(d, first, d->rows - first < d->chunk ? d->rows - first : d->chunk,
			d->overwrite && first == 0);
}

CUDA_EXPORT(classifier, (const struct backend_classifier *d), (d))

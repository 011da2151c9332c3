/* SPDX-License-Identifier: Apache-2.0
 * The head and its loss without the full logits: a chunk of rows at a time becomes logits, then
 * their gradient in place, then gradients of x and w. Called through the backend's table. */
#include "workers/engine/cpu/gemm.h"
#include "workers/engine/cpu/ops/softmax_row.h"
#include "workers/engine/cpu/workspace.h"

#define GEMM_TYPE_f32 GEMM_F32
#define GEMM_TYPE_bf16 GEMM_BF16
#define GEMM_TYPE_f16 GEMM_F16
#define ACT_GEMM_TYPE CPU_JOIN(GEMM_TYPE, CPU_TYPE)

/* Rows [first, first + rows). */
struct chunk {
	const struct backend_classifier *d;
	int64_t first, rows;
	bool overwrite; /* dw is written */
	act_t *logits;
};

static struct gemm_source source(
	enum gemm_type type, const void *base, int64_t stride, bool transposed)
{
	return (struct gemm_source){
		.type = type, .base = base, .row_stride = stride, .transposed = transposed
	};
}

static struct gemm_source weights(const struct chunk *c, bool transposed)
{
	return source(
		c->d->w_type == PLAN_F32 ? GEMM_F32 : ACT_GEMM_TYPE, c->d->w, c->d->c, transposed);
}

static struct gemm_source hidden(const struct chunk *c)
{
	return source(ACT_GEMM_TYPE, (const act_t *)c->d->x + c->first * c->d->c, c->d->c, false);
}

/* c[m,n] (+)= a b, in the scratch behind the logits. */
static void product(const struct chunk *c, struct gemm g)
{
	int64_t logits = workspace_classifier(c->d->chunk, c->d->v, sizeof(act_t), 0);
	g.bf16 = CPU_TYPE_IS(bf16);
	g.alpha = 1.0f;
	g.workspace = (char *)c->d->ws.data + logits;
	g.workspace_bytes = c->d->ws.bytes - logits;
	gemm_run(&g);
}

static void chunk_losses(const struct chunk *c)
{
	const struct backend_classifier *d = c->d;
#pragma omp parallel for schedule(static) if (c->rows * d->v > CPU_PARALLEL_MIN)
	for (int64_t r = 0; r < c->rows; r++) {
		struct softmax_row row = { .classes = d->v,
			.label = d->labels[c->first + r],
			.scale = d->scale,
			.smoothing = d->smoothing };
		softmax_row(&row, c->logits + r * d->v);
		d->row_loss[c->first + r] = row.loss;
		d->row_hit[c->first + r] = row.hit;
	}
}

static bool all_ignored(const struct chunk *c)
{
	for (int64_t r = 0; r < c->rows; r++)
		if (c->d->labels[c->first + r] >= 0)
			return false;
	return true;
}

static void skip_chunk(const struct chunk *c)
{
	const struct backend_classifier *d = c->d;
	memset(d->row_loss + c->first, 0, (size_t)c->rows * sizeof(float));
	memset(d->row_hit + c->first, 0, (size_t)c->rows * sizeof(float));
	if (d->scale > 0)
		memset((act_t *)d->dx + c->first * d->c, 0, (size_t)(c->rows * d->c) * sizeof(act_t));
}

static void run_chunk(const struct chunk *c)
{
	const struct backend_classifier *d = c->d;
	product(c,
		(struct gemm){ .m = c->rows,
			.n = d->v,
			.k = d->c,
			.a = hidden(c),
			.b = weights(c, true),
			.c_type = ACT_GEMM_TYPE,
			.c = c->logits,
			.c_stride = d->v });
	chunk_losses(c);
	if (!(d->scale > 0))
		return;
	product(c,
		(struct gemm){ .m = c->rows,
			.n = d->c,
			.k = d->v,
			.a = source(ACT_GEMM_TYPE, c->logits, d->v, false),
			.b = weights(c, false),
			.c_type = ACT_GEMM_TYPE,
			.c = (act_t *)d->dx + c->first * d->c,
			.c_stride = d->c });
	if (d->dw)
		product(c,
			(struct gemm){ .m = d->v,
				.n = d->c,
				.k = c->rows,
				.a = source(ACT_GEMM_TYPE, c->logits, d->v, true),
				.b = hidden(c),
				.c_type = GEMM_F32,
				.c = d->dw,
				.c_stride = d->c,
				.accumulate = !c->overwrite });
}

void CPU_FN(classifier_run)(const struct backend_classifier *d)
{
	bool overwrite = d->overwrite && d->scale > 0 && d->dw;
	for (int64_t first = 0; first < d->rows; first += d->chunk) {
		struct chunk c = { .d = d, .first = first, .overwrite = overwrite, .logits = d->ws.data };
		c.rows = d->rows - first < d->chunk ? d->rows - first : d->chunk;
		if (all_ignored(&c)) {
			skip_chunk(&c);
			continue;
		}
		run_chunk(&c);
		overwrite = false;
	}
	if (overwrite) /* no chunk had anything to teach */
		CPU_PLAIN(fill_value)(d->v * d->c, 0.0f, d->dw);
}

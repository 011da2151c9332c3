/* SPDX-License-Identifier: Apache-2.0
 * The logits of one sequence, for sampling and for tests. Called by the engine's owner. */
#include "workers/engine/engine_private.h"

#include <stdlib.h>
#include <string.h>

/* The one sequence in slot 0, and nothing else. */
static void put_sequence(struct engine *e, const int32_t *tokens, int64_t count)
{
	const struct plan *p = e->plan;
	struct data_batch b = engine_host_batch(e);
	memset(b.input, 0, (size_t)p->buffers[p->inputs.input].bytes);
	memcpy(b.input, tokens, (size_t)count * sizeof(*tokens));
	for (int64_t r = 0; r < p->rows; r++) {
		((int32_t *)b.labels)[r] = -1;
		if (b.positions)
			b.positions[r] = (int32_t)(r % p->sequence_length);
		if (b.starts)
			b.starts[r] = 0;
	}
	engine_host_put_batch(e, &b);
}

/* y[V] = w[V, C] x: in fp32 whatever the type of w. */
static void project(
	const struct engine *e, const struct plan_param *head, const char *w, const float *x, float *y)
{
	enum { PIECE = 512 };
	const enum plan_type type = e->plan->buffers[head->weight].type;
	const int64_t c = head->shape[1], size = plan_type_bytes(type);
#pragma omp parallel for schedule(static)
	for (int64_t v = 0; v < head->shape[0]; v++) {
		float part[PIECE], sum = 0;
		for (int64_t k = 0; k < c; k += PIECE) {
			int64_t n = c - k < PIECE ? c - k : PIECE;
			const float *row = (const float *)(w + (v * c + k) * size);
			if (type != PLAN_F32) {
				e->backend->to_f32(n, row, part);
				row = part;
			}
#pragma omp simd reduction(+ : sum)
			for (int64_t i = 0; i < n; i++)
				sum += row[i] * x[k + i];
		}
		y[v] = sum;
	}
}

/* The head's weights are brought for each call where the device's memory is apart. */
static int say(
	struct engine *e, const struct plan_param *head, const float *x, float *ret, struct err *err)
{
	const struct plan_buffer *b = &e->plan->buffers[head->weight];
	const char *w = engine_buffer(e, head->weight);
	cleanup(freep) char *copy = NULL;
	if (e->backend->apart) {
		copy = malloc((size_t)b->bytes);
		if (!copy)
			return err_set(err, ERR_NO_MEMORY, NULL, "no memory for the head's weights");
		e->backend->get(e->ctx, copy, w, b->bytes);
		w = copy;
	}
	engine_finish(e);
	project(e, head, w, x, ret);
	return engine_exec_failed(e, err);
}

static int check_tokens(
	const struct engine *e, const int32_t *tokens, int64_t count, struct err *err)
{
	const struct plan *p = e->plan;
	if (plan_mesh_size(&p->mesh) > 1)
		return err_set(err, ERR_CONFLICT, NULL, "logits need a model that is whole on one rank");
	if (!engine_is_language(e) || count < 1 || count > p->sequence_length)
		return err_set(err, ERR_INVALID_VALUE, NULL,
			"logits need a language model and 1 to %lld tokens, not %lld",
			(long long)p->sequence_length, (long long)count);
	for (int64_t i = 0; i < count; i++)
		if (tokens[i] < 0 || tokens[i] >= p->n_classes)
			return err_set(err, ERR_INVALID_VALUE, NULL,
				"token %lld is %d, the model's vocabulary has %lld", (long long)i, tokens[i],
				(long long)p->n_classes);
	return 0;
}

int engine_logits(
	struct engine *e, const int32_t *tokens, int64_t count, float *ret, struct err *err)
{
	const struct plan *p = e->plan;
	int rc = check_tokens(e, tokens, count, err);
	if (rc)
		return rc;
	engine_evaluate_begin(e);
	put_sequence(e, tokens, count);
	/* The classifier may write over what it reads: it does not run. */
	int end = 0;
	while (end < p->backward_begin && p->ops[end].kind != PLAN_OP_CLASSIFIER)
		end++;
	engine_exec(e, 0, end);
	const struct plan_param *head = &p->params[p->head];
	const struct plan_buffer *hidden = &p->buffers[p->hidden];
	const int64_t bytes = head->shape[1] * plan_type_bytes(hidden->type);
	float *x = e->scratch, *raw = x + head->shape[1];
	e->backend->get(
		e->ctx, raw, (const char *)engine_buffer(e, p->hidden) + (count - 1) * bytes, bytes);
	e->backend->to_f32(head->shape[1], raw, x);
	return say(e, head, x, ret, err);
}

/* SPDX-License-Identifier: Apache-2.0
 * The head of a language model and its loss. Called by plan_lm.c. */
#include "workers/plan/plan_lm.h"

enum {
	/* The head's logits are made for so many rows at a time that they take about this much, and
	 * never for fewer than the minimum: short products are slow. */
	CHUNK_BYTES = 64 * 1024 * 1024,
	CHUNK_ROWS_MIN = 64,
	CHUNK_ROWS_UNIT = 16,
};

/* Rows of a chunk: even pieces of at most CHUNK_BYTES of logits. */
static int64_t chunk_rows(const struct plan_lm *lm)
{
	int64_t most = CHUNK_BYTES / (lm->vocab * plan_type_bytes(lm->b->p->type));
	if (most < CHUNK_ROWS_MIN)
		most = CHUNK_ROWS_MIN;
	int64_t pieces = (lm->rows + most - 1) / most;
	int64_t even = (lm->rows + pieces - 1) / pieces;
	int64_t rounded = (even + CHUNK_ROWS_UNIT - 1) / CHUNK_ROWS_UNIT * CHUNK_ROWS_UNIT;
	if (rounded > most)
		rounded = most;
	return rounded < lm->rows ? rounded : lm->rows;
}

/* Returns the buffer of the gradient of x. */
int plan_lm_head_forward(struct plan_lm *lm, int x)
{
	struct plan_build *b = lm->b;
	struct plan *p = b->p;
	int64_t chunk = chunk_rows(lm);
	int dx = plan_build_activation(b, lm->rows * lm->c, "%.64s.d.y", lm->final.name);
	plan_build_op(b, PLAN_OP_CLASSIFIER, "lm_head",
		PLAN_OPERANDS(x, plan_param_weight(b, lm->head), p->inputs.labels, p->row_loss, p->row_hit,
			dx, plan_param_gradient(b, lm->head)),
		PLAN_DIMS(lm->rows, lm->c, lm->vocab, chunk),
		plan_workspace_classifier(chunk, lm->vocab, lm->c, p->type));
	p->hidden = x;
	p->head = lm->head;
	return dx;
}

/* SPDX-License-Identifier: Apache-2.0
 * The embedding of a language model, forward and backward. Called by plan_lm.c. */
#include "workers/plan/plan_lm.h"

int plan_lm_embedding_forward(struct plan_lm *lm)
{
	struct plan_build *b = lm->b;
	const struct plan_inputs *in = &b->p->inputs;
	int64_t count = lm->rows * lm->c;
	int x = plan_build_activation(b, count, "%.64s.embedding", lm->root);
	plan_build_op(b, PLAN_OP_EMBEDDING, lm->embedding,
		PLAN_OPERANDS(in->input, plan_param_weight(b, lm->wte), plan_param_weight(b, lm->wpe),
			in->positions, x),
		PLAN_DIMS(lm->rows, lm->t, lm->c, lm->vocab), 0);
	if (lm->dropout > 0)
		plan_build_dropout(b, lm->embedding, x, x, count, 0, lm->dropout);
	return x;
}

void plan_lm_embedding_backward(struct plan_lm *lm)
{
	struct plan_build *b = lm->b;
	const struct plan_inputs *in = &b->p->inputs;
	if (plan_param_gradient(b, lm->wte) < 0)
		return;
	if (lm->dropout > 0)
		plan_build_dropout_backward(
			b, lm->embedding, lm->dres, lm->dres, lm->rows * lm->c, 0, lm->dropout);
	plan_build_op(b, PLAN_OP_EMBEDDING_BACKWARD, lm->embedding,
		PLAN_OPERANDS(in->input, lm->dres, plan_param_gradient(b, lm->wte),
			plan_param_gradient(b, lm->wpe), in->positions),
		PLAN_DIMS(lm->rows, lm->t, lm->c, lm->vocab), 0);
}

/* SPDX-License-Identifier: Apache-2.0
 * The embedding of a language model, forward and backward. Ranks of the tensor axis look up the
 * tokens that they have, and the first adds the positions. Called by plan_lm.c. */
#include "workers/plan/plan_lm.h"

int plan_lm_embedding_forward(struct plan_lm *lm)
{
	struct plan_build *b = lm->b;
	const struct plan_inputs *in = &b->p->inputs;
	int wpe = lm->tensor_rank == 0 ? plan_param_weight(b, lm->wpe) : -1;
	int y = plan_build_activation(b, lm->rows * lm->c, "%.64s.embedding", lm->root);
	plan_build_op(b, PLAN_OP_EMBEDDING, lm->embedding,
		PLAN_OPERANDS(in->input, plan_param_weight(b, lm->wte), wpe, in->positions, y),
		PLAN_DIMS(lm->rows, lm->t, lm->c, lm->own_vocab, lm->first_token), 0);
	int x = plan_lm_scatter(lm, lm->embedding, y, lm->c);
	struct plan_mask mask = plan_lm_mask(lm, lm->c, 0);
	if (lm->dropout > 0)
		plan_build_dropout(b, lm->embedding, x, x, &mask);
	return x;
}

void plan_lm_embedding_backward(struct plan_lm *lm)
{
	struct plan_build *b = lm->b;
	const struct plan_inputs *in = &b->p->inputs;
	if (plan_param_gradient(b, lm->wte) < 0)
		return;
	struct plan_mask mask = plan_lm_mask(lm, lm->c, 0);
	if (lm->dropout > 0)
		plan_build_dropout_backward(b, lm->embedding, lm->dres, lm->dres, &mask);
	int dy = plan_lm_gather(lm, lm->embedding, lm->dres, lm->c);
	plan_build_op(b, PLAN_OP_EMBEDDING_BACKWARD, lm->embedding,
		PLAN_OPERANDS(in->input, dy, plan_param_gradient(b, lm->wte),
			plan_param_gradient(b, lm->wpe), in->positions),
		PLAN_DIMS(lm->rows, lm->t, lm->c, lm->own_vocab, lm->first_token), 0);
}

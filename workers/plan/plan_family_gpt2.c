/* SPDX-License-Identifier: Apache-2.0
 * The gpt2 family: learned positions, layer norms before the modules, GELU (tanh form), head tied
 * to the token embedding. Names and layouts are Hugging Face's: Conv1D weights are [in, out].
 * Called by plan.c. */
#include "workers/plan/plan_lm.h"

enum { INNER_TIMES = 4 };

static void add_layer(struct plan_lm *lm, struct plan_lm_layer *l, int i)
{
	int64_t c = lm->c;
	/* c_attn has the columns of all queries, then of all keys, then of all values. */
	struct plan_lm_shape in = { c, 3 * c, PLAN_LM_BY_OUTPUT, 3, 0, 0, lm->scale };
	struct plan_lm_shape out = { c, c, PLAN_LM_BY_INPUT, 0, 0, 0, lm->residual_scale };
	struct plan_lm_shape up = { c, lm->inner, PLAN_LM_BY_OUTPUT, 0, 0, 0, lm->scale };
	struct plan_lm_shape down = { lm->inner, c, PLAN_LM_BY_INPUT, 0, 0, 0, lm->residual_scale };
	plan_lm_names(l, i, "transformer.h", "attn");
	plan_lm_norm_add(lm, &l->norm_1, "transformer.h.%d.ln_1", i);
	plan_lm_linear_add(lm, &l->in[0], in, "transformer.h.%d.attn.c_attn", i);
	plan_lm_linear_add(lm, &l->out, out, "transformer.h.%d.attn.c_proj", i);
	plan_lm_norm_add(lm, &l->norm_2, "transformer.h.%d.ln_2", i);
	plan_lm_linear_add(lm, &l->up[0], up, "transformer.h.%d.mlp.c_fc", i);
	plan_lm_linear_add(lm, &l->down, down, "transformer.h.%d.mlp.c_proj", i);
}

void plan_family_gpt2(struct plan_build *b)
{
	cleanup(plan_lm_finish) struct plan_lm lm;
	plan_lm_init(&lm, b);
	if (b->code)
		return;
	if (lm.kv_heads != lm.heads) {
		plan_build_fail(b, ERR_INVALID_VALUE, "$.model.config.num_key_value_heads",
			"gpt2 has a key-value head for each head");
		return;
	}
	lm.root = "transformer";
	lm.embedding = "transformer.wte";
	lm.biased = true;
	lm.in_count = lm.up_count = 1;
	if (lm.inner < 1)
		lm.inner = INNER_TIMES * lm.c;
	plan_lm_share(&lm);
	if (b->code)
		return;
	plan_lm_stages(&lm);
	plan_build_unit(b);
	plan_lm_at_embedding(&lm, true);
	lm.wte = lm.head = plan_lm_embedding(&lm, lm.vocab, true, lm.scale, lm.embedding);
	plan_lm_at_embedding(&lm, false);
	/* Positions start at GPT-2's own scale at every width. */
	lm.wpe = plan_lm_embedding(&lm, b->spec->model.n_positions, false, 0.02, "transformer.wpe");
	for (int i = 0; i < lm.layer_count && !b->code; i++) {
		plan_build_unit(b);
		plan_lm_at_layer(&lm, i);
		add_layer(&lm, &lm.layers[i], i);
	}
	plan_build_unit(b);
	plan_lm_at_head(&lm);
	plan_lm_norm_add(&lm, &lm.final, "transformer.ln_f");
	plan_lm_build(&lm);
}

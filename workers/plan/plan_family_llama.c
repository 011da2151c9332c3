/* SPDX-License-Identifier: Apache-2.0
 * The llama family: RMS norms before the modules, rotary positions, grouped-query attention,
 * SwiGLU, no biases, head tied or not. Names and layouts are Hugging Face's: weights are [out, in],
 * queries and keys are turned in half-split pairs. Called by plan.c. */
#include "workers/plan/plan_lm.h"

/* Queries, keys and values are parts of one row, as the attention reads them; so are gate and up.
 */
static void add_layer(struct plan_lm *lm, struct plan_lm_layer *l, int i)
{
	int64_t c = lm->c, q = lm->heads * lm->head_size, kv = lm->kv_heads * lm->head_size;
	int64_t own_q = q / lm->tensor, own_kv = kv / lm->tensor, qkv = own_q + 2 * own_kv;
	int64_t inner = lm->inner, own = lm->own_inner;
	double s = lm->scale;
	struct plan_lm_shape query = { c, q, PLAN_LM_BY_OUTPUT, 0, qkv, 0, s };
	struct plan_lm_shape key = { c, kv, PLAN_LM_BY_OUTPUT, 0, qkv, own_q, s };
	struct plan_lm_shape value = { c, kv, PLAN_LM_BY_OUTPUT, 0, qkv, own_q + own_kv, s };
	struct plan_lm_shape out = { q, c, PLAN_LM_BY_INPUT, 0, 0, 0, lm->residual_scale };
	struct plan_lm_shape gate = { c, inner, PLAN_LM_BY_OUTPUT, 0, 2 * own, 0, s };
	struct plan_lm_shape up = { c, inner, PLAN_LM_BY_OUTPUT, 0, 2 * own, own, s };
	struct plan_lm_shape down = { inner, c, PLAN_LM_BY_INPUT, 0, 0, 0, lm->residual_scale };
	plan_lm_names(l, i, "model.layers", "self_attn");
	plan_lm_norm_add(lm, &l->norm_1, "model.layers.%d.input_layernorm", i);
	plan_lm_linear_add(lm, &l->in[0], query, "model.layers.%d.self_attn.q_proj", i);
	plan_lm_linear_add(lm, &l->in[1], key, "model.layers.%d.self_attn.k_proj", i);
	plan_lm_linear_add(lm, &l->in[2], value, "model.layers.%d.self_attn.v_proj", i);
	plan_lm_linear_add(lm, &l->out, out, "model.layers.%d.self_attn.o_proj", i);
	plan_lm_norm_add(lm, &l->norm_2, "model.layers.%d.post_attention_layernorm", i);
	plan_lm_linear_add(lm, &l->up[0], gate, "model.layers.%d.mlp.gate_proj", i);
	plan_lm_linear_add(lm, &l->up[1], up, "model.layers.%d.mlp.up_proj", i);
	plan_lm_linear_add(lm, &l->down, down, "model.layers.%d.mlp.down_proj", i);
}

static bool config_ok(struct plan_build *b, const struct plan_lm *lm)
{
	const struct spec_model *m = &b->spec->model;
	if (b->code)
		return false;
	if (lm->inner < 1)
		plan_build_fail(b, ERR_INVALID_VALUE, "$.model.config.intermediate_size",
			"intermediate_size must be at least 1");
	else if (lm->head_size % 2)
		plan_build_fail(b, ERR_INVALID_VALUE, "$.model.config.num_attention_heads",
			"a head has %lld units: rotary positions turn pairs, so it must be even",
			(long long)lm->head_size);
	else if (!(m->rope_theta > 0))
		plan_build_fail(
			b, ERR_INVALID_VALUE, "$.model.config.rope_theta", "rope_theta must be above 0");
	return !b->code;
}

void plan_family_llama(struct plan_build *b)
{
	cleanup(plan_lm_finish) struct plan_lm lm;
	plan_lm_init(&lm, b);
	if (!config_ok(b, &lm))
		return;
	b->p->rope_theta = b->spec->model.rope_theta;
	lm.root = "model";
	lm.embedding = "model.embed_tokens";
	lm.rms = lm.rotary = lm.gated = lm.row_out = true;
	lm.in_count = PLAN_LM_IN_MAX;
	lm.up_count = PLAN_LM_UP_MAX;
	plan_lm_share(&lm);
	if (b->code)
		return;
	plan_lm_stages(&lm);
	plan_build_unit(b);
	plan_lm_at_embedding(&lm, b->spec->model.tied);
	lm.wte = lm.head = plan_lm_embedding(&lm, lm.vocab, true, lm.scale, lm.embedding);
	for (int i = 0; i < lm.layer_count && !b->code; i++) {
		plan_build_unit(b);
		plan_lm_at_layer(&lm, i);
		add_layer(&lm, &lm.layers[i], i);
	}
	plan_build_unit(b);
	plan_lm_at_head(&lm);
	plan_lm_norm_add(&lm, &lm.final, "model.norm");
	if (!b->spec->model.tied)
		lm.head = plan_lm_embedding(&lm, lm.vocab, true, lm.scale, "lm_head");
	plan_lm_build(&lm);
}

/* SPDX-License-Identifier: Apache-2.0
 * One layer of a language model: forward, backward, and what of the forward pass is repeated in
 * between.
 * Called by plan_lm.c. */
#include "workers/plan/plan_lm.h"

/* Kept for the backward pass, by activation checkpointing:
 *	none       everything
 *	selective  the residual stream, outputs of products and of attention, statistics; norms'
 *	           outputs and the mlp's activation are computed again
 *	full       the layer's input; all of it but the last product is computed again */

/* The modules in the order of the forward pass; where the backward pass of a layer may stop. */
enum stage { STAGE_BEGIN, STAGE_IN, STAGE_OUT, STAGE_UP, STAGE_DOWN };

static int activation(const struct plan_lm *lm, int64_t width, const char *prefix, const char *name)
{
	return plan_build_activation(lm->b, lm->rows * width, "%.72s.%s", prefix, name);
}

/* Of the residual stream: the rank's own rows. */
static int own_rows(const struct plan_lm *lm, const char *prefix, const char *name)
{
	return plan_build_activation(lm->b, lm->own_rows * lm->c, "%.72s.%s", prefix, name);
}

int plan_lm_norm_forward(
	const struct plan_lm *lm, const struct plan_lm_norm *n, int x, int *ret_mean, int *ret_rstd)
{
	struct plan_build *b = lm->b;
	int gain = plan_param_weight(b, n->gain);
	int y = own_rows(lm, n->name, "y");
	/* A recomputation writes the statistics that are there again. */
	if (*ret_rstd < 0) {
		*ret_rstd = plan_build_statistic(b, lm->own_rows, "%.72s.rstd", n->name);
		if (!lm->rms)
			*ret_mean = plan_build_statistic(b, lm->own_rows, "%.72s.mean", n->name);
	}
	struct plan_op *op = NULL;
	if (lm->rms)
		op = plan_build_op(b, PLAN_OP_RMSNORM, n->name, PLAN_OPERANDS(x, gain, y, *ret_rstd),
			PLAN_DIMS(lm->own_rows, lm->c), 0);
	else
		op = plan_build_op(b, PLAN_OP_LAYERNORM, n->name,
			PLAN_OPERANDS(x, gain, plan_param_weight(b, n->bias), y, *ret_mean, *ret_rstd),
			PLAN_DIMS(lm->own_rows, lm->c), 0);
	op->scalar = lm->eps;
	return y;
}

void plan_lm_norm_backward(const struct plan_lm *lm, const struct plan_lm_norm *n, int x, int mean,
	int rstd, int dy, int dx, bool accumulate)
{
	struct plan_build *b = lm->b;
	int gain = plan_param_weight(b, n->gain), dgain = plan_param_gradient(b, n->gain);
	int64_t scratch = plan_workspace_norm_backward(lm->c, !lm->rms); /* frozen ones too */
	struct plan_op *op = NULL;
	if (lm->rms)
		op = plan_build_op(b, PLAN_OP_RMSNORM_BACKWARD, n->name,
			PLAN_OPERANDS(x, gain, rstd, dy, dx, dgain), PLAN_DIMS(lm->own_rows, lm->c), scratch);
	else
		op = plan_build_op(b, PLAN_OP_LAYERNORM_BACKWARD, n->name,
			PLAN_OPERANDS(x, gain, mean, rstd, dy, dx, dgain, plan_param_gradient(b, n->bias)),
			PLAN_DIMS(lm->own_rows, lm->c), scratch);
	op->scalar = lm->eps;
	op->accumulate = accumulate;
}

/* x + dropout(l(in)); the addition is part of the product unless ranks share that, or dropout comes
 * between. */
static int residual_forward(
	const struct plan_lm *lm, struct plan_lm_linear *l, int in, int x, int64_t site)
{
	const struct plan_mask mask = plan_lm_mask(lm, lm->c, site);
	bool apart = lm->dropout > 0 || lm->tensor > 1;
	int part = activation(lm, lm->c, l->name, "residual");
	plan_lm_linear_forward(lm, l, in, part, apart ? -1 : x);
	int y = plan_lm_scatter(lm, l->name, part, lm->c);
	if (lm->dropout > 0)
		plan_build_dropout(lm->b, l->name, y, y, &mask);
	if (apart)
		plan_build_op(lm->b, PLAN_OP_ADD, l->name, PLAN_OPERANDS(x, y), PLAN_DIMS(mask.count), 0);
	return y;
}

/* The gradient of l's output, from that of the residual stream; all rows. */
static int residual_backward(const struct plan_lm *lm, const struct plan_lm_linear *l, int64_t site)
{
	const struct plan_mask mask = plan_lm_mask(lm, lm->c, site);
	int dy = lm->dres;
	if (lm->dropout > 0) {
		dy = own_rows(lm, l->name, "d.y");
		plan_build_dropout_backward(lm->b, l->name, lm->dres, dy, &mask);
	}
	return plan_lm_gather(lm, l->name, dy, lm->c);
}

/* A norm's output, all rows of it. */
static int norm_forward(
	const struct plan_lm *lm, const struct plan_lm_norm *n, int x, int *ret_mean, int *ret_rstd)
{
	int y = plan_lm_norm_forward(lm, n, x, ret_mean, ret_rstd);
	return plan_lm_gather(lm, n->name, y, lm->c);
}

static int64_t site_out(int layer)
{
	return 2 * layer + 1;
}

static int64_t site_down(int layer)
{
	return 2 * layer + 2;
}

static void rope(const struct plan_lm *lm, const struct plan_lm_layer *l, int qkv, bool inverse)
{
	const struct plan *p = lm->b->p;
	if (!lm->rotary)
		return;
	plan_build_op(lm->b, PLAN_OP_ROPE, l->attn, PLAN_OPERANDS(qkv, p->rope, p->inputs.positions),
		PLAN_DIMS(lm->rows, lm->t, lm->own_heads, lm->own_kv_heads, lm->head_size), 0)
		->inverse = inverse;
}

static int64_t qkv_width(const struct plan_lm *lm)
{
	return (lm->own_heads + 2 * lm->own_kv_heads) * lm->head_size;
}

static void attention_forward(struct plan_lm *lm, struct plan_lm_layer *l)
{
	struct plan_build *b = lm->b;
	int64_t samples = lm->rows / lm->t;
	l->n1 = norm_forward(lm, &l->norm_1, l->x, &l->mean1, &l->rstd1);
	l->qkv = activation(lm, qkv_width(lm), l->attn, "qkv");
	for (int i = 0; i < lm->in_count; i++)
		plan_lm_linear_forward(lm, &l->in[i], l->n1, l->qkv, -1);
	rope(lm, l, l->qkv, false);
	l->att = activation(lm, lm->own_heads * lm->head_size, l->attn, "y");
	l->lse = plan_build_statistic(b, lm->rows * lm->own_heads, "%.72s.lse", l->attn);
	plan_build_op(b, PLAN_OP_ATTENTION, l->attn,
		PLAN_OPERANDS(l->qkv, l->att, l->lse, b->p->inputs.starts),
		PLAN_DIMS(samples, lm->t, lm->own_heads, lm->own_kv_heads, lm->head_size),
		plan_workspace_attention(samples, lm->t, lm->own_kv_heads, lm->head_size));
}

static bool need_input(const struct plan_lm *lm, const struct plan_lm_linear *l, int count)
{
	for (int i = 0; i < count; i++)
		if (plan_lm_linear_needs_input(lm, &l[i]))
			return true;
	return false;
}

/* The mlp's activation by itself: of a product that is not fused with it, or again. */
static int activate(const struct plan_lm *lm, const struct plan_lm_layer *l)
{
	int y = activation(lm, lm->own_inner, l->mlp, "act");
	if (lm->gated)
		plan_build_op(lm->b, PLAN_OP_SWIGLU, l->mlp, PLAN_OPERANDS(l->pre, y),
			PLAN_DIMS(lm->rows, lm->own_inner), 0);
	else
		plan_build_op(lm->b, PLAN_OP_GELU, l->mlp, PLAN_OPERANDS(l->pre, y),
			PLAN_DIMS(lm->rows * lm->own_inner), 0);
	return y;
}

static void mlp_forward(struct plan_lm *lm, struct plan_lm_layer *l)
{
	struct plan_build *b = lm->b;
	l->n2 = norm_forward(lm, &l->norm_2, l->mid, &l->mean2, &l->rstd2);
	/* A recomputation makes the output of the activation only for the gradient of down's weight,
	 * and the first pass of full recomputation keeps no input of it. */
	bool output = !b->recompute || need_input(lm, &l->down, 1);
	bool input = b->recompute || b->spec->checkpointing != SPEC_FULL;
	bool fused = output && !lm->gated && !plan_lm_linear_adapted(&l->up[0]);
	l->pre = fused && !input ? -1 : activation(lm, lm->up_count * lm->own_inner, l->mlp, "pre");
	l->up[0].base.act = fused ? PLAN_ACT_GELU : PLAN_ACT_NONE;
	l->up[0].base.pre = l->pre;
	if (fused) {
		l->act = activation(lm, lm->own_inner, l->mlp, "act");
		plan_lm_linear_forward(lm, &l->up[0], l->n2, l->act, -1);
		return;
	}
	for (int i = 0; i < lm->up_count; i++)
		plan_lm_linear_forward(lm, &l->up[i], l->n2, l->pre, -1);
	l->act = output ? activate(lm, l) : -1;
}

static void forward(struct plan_lm *lm, int i)
{
	struct plan_lm_layer *l = &lm->layers[i];
	l->mean1 = l->rstd1 = l->mean2 = l->rstd2 = -1;
	attention_forward(lm, l);
	l->mid = residual_forward(lm, &l->out, l->att, l->x, site_out(i));
	mlp_forward(lm, l);
}

int plan_lm_layer_forward(struct plan_lm *lm, int i, int x)
{
	struct plan_lm_layer *l = &lm->layers[i];
	l->x = x;
	forward(lm, i);
	return residual_forward(lm, &l->down, l->act, l->mid, site_down(i));
}

/* Selective: what the modules of a stage read is computed again just before they read it. */
static int again_norm(
	struct plan_lm *lm, const struct plan_lm_norm *n, int x, int y, int mean, int rstd)
{
	if (lm->b->spec->checkpointing != SPEC_SELECTIVE)
		return y;
	lm->b->recompute = true;
	y = norm_forward(lm, n, x, &mean, &rstd);
	lm->b->recompute = false;
	return y;
}

static int again_activate(struct plan_lm *lm, const struct plan_lm_layer *l)
{
	if (lm->b->spec->checkpointing != SPEC_SELECTIVE)
		return l->act;
	lm->b->recompute = true;
	int y = activate(lm, l);
	lm->b->recompute = false;
	return y;
}

/* The lowest stage of a layer whose gradient anybody needs: below an adapter of the first layer
 * nothing is trained. */
static enum stage lowest(const struct plan_lm *lm, int i)
{
	const struct plan_lm_layer *l = &lm->layers[i];
	if (lm->base_role == PLAN_TRAINED || i > 0)
		return STAGE_BEGIN;
	if (need_input(lm, l->in, lm->in_count))
		return STAGE_IN;
	if (need_input(lm, &l->out, 1))
		return STAGE_OUT;
	return need_input(lm, l->up, lm->up_count) ? STAGE_UP : STAGE_DOWN;
}

/* dx -1: nothing below is trained. */
static void linears_backward(
	const struct plan_lm *lm, const struct plan_lm_linear *l, int count, int x, int dy, int dx)
{
	for (int i = 0; i < count; i++)
		plan_lm_linear_backward(lm, &l[i], x, dy, dx, i > 0, plan_gate_none);
}

/* Returns whether anything below it is trained. */
static bool mlp_backward(struct plan_lm *lm, struct plan_lm_layer *l, int i, enum stage low)
{
	struct plan_build *b = lm->b;
	int dy = residual_backward(lm, &l->down, site_down(i));
	int act = need_input(lm, &l->down, 1) ? again_activate(lm, l) : l->act;
	int dact = low < STAGE_DOWN ? activation(lm, lm->own_inner, l->mlp, "d.act") : -1;
	struct plan_gate gate = plan_gate_none;
	if (!lm->gated)
		gate = (struct plan_gate){ PLAN_ACT_GELU, l->pre };
	plan_lm_linear_backward(lm, &l->down, act, dy, dact, false, gate);
	if (low == STAGE_DOWN)
		return false;
	int dpre = dact;
	if (lm->gated) {
		dpre = activation(lm, 2 * lm->own_inner, l->mlp, "d.pre");
		plan_build_op(b, PLAN_OP_SWIGLU_BACKWARD, l->mlp, PLAN_OPERANDS(l->pre, dact, dpre),
			PLAN_DIMS(lm->rows, lm->own_inner), 0);
	}
	int n2 = l->n2;
	if (need_input(lm, l->up, lm->up_count))
		n2 = again_norm(lm, &l->norm_2, l->mid, l->n2, l->mean2, l->rstd2);
	int dn = low < STAGE_UP ? activation(lm, lm->c, l->norm_2.name, "d.y") : -1;
	linears_backward(lm, l->up, lm->up_count, n2, dpre, dn);
	if (low == STAGE_UP)
		return false;
	dn = plan_lm_scatter(lm, l->norm_2.name, dn, lm->c);
	plan_lm_norm_backward(lm, &l->norm_2, l->mid, l->mean2, l->rstd2, dn, lm->dres, true);
	return true;
}

static void attention_backward(struct plan_lm *lm, struct plan_lm_layer *l, int i, enum stage low)
{
	struct plan_build *b = lm->b;
	int64_t samples = lm->rows / lm->t;
	int dy = residual_backward(lm, &l->out, site_out(i));
	int datt = low < STAGE_OUT ? activation(lm, lm->own_heads * lm->head_size, l->attn, "d.y") : -1;
	plan_lm_linear_backward(lm, &l->out, l->att, dy, datt, false, plan_gate_none);
	if (low == STAGE_OUT)
		return;
	int dqkv = activation(lm, qkv_width(lm), l->attn, "d.qkv");
	plan_build_op(b, PLAN_OP_ATTENTION_BACKWARD, l->attn,
		PLAN_OPERANDS(l->qkv, l->att, l->lse, datt, dqkv, b->p->inputs.starts),
		PLAN_DIMS(samples, lm->t, lm->own_heads, lm->own_kv_heads, lm->head_size),
		plan_workspace_attention_backward(samples, lm->t, lm->own_heads, lm->head_size));
	rope(lm, l, dqkv, true);
	int n1 = l->n1;
	if (need_input(lm, l->in, lm->in_count))
		n1 = again_norm(lm, &l->norm_1, l->x, l->n1, l->mean1, l->rstd1);
	int dn = low < STAGE_IN ? activation(lm, lm->c, l->norm_1.name, "d.y") : -1;
	linears_backward(lm, l->in, lm->in_count, n1, dqkv, dn);
	if (low == STAGE_IN)
		return;
	dn = plan_lm_scatter(lm, l->norm_1.name, dn, lm->c);
	plan_lm_norm_backward(lm, &l->norm_1, l->x, l->mean1, l->rstd1, dn, lm->dres, true);
}

void plan_lm_layer_backward(struct plan_lm *lm, int i)
{
	struct plan_lm_layer *l = &lm->layers[i];
	if (lm->b->spec->checkpointing == SPEC_FULL) {
		lm->b->recompute = true;
		forward(lm, i);
		lm->b->recompute = false;
	}
	enum stage low = lowest(lm, i);
	if (mlp_backward(lm, l, i, low))
		attention_backward(lm, l, i, low);
}

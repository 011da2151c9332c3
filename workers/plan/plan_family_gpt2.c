/* SPDX-License-Identifier: Apache-2.0
 * The gpt2 family: learned positions, pre-norm blocks, GELU (tanh form), head tied to the token
 * embedding. Names and layouts are Hugging Face's: Conv1D weights are [in, out]. Called by plan.c.
 */
#include "workers/plan/plan_private.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

struct gpt2_norm {
	char name[PLAN_NAME_MAX];
	int gain, bias;       /* parameters */
	int x, y, mean, rstd; /* buffers */
};

struct gpt2_layer {
	char name[4][PLAN_NAME_MAX]; /* c_attn, attn.c_proj, c_fc, mlp.c_proj */
	struct gpt2_norm ln_1, ln_2;
	struct plan_dense attn, attn_proj, fc, mlp_proj;
	int qkv, att, lse, pre, act; /* buffers */
	int x, mid, out;             /* residual stream: in, after attention, after the mlp */
};

/* What the functions below share. */
struct gpt2 {
	struct plan_build *b;
	int64_t rows, c, t, heads;
	double scale, residual_scale; /* of fresh weights; of those that write the residual stream */
	bool dropout;
};

static int activation(const struct gpt2 *g, int64_t width, const char *prefix, const char *name)
{
	return plan_build_activation(
		g->b, plan_build_count(g->b, g->rows, width, 1), "%.56s.%s", prefix, name);
}

static void norm_forward(const struct gpt2 *g, struct gpt2_norm *n, int x)
{
	n->gain =
		plan_param_add(g->b, (struct plan_param_def){ PLAN_INIT_ONE, 0, 1, { g->c }, PLAN_TRAINED },
			"%.48s.weight", n->name);
	n->bias = plan_param_add(g->b,
		(struct plan_param_def){ PLAN_INIT_ZERO, 0, 1, { g->c }, PLAN_TRAINED }, "%.48s.bias",
		n->name);
	n->x = x;
	n->y = activation(g, g->c, n->name, "y");
	n->mean = activation(g, 1, n->name, "mean");
	n->rstd = activation(g, 1, n->name, "rstd");
	plan_build_op(g->b, PLAN_OP_LAYERNORM, n->name,
		PLAN_OPERANDS(x, plan_param_weight(g->b, n->gain), plan_param_weight(g->b, n->bias), n->y,
			n->mean, n->rstd),
		PLAN_DIMS(g->rows, g->c), 0);
}

static void norm_backward(
	const struct gpt2 *g, const struct gpt2_norm *n, int dy, int dx, bool accumulate)
{
	/* The workspace holds partial sums of the two parameter gradients, one pair per row block. */
	struct plan_op *op = plan_build_op(g->b, PLAN_OP_LAYERNORM_BACKWARD, n->name,
		PLAN_OPERANDS(n->x, plan_param_weight(g->b, n->gain), n->mean, n->rstd, dy, dx,
			plan_param_gradient(g->b, n->gain), plan_param_gradient(g->b, n->bias)),
		PLAN_DIMS(g->rows, g->c), 4 * plan_build_count(g->b, 2 * PLAN_ROW_BLOCKS, g->c, 1));
	op->accumulate = accumulate;
}

static struct plan_dense dense(const struct gpt2 *g, char *name, int64_t k, int64_t n, double scale)
{
	struct plan_dense d = { .name = name, .m = g->rows, .k = k, .n = n };
	d.weight = plan_param_add(g->b,
		(struct plan_param_def){ PLAN_INIT_NORMAL, scale, 2, { k, n }, PLAN_TRAINED },
		"%.48s.weight", name);
	d.bias = plan_param_add(g->b,
		(struct plan_param_def){ PLAN_INIT_ZERO, 0, 1, { n }, PLAN_TRAINED }, "%.48s.bias", name);
	return d;
}

/* y = x + dropout(d(in)); the addition is part of the product unless dropout comes between. */
static int residual_forward(
	const struct gpt2 *g, const struct plan_dense *d, int in, int x, int64_t site)
{
	int y = activation(g, g->c, d->name, "residual");
	if (!g->dropout) {
		plan_dense_forward(g->b, d, in, y, x);
		return y;
	}
	plan_dense_forward(g->b, d, in, y, -1);
	plan_build_op(
		g->b, PLAN_OP_DROPOUT, d->name, PLAN_OPERANDS(y, y), PLAN_DIMS(g->rows * g->c, site), 0);
	plan_build_op(g->b, PLAN_OP_ADD, d->name, PLAN_OPERANDS(x, y), PLAN_DIMS(g->rows * g->c), 0);
	return y;
}

/* The gradient of d's output, from that of the residual stream. */
static int residual_backward(
	const struct gpt2 *g, const struct plan_dense *d, int dres, int64_t site)
{
	if (!g->dropout)
		return dres;
	int dy = activation(g, g->c, d->name, "d.out");
	plan_build_op(g->b, PLAN_OP_DROPOUT_BACKWARD, d->name, PLAN_OPERANDS(dres, dy),
		PLAN_DIMS(g->rows * g->c, site), 0);
	return dy;
}

static void layer_names(struct gpt2_layer *l, int i)
{
	snprintf(l->ln_1.name, PLAN_NAME_MAX, "transformer.h.%d.ln_1", i);
	snprintf(l->ln_2.name, PLAN_NAME_MAX, "transformer.h.%d.ln_2", i);
	snprintf(l->name[0], PLAN_NAME_MAX, "transformer.h.%d.attn.c_attn", i);
	snprintf(l->name[1], PLAN_NAME_MAX, "transformer.h.%d.attn.c_proj", i);
	snprintf(l->name[2], PLAN_NAME_MAX, "transformer.h.%d.mlp.c_fc", i);
	snprintf(l->name[3], PLAN_NAME_MAX, "transformer.h.%d.mlp.c_proj", i);
}

static void layer_forward(const struct gpt2 *g, struct gpt2_layer *l, int i, int x)
{
	struct plan_build *b = g->b;
	layer_names(l, i);
	l->x = x;
	norm_forward(g, &l->ln_1, x);
	l->attn = dense(g, l->name[0], g->c, 3 * g->c, g->scale);
	l->qkv = activation(g, 3 * g->c, l->name[0], "y");
	plan_dense_forward(b, &l->attn, l->ln_1.y, l->qkv, -1);
	l->att = activation(g, g->c, l->name[0], "att");
	l->lse = activation(g, g->heads, l->name[0], "lse");
	plan_build_op(b, PLAN_OP_ATTENTION, l->name[0], PLAN_OPERANDS(l->qkv, l->att, l->lse),
		PLAN_DIMS(g->rows / g->t, g->t, g->c, g->heads), 4 * plan_build_count(b, g->rows, g->c, 1));
	l->attn_proj = dense(g, l->name[1], g->c, g->c, g->residual_scale);
	l->mid = residual_forward(g, &l->attn_proj, l->att, x, 2 * i + 1);
	norm_forward(g, &l->ln_2, l->mid);
	l->fc = dense(g, l->name[2], g->c, 4 * g->c, g->scale);
	l->pre = activation(g, 4 * g->c, l->name[2], "y");
	plan_dense_forward(b, &l->fc, l->ln_2.y, l->pre, -1);
	l->act = activation(g, 4 * g->c, l->name[2], "gelu");
	plan_build_op(b, PLAN_OP_GELU, l->name[2], PLAN_OPERANDS(l->pre, l->act),
		PLAN_DIMS(g->rows * 4 * g->c), 0);
	l->mlp_proj = dense(g, l->name[3], 4 * g->c, g->c, g->residual_scale);
	l->out = residual_forward(g, &l->mlp_proj, l->act, l->mid, 2 * i + 2);
}

/* dres holds d(out) and leaves with d(x): the residual stream's gradient is added to in place. */
static void layer_backward(const struct gpt2 *g, const struct gpt2_layer *l, int i, int dres)
{
	struct plan_build *b = g->b;
	int dy = residual_backward(g, &l->mlp_proj, dres, 2 * i + 2);
	int dact = activation(g, 4 * g->c, l->name[2], "d.gelu");
	plan_dense_backward(b, &l->mlp_proj, l->act, dy, dact, plan_gate_none);
	plan_build_op(b, PLAN_OP_GELU_BACKWARD, l->name[2], PLAN_OPERANDS(l->pre, dact, dact),
		PLAN_DIMS(g->rows * 4 * g->c), 0);
	int dnorm = activation(g, g->c, l->ln_2.name, "d.y");
	plan_dense_backward(b, &l->fc, l->ln_2.y, dact, dnorm, plan_gate_none);
	norm_backward(g, &l->ln_2, dnorm, dres, true);

	dy = residual_backward(g, &l->attn_proj, dres, 2 * i + 1);
	int datt = activation(g, g->c, l->name[0], "d.att");
	plan_dense_backward(b, &l->attn_proj, l->att, dy, datt, plan_gate_none);
	int dqkv = activation(g, 3 * g->c, l->name[0], "d.qkv");
	plan_build_op(b, PLAN_OP_ATTENTION_BACKWARD, l->name[0],
		PLAN_OPERANDS(l->qkv, l->att, l->lse, datt, dqkv),
		PLAN_DIMS(g->rows / g->t, g->t, g->c, g->heads),
		4 * plan_build_count(b, g->rows, 2 * g->c + g->heads, 1));
	dnorm = activation(g, g->c, l->ln_1.name, "d.y");
	plan_dense_backward(b, &l->attn, l->ln_1.y, dqkv, dnorm, plan_gate_none);
	norm_backward(g, &l->ln_1, dnorm, dres, true);
}

static bool config_ok(struct plan_build *b)
{
	const struct spec_model *m = &b->spec->model;
	int64_t t = b->spec->data.sequence_length;
	if (m->n_layer < 1 || m->n_layer > 512 || m->n_head < 1 || m->n_embd < 1)
		plan_build_fail(b, ERR_INVALID_VALUE, "$.model.config.n_layer",
			"gpt2 needs 1 to 512 layers, and at least one head and one embedding unit");
	else if (m->n_embd % m->n_head)
		plan_build_fail(b, ERR_INVALID_VALUE, "$.model.config.n_head",
			"n_embd (%lld) must be a multiple of n_head (%lld)", (long long)m->n_embd,
			(long long)m->n_head);
	else if (m->n_embd / m->n_head > PLAN_HEAD_SIZE_MAX)
		plan_build_fail(b, ERR_INVALID_VALUE, "$.model.config.n_head",
			"a head may have at most %d units, not %lld", PLAN_HEAD_SIZE_MAX,
			(long long)(m->n_embd / m->n_head));
	else if (t < 1 || t > m->n_positions)
		plan_build_fail(b, ERR_INVALID_VALUE, "$.data.sequence_length",
			"sequence_length (%lld) must be 1 to n_positions (%lld)", (long long)t,
			(long long)m->n_positions);
	else if (m->vocab_size < 256)
		plan_build_fail(b, ERR_INVALID_VALUE, "$.model.config.vocab_size",
			"the byte tokenizer needs a vocabulary of at least 256, not %lld",
			(long long)m->vocab_size);
	return !b->code;
}

static void gpt2_build(struct gpt2 *g, struct gpt2_layer *layers)
{
	struct plan_build *b = g->b;
	struct plan *p = b->p;
	const struct spec_model *m = &b->spec->model;
	plan_build_input(b, PLAN_INPUT, PLAN_I32, g->rows);
	int wte = plan_param_add(b,
		(struct plan_param_def){
			PLAN_INIT_NORMAL, g->scale, 2, { m->vocab_size, g->c }, PLAN_TRAINED },
		"transformer.wte.weight");
	int wpe = plan_param_add(b,
		(struct plan_param_def){
			PLAN_INIT_NORMAL, 0.02, 2, { m->n_positions, g->c }, PLAN_TRAINED },
		"transformer.wpe.weight");
	int x = activation(g, g->c, "transformer", "embedding");
	plan_build_op(b, PLAN_OP_EMBEDDING, "transformer.wte",
		PLAN_OPERANDS(p->inputs.input, plan_param_weight(b, wte), plan_param_weight(b, wpe), x),
		PLAN_DIMS(g->rows, g->t, g->c, m->vocab_size), 0);
	if (g->dropout)
		plan_build_op(b, PLAN_OP_DROPOUT, "transformer.wte", PLAN_OPERANDS(x, x),
			PLAN_DIMS(g->rows * g->c, 0), 0);
	for (int i = 0; i < m->n_layer && !b->code; i++) {
		layer_forward(g, &layers[i], i, x);
		x = layers[i].out;
	}
	struct gpt2_norm ln_f = { .name = "transformer.ln_f" };
	norm_forward(g, &ln_f, x);
	char head_name[] = "lm_head";
	struct plan_dense head = { .name = head_name,
		.weight = wte,
		.bias = -1,
		.m = g->rows,
		.k = g->c,
		.n = m->vocab_size,
		.transposed = true };
	p->output = activation(g, m->vocab_size, head_name, "logits");
	plan_dense_forward(b, &head, ln_f.y, p->output, -1);
	plan_build_op(b, PLAN_OP_SOFTMAX_XENT, "loss",
		PLAN_OPERANDS(p->output, p->inputs.labels, p->row_loss, p->row_hit),
		PLAN_DIMS(g->rows, m->vocab_size), 0);

	plan_build_backward(b);
	int dnorm = activation(g, g->c, ln_f.name, "d.y");
	plan_dense_backward(b, &head, ln_f.y, p->output, dnorm, plan_gate_none);
	int dres = activation(g, g->c, "transformer", "d.residual");
	norm_backward(g, &ln_f, dnorm, dres, false);
	for (int i = (int)m->n_layer - 1; i >= 0 && !b->code; i--)
		layer_backward(g, &layers[i], i, dres);
	if (g->dropout)
		plan_build_op(b, PLAN_OP_DROPOUT_BACKWARD, "transformer.wte", PLAN_OPERANDS(dres, dres),
			PLAN_DIMS(g->rows * g->c, 0), 0);
	plan_build_op(b, PLAN_OP_EMBEDDING_BACKWARD, "transformer.wte",
		PLAN_OPERANDS(
			p->inputs.input, dres, plan_param_gradient(b, wte), plan_param_gradient(b, wpe)),
		PLAN_DIMS(g->rows, g->t, g->c, m->vocab_size), 0);
}

void plan_family_gpt2(struct plan_build *b)
{
	const struct spec_model *m = &b->spec->model;
	if (!config_ok(b))
		return;
	cleanup(freep) struct gpt2_layer *layers = calloc((size_t)m->n_layer, sizeof(*layers));
	if (!layers) {
		plan_build_fail(b, ERR_NO_MEMORY, NULL, "no memory for the plan");
		return;
	}
	/* GPT-2's 0.02 belongs to its width of 768; narrower models start larger, by the root of the
	 * width, and learn several times faster for it. */
	double scale = 0.02 * sqrt(768.0 / (double)m->n_embd);
	struct gpt2 g = { .b = b,
		.rows = b->p->rows,
		.c = m->n_embd,
		.t = b->spec->data.sequence_length,
		.heads = m->n_head,
		.scale = scale,
		.residual_scale = scale / sqrt(2.0 * (double)m->n_layer),
		.dropout = b->spec->hyper.dropout > 0 };
	gpt2_build(&g, layers);
}

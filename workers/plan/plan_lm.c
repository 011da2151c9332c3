/* SPDX-License-Identifier: Apache-2.0
 * The whole of a language model: inputs, and what follows what. Called by
 * plan_family_gpt2.c and plan_family_llama.c. */
#include "workers/plan/plan_lm.h"

#include "core/base/num.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum {
	LAYERS_MAX = 512,
	BYTES_VOCABULARY = 256,
	WIDTH_OF_SCALE = 768,
	SCRATCH_PADDING = 64, /* of sequences and heads in attention's scratch */
};

static bool shape_ok(struct plan_build *b)
{
	const struct spec_model *m = &b->spec->model;
	bool llama = m->family == SPEC_LLAMA;
	int64_t t = b->spec->data.sequence_length;
	const char *heads = llama ? "$.model.config.num_attention_heads" : "$.model.config.n_head";
	if (m->n_layer < 1 || m->n_layer > LAYERS_MAX)
		plan_build_fail(b, ERR_INVALID_VALUE,
			llama ? "$.model.config.num_hidden_layers" : "$.model.config.n_layer",
			"a model has 1 to %d layers, not %lld", LAYERS_MAX, (long long)m->n_layer);
	else if (m->n_head < 1 || m->n_embd < 1 || m->n_embd % m->n_head)
		plan_build_fail(b, ERR_INVALID_VALUE, heads,
			"the width (%lld) must be a multiple of the number of heads (%lld)",
			(long long)m->n_embd, (long long)m->n_head);
	else if (m->n_embd / m->n_head > PLAN_HEAD_SIZE_MAX)
		plan_build_fail(b, ERR_INVALID_VALUE, heads, "a head may have at most %d units, not %lld",
			PLAN_HEAD_SIZE_MAX, (long long)(m->n_embd / m->n_head));
	else if (m->n_kv_head > 0 && m->n_head % m->n_kv_head)
		plan_build_fail(b, ERR_INVALID_VALUE, "$.model.config.num_key_value_heads",
			"the number of heads (%lld) must be a multiple of that of key-value heads (%lld)",
			(long long)m->n_head, (long long)m->n_kv_head);
	else if (t < 1 || t > m->n_positions)
		plan_build_fail(b, ERR_INVALID_VALUE, "$.data.sequence_length",
			"sequence_length (%lld) must be 1 to the model's positions (%lld)", (long long)t,
			(long long)m->n_positions);
	else if (b->spec->data.tokenizer == SPEC_TOKENIZER_BYTES && b->p->n_classes < BYTES_VOCABULARY)
		plan_build_fail(b, ERR_INVALID_VALUE, "$.model.config.vocab_size",
			"the byte tokenizer needs a vocabulary of at least %d, not %lld", BYTES_VOCABULARY,
			(long long)b->p->n_classes);
	return !b->code;
}

void plan_lm_init(struct plan_lm *lm, struct plan_build *b)
{
	const struct spec_model *m = &b->spec->model;
	*lm = (struct plan_lm){ .b = b, .wpe = -1, .dres = -1, .dhead = -1 };
	if (!shape_ok(b))
		return;
	/* 0.02 belongs to a width of 768; other widths start with the root of their share of it:
	 * narrow models learn several times faster for it. */
	lm->scale = 0.02 * sqrt((double)WIDTH_OF_SCALE / (double)m->n_embd);
	lm->residual_scale = lm->scale / sqrt(2.0 * (double)m->n_layer);
	lm->rows = b->p->rows;
	lm->t = b->spec->data.sequence_length;
	lm->c = m->n_embd;
	lm->vocab = b->p->n_classes;
	lm->heads = m->n_head;
	lm->kv_heads = m->n_kv_head > 0 ? m->n_kv_head : m->n_head;
	lm->head_size = m->n_embd / m->n_head;
	lm->inner = m->n_inner;
	lm->eps = m->norm_eps;
	lm->dropout = b->spec->hyper.dropout;
	lm->base_role = b->spec->lora.rank > 0 ? PLAN_FROZEN : PLAN_TRAINED;
	lm->layer_count = (int)m->n_layer;
	lm->next_site = 1 + 2 * m->n_layer;
	lm->tensor = b->p->mesh.tensor;
	lm->tensor_rank = b->p->mesh.tensor_rank;
	b->p->head_size = lm->head_size;
	lm->layers = calloc((size_t)m->n_layer, sizeof(*lm->layers));
	if (!lm->layers)
		plan_build_fail(b, ERR_NO_MEMORY, NULL, "no memory for the plan");
}

void plan_lm_finish(struct plan_lm *lm)
{
	free(lm->layers);
	lm->layers = NULL;
}

int plan_lm_embedding(struct plan_lm *lm, int64_t rows, bool shared, double scale, const char *name)
{
	bool cut = shared && lm->tensor > 1;
	return plan_param_add(lm->b,
		(struct plan_param_def){ .init = PLAN_INIT_NORMAL,
			.init_scale = scale,
			.rank = 2,
			.shape = { rows, lm->c },
			.role = lm->base_role,
			.cut_first = lm->first_token,
			.cut_count = cut ? lm->own_vocab : 0,
			.cut_most = cut ? num_round_up(rows, lm->tensor) / lm->tensor : 0 },
		"%s.weight", name);
}

void plan_lm_names(struct plan_lm_layer *l, int i, const char *layers, const char *attn)
{
	snprintf(l->attn, sizeof(l->attn), "%s.%d.%s", layers, i, attn);
	snprintf(l->mlp, sizeof(l->mlp), "%s.%d.mlp", layers, i);
}

void plan_lm_norm_add(struct plan_lm *lm, struct plan_lm_norm *n, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(n->name, sizeof(n->name), fmt, ap);
	va_end(ap);
	struct plan_param_def def = {
		.init = PLAN_INIT_ONE,
		.rank = 1,
		.shape = { lm->c },
		.role = lm->base_role,
		.summed = lm->tensor > 1 /* a norm is of a rank's own rows */
	};
	n->gain = plan_param_add(lm->b, def, "%.80s.weight", n->name);
	def.init = PLAN_INIT_ZERO;
	n->bias = lm->rms ? -1 : plan_param_add(lm->b, def, "%.80s.bias", n->name);
}

/* Tokens; and where documents share a sequence, where each begins and the place inside it. */
static void inputs(struct plan_lm *lm)
{
	struct plan_build *b = lm->b;
	struct plan *p = b->p;
	plan_build_input(b, PLAN_INPUT, PLAN_I32, lm->rows);
	if (b->spec->data.format == SPEC_FORMAT_JSONL && b->spec->data.packing) {
		plan_build_input(b, PLAN_POSITIONS, PLAN_I32, lm->rows);
		plan_build_input(b, PLAN_STARTS, PLAN_I32, lm->rows);
	}
	if (lm->rotary)
		p->rope = plan_build_persistent(b, PLAN_ACTIVATIONS, PLAN_F32,
			plan_build_count(b, lm->t, lm->head_size, 1), "%.64s.rope", lm->root);
}

static void check_targets(const struct plan_lm *lm)
{
	const struct spec_lora *lora = &lm->b->spec->lora;
	if (lora->rank > 0 && lora->target_count < 1)
		plan_build_fail(lm->b, ERR_INVALID_VALUE, "$.lora.target_modules",
			"LoRA needs at least one module to adapt");
	for (int i = 0; i < lora->target_count && lora->rank > 0; i++)
		if (!(lm->targets_found >> (unsigned)i & 1))
			plan_build_fail(lm->b, ERR_INVALID_VALUE, "$.lora.target_modules",
				"the model has no linear module named %s", lora->target[i]);
}

/* Elements of the residual stream, of this rank's own rows. */
static int64_t stream_count(const struct plan_lm *lm)
{
	return lm->own_rows * lm->c;
}

/* What the last stage has above its layers. */
struct top {
	int x, mean, rstd; /* buffers */
};

static void forward(struct plan_lm *lm, int chunk, struct top *top)
{
	struct plan_build *b = lm->b;
	const struct plan_chunk *c = &b->p->chunks[chunk];
	bool last = plan_pipeline_is_last(b->p, chunk);
	struct plan_stream on = { .buffer = -1 };
	plan_pipeline_begin(b, chunk, PLAN_FORWARD);
	int x = plan_pipeline_is_first(b->p, chunk)
		? plan_lm_embedding_forward(lm)
		: plan_pipeline_stream(b, chunk, stream_count(lm), lm->root);
	for (int i = c->first_layer; i < c->first_layer + c->layer_count && !b->code; i++) {
		if (!last && i == c->first_layer + c->layer_count - 1)
			on = plan_pipeline_before(b, lm->root);
		x = plan_lm_layer_forward(lm, i, x);
	}
	if (last) {
		top->x = x;
		int y = plan_lm_norm_forward(lm, &lm->final, x, &top->mean, &top->rstd);
		plan_lm_head_forward(lm, y);
	} else {
		plan_build_keep(b, x, 1);
		on.buffer = x;
		plan_pipeline_send(b, on, stream_count(lm), lm->root);
	}
	plan_pipeline_end(b, chunk, PLAN_FORWARD);
}

static void backward(struct plan_lm *lm, int chunk, const struct top *top)
{
	struct plan_build *b = lm->b;
	const struct plan_chunk *c = &b->p->chunks[chunk];
	bool first = plan_pipeline_is_first(b->p, chunk);
	struct plan_stream back = { .buffer = -1 };
	plan_pipeline_begin(b, chunk, PLAN_BACKWARD);
	if (b->p->mesh.pipeline > 1)
		back = plan_pipeline_gradient(b, chunk, stream_count(lm), lm->root);
	else
		back.buffer = plan_build_activation(b, stream_count(lm), "%.64s.d.residual", lm->root);
	lm->dres = back.buffer;
	if (plan_pipeline_is_last(b->p, chunk)) {
		int dy = plan_lm_head_backward(lm);
		plan_lm_norm_backward(lm, &lm->final, top->x, top->mean, top->rstd, dy, lm->dres, false);
	}
	for (int i = c->first_layer + c->layer_count - 1; i >= c->first_layer && !b->code; i--)
		plan_lm_layer_backward(lm, i);
	if (first)
		plan_lm_embedding_backward(lm);
	else
		plan_pipeline_send(b, back, stream_count(lm), lm->root);
	plan_pipeline_end(b, chunk, PLAN_BACKWARD);
}

/* The rows that the passes of a micro-batch begin and end with; in a pipeline several are under
 * way. */
static void keep_inputs(struct plan_build *b)
{
	const struct plan_inputs *in = &b->p->inputs;
	const int buffers[] = { in->input, in->labels, in->positions, in->starts };
	for (size_t i = 0; i < ARRAY_LEN(buffers); i++)
		plan_build_keep(b, buffers[i], b->p->chunks[0].slots);
}

void plan_lm_build(struct plan_lm *lm)
{
	struct plan_build *b = lm->b;
	check_targets(lm);
	/* What is multiplied below without looking is bounded here. */
	int64_t width = lm->c > 2 * lm->inner ? lm->c : 2 * lm->inner;
	(void)plan_build_count(b, lm->rows, width, 4);
	(void)plan_build_count(
		b, lm->rows / lm->t * lm->heads, lm->t + SCRATCH_PADDING, lm->head_size + SCRATCH_PADDING);
	(void)plan_build_count(b, lm->rows, lm->vocab, 1);
	(void)plan_build_count(b, lm->rows, b->spec->lora.rank, 1);
	if (b->code)
		return;
	inputs(lm);
	keep_inputs(b);
	struct top top = { .mean = -1, .rstd = -1 };
	int chunks = b->p->chunk_count;
	for (int c = 0; c < chunks && !b->code; c++)
		forward(lm, c, &top);
	plan_build_backward(b);
	for (int c = chunks - 1; c >= 0 && !b->code; c--)
		backward(lm, c, &top);
}

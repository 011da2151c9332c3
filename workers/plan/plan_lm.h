/* SPDX-License-Identifier: Apache-2.0
 * Decoder-only language models: what gpt2 and llama have in common. A family names the modules,
 * gives their shapes and adds their parameters; plan_lm.c, plan_lm_layer.c and plan_lm_linear.c
 * emit the operations, with activation checkpointing, dropout and LoRA.
 * Private to workers/plan. */
#pragma once

#include "workers/plan/plan_private.h"

/* The model:
 *	x = dropout(wte[token] (+ wpe[position]))
 *	each layer:  mid = x + dropout(out(attention(rope(in(norm_1(x))))))
 *	             x   = mid + dropout(down(act(up(norm_2(mid)))))
 *	loss = classifier(final(x), head)
 */

enum {
	PLAN_LM_NAME_MAX = 48, /* "model.layers.255.post_attention_layernorm" */
	PLAN_LM_IN_MAX = 3,    /* c_attn; or q, k and v */
	PLAN_LM_UP_MAX = 2,    /* c_fc; or gate and up */
};

struct plan_lm_norm {
	char name[PLAN_LM_NAME_MAX];
	int gain, bias; /* parameters; RMS norm: bias -1 */
};

/* A linear module and, where LoRA adapts it, y += alpha / r * B A dropout(x). */
struct plan_lm_linear {
	char name[PLAN_LM_NAME_MAX];
	struct plan_dense base;
	int64_t whole_k; /* inputs, of all ranks */
	int a, b;        /* parameters of the adapter; -1 = none */
	int64_t site;    /* of its dropout */
	int t;           /* buffer of A dropout(x), of the last forward pass emitted */
};

/* The buffers are those of the last forward pass emitted: a recomputation puts its own in place. */
struct plan_lm_layer {
	char attn[PLAN_LM_NAME_MAX], mlp[PLAN_LM_NAME_MAX]; /* names of what is no linear module */
	struct plan_lm_norm norm_1, norm_2;
	struct plan_lm_linear in[PLAN_LM_IN_MAX], out, up[PLAN_LM_UP_MAX], down;
	int x, mid;           /* residual stream: in, after attention */
	int n1, mean1, rstd1; /* of norm_1; n1, n2: of all rows */
	int n2, mean2, rstd2; /* of norm_2 */
	int qkv, att, lse;    /* attention's input, output, statistics */
	int pre, act;         /* the mlp's inner value before and after its activation */
};

struct plan_lm {
	struct plan_build *b;
	int64_t rows, t, c, vocab;
	int64_t heads, kv_heads, head_size, inner;
	/* The tensor axis (Megatron: Shoeybi et al. 2019, Korthikanti et al. 2022): a rank has
	 * own_heads of the heads, own_inner of the mlp's units, own_vocab of the vocabulary from
	 * first_token on, and between the modules own_rows of the rows. Alone it has all of each. */
	int tensor, tensor_rank;
	int64_t own_rows, own_heads, own_kv_heads, own_inner, own_vocab, first_token;
	double eps;
	double scale, residual_scale; /* of fresh weights; of those that write the residual stream */
	double dropout;
	bool rms;                 /* RMS norms without bias; otherwise layer norms */
	bool rotary;              /* positions turn queries and keys */
	bool gated;               /* SwiGLU of two products; otherwise GELU of one */
	bool biased;              /* linear modules have biases */
	bool row_out;             /* weights are [out, in]; otherwise [in, out] */
	unsigned targets_found;   /* of LoRA, a bit each */
	enum plan_role base_role; /* frozen under LoRA */
	const char *root;         /* "transformer": prefix of what belongs to no layer */
	const char *embedding;    /* "transformer.wte" */
	int in_count, up_count;
	int wte, wpe, head; /* parameters; wpe -1 = none; head = wte when tied */
	struct plan_lm_norm final;
	struct plan_lm_layer *layers;
	int layer_count;
	int64_t next_site; /* of dropout: 0 the embedding, 1 and 2 of each layer, then adapters */
	int dres;          /* buffer: gradient of the residual stream, added to in place */
	int dhead;         /* buffer: gradient of the head's input, or a part of its sum; all rows */
};

/* Shapes and scales from the spec; the family fills the rest. Checks what both families need
 * (heads, sequence length, vocabulary) and fails the builder. */
void plan_lm_init(struct plan_lm *lm, struct plan_build *b);
void plan_lm_finish(struct plan_lm *lm);
/* What of it is this rank's, once the family has said the rest and before it adds parameters. Fails
 * the builder where ranks cannot share it evenly. */
void plan_lm_share(struct plan_lm *lm);

/* Parameters. A name is the module's, without ".weight". */
/* shared: ranks have rows of it each, as they have the vocabulary. */
int plan_lm_embedding(
	struct plan_lm *lm, int64_t rows, bool shared, double scale, const char *name);
void plan_lm_names(struct plan_lm_layer *l, int i, const char *layers, const char *attn);
void plan_lm_norm_add(struct plan_lm *lm, struct plan_lm_norm *n, const char *fmt, ...)
	printf_like(3, 4);
/* How ranks share a module: its outputs, or its inputs; then what they put out is a part of a sum
 * each. */
enum plan_lm_cut { PLAN_LM_BY_OUTPUT, PLAN_LM_BY_INPUT };
struct plan_lm_shape {
	int64_t k, n; /* of the whole module */
	enum plan_lm_cut cut;
	int64_t blocks;       /* by output: of so many blocks of columns a rank has a part each; 0: 1 */
	int64_t ldy, y_shift; /* as struct plan_dense has them, of this rank */
	double scale;
};
void plan_lm_linear_add(struct plan_lm *lm, struct plan_lm_linear *l, struct plan_lm_shape shape,
	const char *fmt, ...) printf_like(4, 5);

/* plan_lm_stage.c. Shares the layers among the stages of a pipeline, once the family has said what
 * a layer is; fails the builder where there are too few. Then, before the parameters of each: the
 * embedding (the head too, or not), a layer, the final norm and a head of its own. */
void plan_lm_stages(struct plan_lm *lm);
void plan_lm_at_embedding(struct plan_lm *lm, bool is_head);
void plan_lm_at_layer(struct plan_lm *lm, int i);
void plan_lm_at_head(struct plan_lm *lm);

/* Every operation of the model, forward and backward. */
void plan_lm_build(struct plan_lm *lm);

/* plan_lm_tensor.c. All rows of what each rank has some of, [own_rows, width]; and back, the own
 * rows of the sum over ranks of [rows, width]. Alone: x itself. */
int plan_lm_gather(const struct plan_lm *lm, const char *name, int x, int64_t width);
int plan_lm_scatter(const struct plan_lm *lm, const char *name, int x, int64_t width);
/* Dropout of own rows of [rows, width]. */
struct plan_mask plan_lm_mask(const struct plan_lm *lm, int64_t width, int64_t site);

/* plan_lm_embedding.c. Returns the first buffer of the residual stream. */
int plan_lm_embedding_forward(struct plan_lm *lm);
void plan_lm_embedding_backward(struct plan_lm *lm);
/* plan_lm_head.c. Head and loss over the final norm's output x, then, in the backward pass, the
 * gradient of x. */
void plan_lm_head_forward(struct plan_lm *lm, int x);
int plan_lm_head_backward(struct plan_lm *lm);

/* plan_lm_linear.c */
void plan_lm_linear_forward(
	const struct plan_lm *lm, struct plan_lm_linear *l, int x, int y, int residual);
/* dx (-1 = not wanted) is overwritten, or added to; the gate comes last. */
void plan_lm_linear_backward(const struct plan_lm *lm, const struct plan_lm_linear *l, int x,
	int dy, int dx, bool accumulate, struct plan_gate gate);
static inline bool plan_lm_linear_adapted(const struct plan_lm_linear *l)
{
	return l->a >= 0;
}
/* Whether the backward pass reads the module's input. */
bool plan_lm_linear_needs_input(const struct plan_lm *lm, const struct plan_lm_linear *l);

/* plan_lm_layer.c */
int plan_lm_norm_forward(
	const struct plan_lm *lm, const struct plan_lm_norm *n, int x, int *ret_mean, int *ret_rstd);
void plan_lm_norm_backward(const struct plan_lm *lm, const struct plan_lm_norm *n, int x, int mean,
	int rstd, int dy, int dx, bool accumulate);
/* Returns the residual stream's next buffer. */
int plan_lm_layer_forward(struct plan_lm *lm, int i, int x);
/* Turns lm->dres from the gradient of the layer's output into that of its input. */
void plan_lm_layer_backward(struct plan_lm *lm, int i);

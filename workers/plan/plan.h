/* SPDX-License-Identifier: Apache-2.0
 * The plan: what a job spec will compute, in order, and every byte it needs, without a device.
 * The server's create handler compiles it to refuse a job that does not fit; the trainer's engine
 * executes the same object. Pure: same spec, same plan. A plan is read-only after it is made, so
 * threads may share it. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "core/spec/spec.h"

#include <stdbool.h>
#include <stdint.h>

enum {
	PLAN_ALIGN_BYTES = 64, /* every buffer starts at a multiple; padding is part of the total */
	PLAN_NAME_MAX = 64,
	PLAN_RANK_MAX = 4,
	PLAN_OPERANDS_MAX = 8,
	PLAN_DIMS_MAX = 8,
	PLAN_HEAD_SIZE_MAX = 256, /* attention: units of one head */
	PLAN_ROW_BLOCKS = 64,     /* pieces of a reduction over rows, whatever the number of threads */
	PLAN_OPS_MAX = 16 * 1024,
	PLAN_BUFFERS_MAX = 64 * 1024,
};

/* What is known of the files. 0 = not known yet. Memory never depends on the counts (files are
 * mapped, only batches are copied), so the server plans before anybody has read a byte, and
 * plan_set_dataset fills the steps in later. The shape and the classes are used where the spec
 * leaves them 0. */
struct plan_dataset {
	int64_t training_samples; /* language model: windows of sequence_length tokens */
	int64_t validation_samples;
	int64_t training_tokens; /* language model only */
	int64_t validation_tokens;
	int64_t in_channels, in_height, in_width, n_classes;
};

enum plan_buffer_kind {
	PLAN_WEIGHTS,
	PLAN_GRADIENTS,
	PLAN_OPTIMIZER,
	PLAN_ACTIVATIONS, /* values of the forward pass and their gradients */
	PLAN_WORKSPACE,   /* scratch of single operations */
	PLAN_DATA,        /* the micro-batch's inputs and labels */
	PLAN_KIND_COUNT,
};

/* One piece of the arena. Two buffers may share bytes only when their lifetimes are disjoint. */
struct plan_buffer {
	char name[PLAN_NAME_MAX];
	enum plan_buffer_kind kind;
	int64_t bytes;
	int64_t offset;        /* from the start of the arena */
	int first_op, last_op; /* indices into ops, both inclusive: [0, op_count) for what persists */
};

enum plan_init { PLAN_INIT_ZERO, PLAN_INIT_ONE, PLAN_INIT_NORMAL, PLAN_INIT_UNIFORM };

/* One trained tensor, named as in Hugging Face files. Row-major fp32. */
struct plan_param {
	char name[PLAN_NAME_MAX];
	int rank;
	int64_t shape[PLAN_RANK_MAX];
	int64_t count; /* elements */
	enum plan_init init;
	double init_scale; /* NORMAL: standard deviation; UNIFORM: half width */
	bool decay;        /* weight decay applies */
	int weight, gradient;
	int moment1, moment2; /* buffers; -1 where the optimizer has none (SGD: moment1 = momentum) */
};

enum plan_phase { PLAN_FORWARD, PLAN_BACKWARD, PLAN_OPTIMIZE };

/* Operand order and dimensions of each kind. `x/dx` marks a gradient buffer. An operand in
 * brackets may be -1. Gradients of weights are added to what is there. */
enum plan_op_kind {
	PLAN_OP_EMBEDDING,          /* tokens, wte, wpe, y; dims rows, T, C, V */
	PLAN_OP_EMBEDDING_BACKWARD, /* tokens, dy, dwte, dwpe; dims rows, T, C, V */
	PLAN_OP_LAYERNORM,          /* x, gain, bias, y, mean, rstd; dims rows, C */
	/* x, gain, mean, rstd, dy, dx (added to when accumulate), dgain, dbias + workspace */
	PLAN_OP_LAYERNORM_BACKWARD,
	/* y[M,N] = act(x[M,K] w + b) + residual; x, w, [b], y, [residual]; dims M, K, N */
	PLAN_OP_LINEAR,
	PLAN_OP_LINEAR_BACKWARD_DATA,   /* dy, w, dx; dims M, K, N */
	PLAN_OP_LINEAR_BACKWARD_WEIGHT, /* x, dy, dw, [db]; dims M, K, N */
	PLAN_OP_GELU,                   /* x, y; dims count (tanh form) */
	PLAN_OP_GELU_BACKWARD,          /* x, dy, dx; dims count */
	PLAN_OP_RELU_BACKWARD,          /* y, dy, dx; dims count (from the output) */
	PLAN_OP_ADD,                    /* a, y: y += a; dims count */
	PLAN_OP_ATTENTION,              /* qkv, y, lse; dims B, T, C, heads (causal) */
	PLAN_OP_ATTENTION_BACKWARD,     /* qkv, y, lse, dy, dqkv + workspace; dims as forward */
	/* 3x3, padding 1, channels last: x, w, b, y, ReLU fused; dims N, H, W, C, K (outputs) */
	PLAN_OP_CONV,
	PLAN_OP_CONV_BACKWARD_DATA,   /* dy, w, dx; dims as forward */
	PLAN_OP_CONV_BACKWARD_WEIGHT, /* x, dy, dw, db; dims as forward */
	PLAN_OP_MAXPOOL,              /* 2x2, stride 2: x, y, which (1 byte each); dims N, H, W, C */
	PLAN_OP_MAXPOOL_BACKWARD,     /* dy, which, dx; dims as forward */
	PLAN_OP_DROPOUT,              /* x in place; dims count, site */
	PLAN_OP_DROPOUT_BACKWARD,     /* dx in place; dims count, site */
	/* logits become their own gradient: logits, labels, row_loss, row_hit; dims rows, classes */
	PLAN_OP_SOFTMAX_XENT,
	PLAN_OP_MSE, /* prediction becomes its gradient: y, targets, row_loss; dims rows, outputs */
	PLAN_OP_GRADIENT_NORM, /* all gradients (flat), workspace; dims count */
	PLAN_OP_ADAMW,         /* weights, gradients, moment1, moment2 (flat); dims count */
	PLAN_OP_SGD,           /* weights, gradients, [momentum] (flat); dims count */
	PLAN_OP_COUNT,
};

enum plan_activation { PLAN_ACT_NONE, PLAN_ACT_RELU };

struct plan_op {
	char name[PLAN_NAME_MAX]; /* "h.3.attn.c_attn" */
	enum plan_op_kind kind;
	enum plan_phase phase;
	int operand[PLAN_OPERANDS_MAX]; /* buffer indices, -1 = none */
	int64_t dim[PLAN_DIMS_MAX];
	int workspace; /* scratch buffer of this operation alone, -1 = none */
	enum plan_activation act;
	bool transposed; /* LINEAR*: w is stored [N,K] ("out, in") instead of [K,N] */
	bool accumulate; /* dx is added to instead of overwritten */
	double flops;    /* of one execution, by the convention below */
	double bytes;    /* operands read and written once */
};

/* What is counted, in words, for every place that prints a FLOP figure or an MFU. */
#define PLAN_FLOP_CONVENTION                                                                \
	"2 per multiply-add of matrix products and convolutions, forward and backward; causal " \
	"attention at half of the square; recomputation, elementwise and optimizer work not counted"

struct plan {
	enum spec_task task;
	enum spec_family family;
	enum spec_optimizer optimizer;

	struct plan_op *ops; /* forward, then backward (once per micro-batch), then optimizer */
	int op_count;
	int backward_begin, optimize_begin; /* index of the first op of each phase */
	struct plan_buffer *buffers;
	int buffer_count;
	struct plan_param *params;
	int param_count;

	/* Well-known buffers; -1 when the family has none. */
	int input;    /* int32 tokens [rows] or fp32 samples, channels last */
	int labels;   /* int32 [rows], -1 = ignored; fp32 [rows, outputs] for regression */
	int output;   /* logits or predictions */
	int row_loss; /* fp32 [rows] */
	int row_hit;  /* fp32 [rows], 1 where the arg max is the label */

	int64_t micro_batch; /* samples per micro-batch */
	int64_t micro_steps; /* micro-batches per optimizer step */
	int64_t batch;       /* micro_batch * micro_steps */
	int64_t rows;        /* loss rows per micro-batch: tokens or samples */
	int64_t sequence_length;
	int64_t in_channels, in_height, in_width;
	int64_t n_classes; /* classes, vocabulary or regression outputs */

	int64_t parameter_count; /* elements, without alignment */
	int64_t flat_count;      /* elements of the flat weight range, with alignment */
	int64_t
		kind_bytes[PLAN_KIND_COUNT]; /* sum of the buffers of each kind (they may share bytes) */
	int64_t total_bytes;             /* the one allocation: exact */
	double flops_per_step;           /* one optimizer step, PLAN_FLOP_CONVENTION */
	double bytes_per_step;
	double flops_per_sample; /* language model: per window */
	double flops_per_token;  /* language model; otherwise = flops_per_sample */

	struct plan_dataset dataset;
	/* 0 while the dataset is unknown (total_steps is known at once when the spec has max_steps). */
	int64_t total_steps;
	double steps_per_epoch; /* training_samples / batch; epochs follow each other without a gap */
};

/* Compiles. dims may be NULL (nothing known). Errors name the spec's JSON path: INVALID_VALUE for
 * what the family cannot be, MISSING_FIELD for a shape that neither spec nor dims know.
 * Free with plan_destroy. */
int plan_compile(const struct job_spec *spec, const struct plan_dataset *dims, struct plan **ret,
	struct err *err) must_check;
/* Replaces the counts and recomputes the steps. Memory and operations stay. INVALID_DATA when a
 * shape or class count given differs from the plan's. */
int plan_set_dataset(struct plan *p, const struct job_spec *spec, const struct plan_dataset *dims,
	struct err *err) must_check;
void plan_destroy(struct plan *p);
void plan_destroyp(struct plan **p);

/* Words for people and JSON: "weights", "linear_backward_data", "forward". */
const char *plan_kind_word(enum plan_buffer_kind kind);
const char *plan_op_word(enum plan_op_kind kind);
const char *plan_phase_word(enum plan_phase phase);

/* Learning rate at a step (0-based): a pure function of the spec and total_steps. Warm-up rises
 * linearly to the peak at step warmup_steps; linear and cosine then fall to min_lr_ratio * peak at
 * the last step. */
double plan_learning_rate(const struct job_spec *spec, int64_t total_steps, int64_t step);

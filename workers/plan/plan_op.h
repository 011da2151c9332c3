/* SPDX-License-Identifier: Apache-2.0
 * The operations of a plan: what each computes, its operands and its dimensions. Families emit
 * them, the cost model counts them, the engine hands each to the backend's function of the same
 * name (backend.h), the profiler shows their names. Included through plan.h. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum {
	PLAN_NAME_MAX = 96,
	PLAN_OPERANDS_MAX = 12,
	PLAN_DIMS_MAX = 8,
	PLAN_ALIGN_BYTES = 64,    /* every buffer starts at a multiple; padding is part of the total */
	PLAN_HEAD_SIZE_MAX = 256, /* attention: units of one head */
	PLAN_ROW_BLOCKS = 64,     /* pieces of a reduction over rows, whatever the number of threads */
	PLAN_STATISTICS = 5,      /* of a row of logits, XENT_STATISTICS */
};

enum plan_type { PLAN_F32, PLAN_BF16, PLAN_F16, PLAN_I32, PLAN_U8, PLAN_TYPE_COUNT };
int64_t plan_type_bytes(enum plan_type type);
const char *plan_type_word(enum plan_type type); /* "fp32", "bf16", "fp16", "int32", "uint8" */

enum plan_phase { PLAN_FORWARD, PLAN_BACKWARD, PLAN_OPTIMIZE };

enum plan_axis {
	PLAN_AXIS_NONE,
	PLAN_AXIS_DATA,
	PLAN_AXIS_TENSOR,
	PLAN_AXIS_PIPELINE,
	PLAN_AXIS_ENDS, /* the first and the last rank of the pipeline axis */
	PLAN_AXIS_ALL
};

enum plan_activation { PLAN_ACT_NONE, PLAN_ACT_RELU, PLAN_ACT_GELU };

/* Operand order and dimensions of each kind. `x/dx` marks a gradient buffer. An operand in brackets
 * may be -1. Activations and their gradients have the plan's type; statistics (mean, rstd, lse,
 * row_*), gradients of parameters, gains and biases are fp32; w has its buffer's type. Gradients of
 * parameters are added to what is there (but see overwrites). "+ ws": has a workspace. */
enum plan_op_kind {
	/* y = x; x fp32, y of the plan's type; dims count */
	PLAN_OP_CAST,

	/* Language. position of row r: positions[r], or r % T without.
	 * wte has the rows of tokens [first, first + V): others add 0.
	 * tokens, wte, [wpe], [positions], y; dims rows, T, C, V, first */
	PLAN_OP_EMBEDDING,
	PLAN_OP_EMBEDDING_BACKWARD, /* tokens, dy, dwte, [dwpe], [positions]; dims as forward */
	PLAN_OP_LAYERNORM,          /* x, gain, bias, y, mean, rstd; dims rows, C; scalar eps */
	/* x, gain, mean, rstd, dy, dx (added to when accumulate), [dgain], [dbias] + ws */
	PLAN_OP_LAYERNORM_BACKWARD,
	PLAN_OP_RMSNORM, /* x, gain, y, rstd; dims rows, C; scalar eps */
	/* x, gain, rstd, dy, dx (added to when accumulate), [dgain] + ws */
	PLAN_OP_RMSNORM_BACKWARD,
	/* Rotates queries and keys of qkv in place, half-split pairs; back when `inverse`.
	 * qkv, table, [positions]; dims rows, T, heads, kv_heads, head_size */
	PLAN_OP_ROPE,
	/* Causal, inside documents when starts is given. qkv rows hold heads queries, then kv_heads
	 * keys, then kv_heads values of head_size each. lse [B, heads, T].
	 * qkv, y, lse, [starts] + ws; dims B, T, heads, kv_heads, head_size */
	PLAN_OP_ATTENTION,
	PLAN_OP_ATTENTION_BACKWARD, /* qkv, y, lse, dy, dqkv, [starts] + ws; dims as forward */
	PLAN_OP_SWIGLU,          /* gate_up [rows, 2I] (gate, then up), y [rows, I] = silu(gate) * up;
							  * dims rows, I */
	PLAN_OP_SWIGLU_BACKWARD, /* gate_up, dy, d(gate_up); dims rows, I */
	/* Head and loss without the full logits: chunk rows at a time. In training, dx = gradient of
	 * x, and dw (when given) is added to; in evaluation only row_loss and row_hit are written.
	 * x [rows, C], w [V, C], labels, row_loss, row_hit, dx, [dw] + ws; dims rows, C, V, chunk */
	PLAN_OP_CLASSIFIER,
	/* The loss where ranks have the logits of V classes each, in the order of ranks. First what
	 * each says of a row: the largest logit, the sum of e^(x - largest), the sum of x, the label's
	 * logit, and whether that is its first largest one (PLAN_STATISTICS numbers; a row without a
	 * label has zeros). logits, labels, statistics; dims rows, V, first class */
	PLAN_OP_XENT_STATISTICS,
	/* Then the loss, and in training the gradient in place of the logits. logits, labels,
	 * statistics of all [ranks, rows, PLAN_STATISTICS], row_loss, row_hit; dims rows, V, first
	 * class, classes of all, ranks */
	PLAN_OP_XENT_SHARED,

	/* Dense layers: y[M,N] = act(alpha x[M,K] w + b) + residual, alpha = scalar. pre (act GELU):
	 * where the value before the activation is stored. GELU is taken of that value as y's type
	 * holds it, stored or not: PLAN_OP_GELU of pre gives y again, bit by bit. w is [K,N], or [N,K]
	 * when transposed.
	 * x, w, [b], y, [residual], [pre] + ws; dims M, K, N, ldx, ldy (of y, residual and pre) */
	PLAN_OP_LINEAR,
	/* dx = (alpha dy w' + residual) * act'(gate): gate holds the pre-activation (GELU) or the
	 * output (RELU) of the layer before; residual may be dx itself.
	 * dy, w, dx, [residual], [gate] + ws; dims M, K, N, lddy, lddx (of dx, residual and gate) */
	PLAN_OP_LINEAR_BACKWARD_DATA,
	/* x, dy, [dw], [db] + ws; dims M, K, N, ldx, lddy; dw += alpha x' dy; db += column sums of dy
	 */
	PLAN_OP_LINEAR_BACKWARD_WEIGHT,
	PLAN_OP_GELU,          /* x, y; dims count (tanh form) */
	PLAN_OP_RELU_BACKWARD, /* y, dy, dx; dims count (from the output) */
	PLAN_OP_ADD,           /* a, y: y += a; dims count */
	/* y = x / (1-p) or 0; p = scalar; a function of (seed, stream position, site, index), so the
	 * backward pass and a recomputation repeat it. The index is that in the whole that x is a part
	 * of (struct plan_cut). Off in evaluation. x, y; dims count, site, first, run, period */
	PLAN_OP_DROPOUT,
	PLAN_OP_DROPOUT_BACKWARD, /* dy, dx; dims as forward */

	/* Images, channels last. OH = (H + 2 pad - kernel) / stride + 1.
	 * x, w [K, C, kernel, kernel], [b], y + ws; dims N, H, W, C, K, kernel, stride, pad; act */
	PLAN_OP_CONV,
	PLAN_OP_CONV_BACKWARD_DATA,   /* dy, w, dx (added to when accumulate) + ws; dims as forward */
	PLAN_OP_CONV_BACKWARD_WEIGHT, /* x, dy, dw, [db] + ws; dims as forward */
	/* y = act(norm(x) * gain + bias + residual); statistics over rows; training updates the
	 * running ones (momentum 0.1, unbiased variance) unless `recompute`; evaluation uses them.
	 * x, gain, bias, y, mean, rstd, running_mean, running_var, [residual] + ws; dims rows, C;
	 * scalar eps */
	PLAN_OP_BATCHNORM,
	/* dy is gated by y > 0 when act is RELU; dx, or dresidual, may be dy itself. x, gain, mean,
	 * rstd, y, dy, dx, dgain, dbias, [dresidual (written, added to when accumulate)] + ws; dims
	 * rows, C */
	PLAN_OP_BATCHNORM_BACKWARD,
	/* which: index of the first largest in the window, 1 byte. x, y, which; dims N, H, W, C,
	 * kernel, stride, pad */
	PLAN_OP_MAXPOOL,
	PLAN_OP_MAXPOOL_BACKWARD, /* dy, which, dx; dims as forward */
	PLAN_OP_AVGPOOL,          /* x [N, HW, C], y [N, C]; dims N, HW, C */
	PLAN_OP_AVGPOOL_BACKWARD, /* dy, dx; dims N, HW, C */

	/* Click-through. F = tables + 1 features of D each: z [samples, F, D], z[:,0] = dense part.
	 * bags [tables, samples, lookups], table (fp32), z; dims samples, lookups, D, rows, index of
	 * the table, F: z[:, index + 1] = sum of the rows in the bag */
	PLAN_OP_EMBEDDING_BAG,
	/* y [samples, D + F(F-1)/2]: z[:,0], then dot products of pairs i > j, row by row */
	PLAN_OP_INTERACTION, /* z, y; dims samples, F, D */
	/* The dense part is a ReLU's output: dz[:,0] is gated by z[:,0] > 0. z, dy, dz; dims as forward
	 */
	PLAN_OP_INTERACTION_BACKWARD,
	/* Keeps a micro-batch's part of a table's gradient until the step: ids [batch, lookups] and
	 * grads [batch, D] fp32 of one table. bags, dz, ids, grads; dims samples, lookups, D, index of
	 * the table, F */
	PLAN_OP_SPARSE_STORE,
	/* Tables that ranks share (plan_tables.h): N ranks of P slots. What goes between them is by
	 * rank and slot: ids [N, P, samples, lookups] int32, and rows [N, P, samples, D]; "own" are
	 * those that came from every rank for the slots of this one. Bags as the pieces' rows, -1 where
	 * another piece has it. bags, ids; dims samples, lookups */
	PLAN_OP_PIECE_IDS,
	/* The bags of every rank in one slot's piece of a table. own ids, table (fp32), own rows
	 * (written); dims samples, lookups, D, rows of the piece, slot, N, P */
	PLAN_OP_PIECE_SUM,
	/* z[:, index + 1] = the sum over the table's pieces, in the order of rows. rows, z; dims
	 * samples, D, F */
	PLAN_OP_PIECE_GATHER,
	PLAN_OP_PIECE_SPREAD, /* rows = dz[:, index + 1] for each piece. dz, rows; dims as GATHER */
	/* Keeps every rank's part of one slot's gradient, in the order of the batch. own ids, own rows,
	 * ids [batch, lookups], grads [batch, D] fp32; dims samples, lookups, D, slot, N, P */
	PLAN_OP_PIECE_STORE,

	/* Losses: in training the logits or predictions become their own gradient. */
	PLAN_OP_SOFTMAX_XENT, /* logits, labels, row_loss, row_hit; dims rows, classes */
	PLAN_OP_MSE,          /* y, targets, row_loss; dims rows, outputs */
	PLAN_OP_BCE,          /* logits, labels, row_loss, row_hit (p > 1/2 is the label); dims rows */

	/* Optimizer; over the flat ranges (operands name the first buffer of each). */
	PLAN_OP_GRADIENT_NORM, /* gradients + ws; dims count */
	/* Sums a table's gradient by row: rows [batch * lookups] int32, sums [.., D] fp32, count
	 * int32[1]; the squares join the gradient norm. ids, grads, rows, sums, count + ws; dims
	 * batch, lookups, D, rows of the table */
	PLAN_OP_SPARSE_REDUCE,
	PLAN_OP_ADAMW,        /* master, gradients, moment1, moment2, [weights]; dims count */
	PLAN_OP_SGD,          /* master, gradients, [momentum], [weights]; dims count */
	PLAN_OP_SPARSE_ADAMW, /* table, moment1, moment2, rows, sums, count; dims batch * lookups, D */
	PLAN_OP_SPARSE_SGD,   /* table, [momentum], rows, sums, count; dims batch * lookups, D */
	/* Rounds a part of a parameter's masters up or down by chance, the nearer the likelier: a
	 * function of (seed, step, parameter, index in the whole), so that any mesh and a resumed run
	 * repeat it. The update then has no weights. master, weights; dims count, number of the
	 * parameter, its first element here, first, run, period (struct plan_cut) */
	PLAN_OP_ROUND,
	PLAN_OP_AVERAGE, /* master, average; dims count (ema_decay) */

	/* Between ranks, on the operation's axis (comm.h has what each computes). Starts, and goes on
	 * beside what follows until the PLAN_OP_WAIT of the same ticket: till then the operands belong
	 * to it. */
	PLAN_OP_ALL_REDUCE,     /* x, in place; dims count */
	PLAN_OP_REDUCE_SCATTER, /* x [ranks * count], y [count], which may be the own part of x; dims
							 * count */
	/* x [count], y [ranks * count], of which x may be the own part; dims count, and how many
	 * elements further both lie in each micro-batch after the first */
	PLAN_OP_ALL_GATHER,
	/* Part r of x [ranks * count] becomes the own part of rank r's y [ranks * count]; dims count */
	PLAN_OP_ALL_TO_ALL,
	/* To the stage after, in the backward pass to the one before; and from there. A send is done
	 * when the other has come to its receive: what is sent must stay until then. x; dims count */
	PLAN_OP_SEND,
	PLAN_OP_RECEIVE,
	PLAN_OP_WAIT,       /* the operands of the call */
	PLAN_OP_ACCUMULATE, /* x, y: y += x, fp32; dims count */
	PLAN_OP_CLEAR,      /* a bucket's gradients; what no first write overwrites becomes 0 */
	/* The running statistics of all data ranks become what one rank alone would have; dims
	 * elements of all of them */
	PLAN_OP_RUNNING,
	/* The losses of micro-batches and the squares of gradients, from every rank to all: few
	 * numbers of the engine's own, on all axes. dims numbers of each rank */
	PLAN_OP_EXCHANGE,
	PLAN_OP_COUNT,
};
const char *plan_op_word(enum plan_op_kind kind); /* "linear_backward_data" */

struct plan_op {
	const char *name; /* "transformer.h.3.attn.c_attn"; the plan's */
	enum plan_op_kind kind;
	enum plan_phase phase;
	int operand[PLAN_OPERANDS_MAX];   /* buffer indices, -1 = none */
	int64_t shift[PLAN_OPERANDS_MAX]; /* elements from the buffer's start (part of a wider row) */
	int64_t dim[PLAN_DIMS_MAX];
	int workspace; /* scratch buffer of this operation alone, -1 = none */
	enum plan_activation act;
	double scalar;       /* alpha of products (1), eps of norms, p of dropout */
	bool transposed;     /* LINEAR*: w is stored [N,K] ("out, in") instead of [K,N] */
	bool accumulate;     /* dx is added to instead of overwritten */
	bool overwrites;     /* dw: in a step's first micro-batch it is written, whatever was there */
	bool inverse;        /* ROPE: rotates back */
	bool recompute;      /* a forward operation repeated in the backward pass */
	enum plan_axis axis; /* between ranks: who takes part */
	int ticket;          /* between ranks: which call a WAIT waits for; below ticket_count */
	int turns;           /* above 1: so many tickets from there; micro-batches take turns */
	int bucket;          /* CLEAR, and the optimizer's operations of sharded state; -1 = none */
	bool last_micro;     /* only in the last micro-batch of a step */
	bool train_only;     /* not in evaluation */
	bool uncounted;      /* GRADIENT_NORM, SPARSE_REDUCE: another rank has the same gradients, and
						  * counts their squares */
	double flops;        /* of one execution, PLAN_FLOP_CONVENTION */
	double bytes;        /* operands read and written once */
	double wire_bytes;   /* between ranks: sent by this one */
};

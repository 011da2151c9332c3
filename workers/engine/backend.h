/* SPDX-License-Identifier: Apache-2.0
 * What a device must be able to do: one const struct of mandatory functions per backend and
 * activation type, one function for each operation of plan_op.h (which has the formulas). The
 * engine calls them with pointers into the device's memory, from its owner's thread only. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "workers/plan/plan_cut.h"
#include "workers/plan/plan_op.h"

#include <stdbool.h>
#include <stdint.h>

/* A device may work behind its caller: operations run one after the other in the order of their
 * calls, and what they leave for the host (`double *ret`, and whether they failed) is there after
 * `finish`.
 *
 * `void *` are activations in the backend's type (act_type); gains, biases, statistics, losses and
 * gradients of parameters are fp32; weights have the type said. Arithmetic is in fp32 (products of
 * bf16 values accumulate in fp32), or in double where a function likes. Row-major. Unless said, a
 * function cannot fail, overwrites its output, and gives the same bits for the same input whatever
 * the number of threads. */

struct backend_ctx; /* one device in use */
struct comm_device; /* workers/comm/comm.h */

enum backend_memory {
	BACKEND_DEVICE,
	BACKEND_HOST, /* the host's, from where the device copies fastest */
};

enum { BACKEND_PARTS = 8 }; /* of a step, that a device may keep (record) */

/* Scratch of one operation, from the plan. */
struct backend_workspace {
	void *data;
	int64_t bytes;
};

/* y[m,n] = act(alpha x[m,k] w + b) + residual. w is [k,n], or [n,k] when transposed. b, residual
 * and pre (GELU: the value before) may be NULL; residual may be y. Strides in elements. */
struct backend_linear {
	int64_t m, k, n;
	int64_t ldx, ldy; /* ldy: of y, residual and pre */
	bool transposed;
	float alpha;
	enum plan_activation act;
	enum plan_type w_type;
	const void *x, *w;
	const float *b;
	const void *residual;
	void *y, *pre;
	struct backend_workspace ws;
};

/* dx[m,k] = (alpha dy[m,n] w' + residual) * act'(gate). */
struct backend_linear_backward_data {
	int64_t m, k, n;
	int64_t lddy, lddx; /* lddx: of dx, residual and gate */
	bool transposed;
	float alpha;
	enum plan_activation act; /* of gate; NONE without */
	enum plan_type w_type;
	const void *dy, *w, *residual, *gate;
	void *dx;
	struct backend_workspace ws;
};

/* dw += alpha x' dy (in w's layout), or = with overwrite; db += column sums of dy; either may be
 * NULL. */
struct backend_linear_backward_weight {
	int64_t m, k, n;
	int64_t ldx, lddy;
	bool transposed;
	float alpha;
	const void *x, *dy;
	float *dw, *db;
	bool overwrite;
	struct backend_workspace ws;
};

/* x [n,h,w,in], y [n,oh,ow,out], weights [out,in,kernel,kernel] of w_type. */
struct backend_conv {
	int64_t n, h, w, in, out, kernel, stride, pad;
	enum plan_activation act; /* forward: NONE or RELU */
	bool accumulate;          /* backward data: dx += */
	enum plan_type w_type;
	const void *x, *weight;
	const float *bias; /* may be NULL */
	void *y;
	const void *dy; /* backward */
	void *dx;       /* backward data */
	float *dw, *db; /* backward weight, added to; db may be NULL */
	struct backend_workspace ws;
};

/* wte has the rows of tokens [first, first + v): the others' are 0, and their gradient is nobody's.
 */
struct backend_embedding {
	int64_t rows, t, c, v, first;
	enum plan_type w_type;
	const int32_t *tokens, *positions; /* positions NULL: r % t */
	const void *wte, *wpe;             /* wpe may be NULL */
	void *y;
	const void *dy; /* backward */
	float *dwte, *dwpe;
};

/* Layer norm (mean, bias) and RMS norm (without). dgain and dbias may be NULL (frozen). */
struct backend_norm {
	int64_t rows, c;
	float eps;
	const void *x;
	const float *gain, *bias;
	void *y;
	float *mean, *rstd;
	const void *dy; /* backward */
	void *dx;
	float *dgain, *dbias;
	bool accumulate;
	struct backend_workspace ws;
};

struct backend_rope {
	int64_t rows, t, heads, kv_heads, head_size;
	void *qkv;
	const float *table;       /* [t, head_size]: cosines, then sines */
	const int32_t *positions; /* NULL: r % t */
	bool inverse;
};

struct backend_attention {
	int64_t b, t, heads, kv_heads, head_size;
	const void *qkv;
	const int32_t *starts; /* may be NULL */
	void *y;
	float *lse;
	const void *dy; /* backward */
	void *dqkv;     /* backward */
	struct backend_workspace ws;
};

/* In training (scale > 0): dx = gradient of x times scale, dw += (dw may be NULL). scale 0: losses
 * only. Label -1: loss, hit and gradient 0. smoothing as in softmax_xent. */
struct backend_classifier {
	int64_t rows, c, v, chunk;
	enum plan_type w_type;
	const void *x, *w;
	const int32_t *labels;
	float *row_loss, *row_hit;
	void *dx;
	float *dw;
	bool overwrite; /* dw is written instead of added to */
	float scale, smoothing;
	struct backend_workspace ws;
};

struct backend_batchnorm {
	int64_t rows, c;
	float eps;
	double keep, add;    /* running = keep * running + add * the batch's */
	bool train;          /* batch statistics; otherwise the running ones */
	bool update_running; /* with train: moves them */
	enum plan_activation act;
	const void *x;
	const float *gain, *bias;
	const void *residual; /* may be NULL */
	void *y;
	float *mean, *rstd, *running_mean, *running_var;
	const void *dy; /* backward; dx or dresidual may be dy */
	void *dx, *dresidual;
	float *dgain, *dbias;
	bool accumulate; /* dresidual */
	struct backend_workspace ws;
};

struct backend_pool {
	int64_t n, h, w, c, kernel, stride, pad;
	const void *x;
	void *y;
	uint8_t *which;
	const void *dy; /* backward */
	void *dx;
};

struct backend_bag {
	int64_t samples, lookups, d, table, features;
	const int32_t *bags; /* of this table: [samples, lookups], -1 = none */
	const float *weight;
	void *z; /* [samples, features, d]; column table + 1 is written (features 1, table -1: rows) */
	/* sparse_store */
	const void *dz;
	int32_t *ids; /* where this micro-batch's part begins */
	float *grads;
};

/* Of a table that is cut into pieces: z[:, table + 1] = the sum over pieces, in their order,
 * rounded once. */
struct backend_pieces {
	int64_t samples, d, table, features;
	const void *const *piece; /* [samples, d] each */
	int count;
	void *z; /* [samples, features, d] */
};

/* Sums by row of a table: for each distinct id of ids[samples * lookups] in ascending order, the
 * sum over its look-ups, in their order, of grads of the sample. */
struct backend_sparse {
	int64_t samples, lookups, d, table_rows;
	const int32_t *ids;
	const float *grads;
	int32_t *rows, *count; /* distinct rows; how many */
	float *sums;
	double *ret_square;
	struct backend_workspace ws;
};

/* Per row: row_loss = -log softmax(logits)[label] (smoothed), row_hit = 1 when the first largest
 * logit is the label. Label -1: both 0. When scale > 0 the logits become their own gradient times
 * scale (0 for ignored rows); scale 0 leaves them. */
struct backend_softmax_xent {
	int64_t rows, classes;
	void *logits;
	const int32_t *labels;
	float *row_loss, *row_hit;
	float scale, smoothing;
};

/* The same of [rows, own] logits of classes [first, first + own) of `classes`: first what this rank
 * says of each row (PLAN_OP_XENT_STATISTICS has its numbers), then the rest from what all say. */
struct backend_xent_shared {
	int64_t rows, own, first, classes, ranks;
	void *logits;
	const int32_t *labels;
	float *own_statistics;   /* [rows, PLAN_STATISTICS] */
	const float *statistics; /* [ranks, rows, PLAN_STATISTICS] */
	float *row_loss, *row_hit;
	float scale, smoothing;
};

/* y = x / (1-p) or 0 with probability p, a function of key and index. x and y may be equal. */
struct backend_dropout {
	int64_t count;
	float p;
	uint64_t key;
	struct plan_cut cut; /* says the index of each element */
	const void *x;
	void *y;
};

/* y in bf16 = one of x's two neighbours: the one further from 0 with the probability of how much of
 * the way x is, a function of key and index, so that the mean is x. NaN stays NaN; infinity too.
 * The first element is `begin` of those that cut takes from the whole. */
struct backend_round {
	int64_t count, begin;
	uint64_t key;
	struct plan_cut cut; /* says the index of each element */
	const float *x;
	void *y;
};

/* Per row: row_loss = mean over outputs of (y - target)^2; y becomes its gradient times scale when
 * scale > 0. A row whose first target is NaN is ignored. BCE (outputs 1): row_loss = log(1 + e^y) -
 * target y, row_hit = 1 when (y > 0) == (target > 1/2). */
struct backend_regress {
	int64_t rows, outputs;
	void *y;
	const float *targets;
	float *row_loss, *row_hit; /* row_hit: BCE only */
	float scale;
};

/* A range of the flat parameters with one decay. */
struct backend_segment {
	int64_t begin, end;
	int64_t weights; /* element in the low-precision flat range where begin goes; -1 = none */
	float decay;
};

/* g is multiplied by grad_scale first (clipping and unscaling). AdamW: decoupled decay, bias
 * corrections given as 1/(1-beta^step). SGD: decay is added to the gradient; m may be NULL without
 * momentum. Updated values are also rounded to nearest even into weights (act_type). Sparse: the
 * rows listed, segment_count 0. */
struct backend_update {
	const struct backend_segment *segments;
	int segment_count;
	float *w, *m, *v;
	const float *g;
	void *weights; /* base of the low-precision flat range, NULL = none */
	float grad_scale, learning_rate;
	float beta1, beta2, eps, correct1, correct2; /* adamw */
	float momentum;                              /* sgd */
	const int32_t *rows, *count;                 /* sparse */
	int64_t d;                                   /* sparse */
};

struct backend {
	const char *name; /* "cpu-avx512" */
	enum plan_type act_type;

	/* The host cannot address the device's memory. */
	bool apart;

	/* Device and memory. map gives zeroed memory, freed by close; once for each kind. memory_bytes
	 * is the peak of what was handed out, of every kind. enter is called by the engine's thread
	 * before each run of operations (thread count of the calling thread, its device). finish waits
	 * for all operations, and gives the first failure of the device, which stays. */
	int (*open)(int threads, struct backend_ctx **ret, struct err *err);
	void (*close)(struct backend_ctx *ctx);
	int (*map)(struct backend_ctx *ctx, enum backend_memory where, int64_t bytes, void **ret,
		struct err *err);
	int64_t (*memory_bytes)(const struct backend_ctx *ctx);
	void (*enter)(struct backend_ctx *ctx);
	int (*finish)(struct backend_ctx *ctx, struct err *err);
	/* Products whose operands are fp32 may round them to TF32 from now on: 10 bits of mantissa;
	 * sums, and all that is no product, stay fp32. INVALID_VALUE where the device cannot. */
	int (*allow_tf32)(struct backend_ctx *ctx, struct err *err);
	void (*prepare_thread)(void); /* for helper threads of the host (loader); may be NULL */
	/* How groups of ranks find the device's memory and its operations; NULL unless apart. */
	void (*group_device)(const struct backend_ctx *ctx, struct comm_device *ret);

	/* Between the host's memory and the device's, and within the device's, in the order of
	 * operations. What was put from BACKEND_HOST, ahead too, may change after put_wait, other
	 * memory at once; what was got is there at once. */
	void (*put)(struct backend_ctx *ctx, void *device, const void *host, int64_t bytes);
	void (*put_wait)(struct backend_ctx *ctx);
	void (*get)(struct backend_ctx *ctx, void *host, const void *device, int64_t bytes);
	void (*copy)(struct backend_ctx *ctx, void *to, const void *from, int64_t bytes);
	/* What will be needed comes from BACKEND_HOST beside the operations, to where none of them
	 * works. take_ahead copies it from there to its place, in their order: it waits for all that
	 * was put ahead, and what is put ahead later waits for it. */
	void (*put_ahead)(struct backend_ctx *ctx, void *device, const void *host, int64_t bytes);
	void (*take_ahead)(struct backend_ctx *ctx, void *to, const void *from, int64_t bytes);

	/* Operations that come again may be given to the device as one. replay does what was recorded
	 * last as this part (below BACKEND_PARTS), if that was under the same key; otherwise it does
	 * nothing and is false. Key 0 is like no other: what is recorded under it is never replayed, it
	 * only makes recording the next cheaper. Between record and recorded the caller gives the
	 * operations, without put, get, finish or `ret`. record false: they run as ever, and recorded
	 * is not called. recorded false: nothing of them was done, and the caller gives them again. */
	bool (*replay)(struct backend_ctx *ctx, int part, uint64_t key);
	bool (*record)(struct backend_ctx *ctx, int part);
	bool (*recorded)(struct backend_ctx *ctx, uint64_t key);

	/* Conversions between fp32 and act_type, nearest even, in the host's memory: on any thread. */
	void (*from_f32)(int64_t count, const float *x, void *y);
	void (*to_f32)(int64_t count, const void *x, float *y);
	/* The first of them on the device. */
	void (*cast)(int64_t count, const float *x, void *y);

	/* Products. */
	void (*linear)(const struct backend_linear *d);
	void (*linear_backward_data)(const struct backend_linear_backward_data *d);
	void (*linear_backward_weight)(const struct backend_linear_backward_weight *d);
	void (*conv)(const struct backend_conv *d);
	void (*conv_backward_data)(const struct backend_conv *d);
	void (*conv_backward_weight)(const struct backend_conv *d);
	void (*classifier)(const struct backend_classifier *d);

	/* Layers. */
	void (*embedding)(const struct backend_embedding *d);
	void (*embedding_backward)(const struct backend_embedding *d);
	void (*layernorm)(const struct backend_norm *d);
	void (*layernorm_backward)(const struct backend_norm *d);
	void (*rmsnorm)(const struct backend_norm *d);
	void (*rmsnorm_backward)(const struct backend_norm *d);
	void (*batchnorm)(const struct backend_batchnorm *d);
	void (*batchnorm_backward)(const struct backend_batchnorm *d);
	void (*rope)(const struct backend_rope *d);
	/* table[p, i] = cos, table[p, half + i] = sin of p * theta^(-2i/head_size), in double first */
	void (*rope_table)(int64_t t, int64_t head_size, double theta, float *table);
	void (*attention)(const struct backend_attention *d);
	void (*attention_backward)(const struct backend_attention *d);
	void (*gelu)(int64_t count, const void *x, void *y);
	void (*swiglu)(int64_t rows, int64_t inner, const void *gate_up, void *y);
	void (*swiglu_backward)(
		int64_t rows, int64_t inner, const void *gate_up, const void *dy, void *d_gate_up);
	void (*relu_backward)(int64_t count, const void *y, const void *dy, void *dx);
	void (*add)(int64_t count, const void *a, void *y); /* y += a */
	void (*dropout)(const struct backend_dropout *d);   /* backward: the same, with the same key */
	void (*maxpool)(const struct backend_pool *d);
	void (*maxpool_backward)(const struct backend_pool *d);
	void (*avgpool)(int64_t n, int64_t hw, int64_t c, const void *x, void *y);
	void (*avgpool_backward)(int64_t n, int64_t hw, int64_t c, const void *dy, void *dx);
	void (*embedding_bag)(const struct backend_bag *d);
	void (*interaction)(int64_t samples, int64_t features, int64_t d, const void *z, void *y);
	void (*interaction_backward)(
		int64_t samples, int64_t features, int64_t d, const void *z, const void *dy, void *dz);
	void (*sparse_store)(const struct backend_bag *d);
	/* y = id - first where that is in [0, rows), otherwise -1 */
	void (*piece_ids)(int64_t count, int64_t first, int64_t rows, const int32_t *ids, int32_t *y);
	void (*piece_gather)(const struct backend_pieces *d);
	/* y [samples, d] = z[:, table + 1] */
	void (*piece_spread)(
		int64_t samples, int64_t d, int64_t table, int64_t features, const void *z, void *y);

	/* Losses. */
	void (*softmax_xent)(const struct backend_softmax_xent *d);
	void (*xent_statistics)(const struct backend_xent_shared *d);
	void (*xent_shared)(const struct backend_xent_shared *d);
	void (*mse)(const struct backend_regress *d);
	void (*bce)(const struct backend_regress *d);

	/* Reductions in double, in a fixed order whatever the threads. partial: PLAN_ROW_BLOCKS, of
	 * the device; sum has few numbers and needs none. */
	void (*sum)(int64_t count, const float *x, double *ret);
	void (*square_sum)(int64_t count, const float *x, double *partial, double *ret);

	/* Optimizer. */
	void (*fill)(int64_t count, float value, float *y);
	void (*sparse_reduce)(const struct backend_sparse *d); /* *ret_square = the sum of squares */
	void (*adamw)(const struct backend_update *d);
	void (*sgd)(const struct backend_update *d);
	void (*sparse_adamw)(const struct backend_update *d);
	void (*sparse_sgd)(const struct backend_update *d);
	void (*add_f32)(int64_t count, const float *x, float *y);              /* y += x */
	void (*average)(int64_t count, float decay, const float *x, float *y); /* y += (1-decay)(x-y) */
	void (*round_random)(const struct backend_round *d); /* other types than bf16: as cast */
};

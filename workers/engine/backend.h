/* SPDX-License-Identifier: Apache-2.0
 * What a device must be able to do. One const struct of mandatory functions a backend; the engine
 * calls them with pointers into the memory that `map` gave, from its owner's thread only. Unless
 * said, a function cannot fail, overwrites its output, reads row-major fp32, and gives the same
 * bits for the same input and thread count. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "workers/plan/plan.h"

#include <stdbool.h>
#include <stdint.h>

struct backend_ctx;    /* one device in use */
struct backend_linear; /* a prepared product */
struct backend_conv;   /* a prepared convolution */

/* y[m,n] = act(x[m,k] w + b) + residual. w is [k,n], or [n,k] when transposed. b and residual may
 * be NULL. */
struct backend_linear_desc {
	int64_t m, k, n;
	bool transposed;
	enum plan_activation act;
	const float *x, *w, *b, *residual;
	float *y;
	void *workspace;
	int64_t workspace_bytes;
};

/* The backward products of the same layer: dx = dy w', dw += x' dy, db += column sums of dy. */
struct backend_linear_backward {
	int64_t m, k, n;
	bool transposed;
	const float *x, *w, *dy;
	float *dx, *dw, *db; /* db may be NULL */
};

enum backend_conv_kind {
	BACKEND_CONV,                 /* y = relu(x * w + b) */
	BACKEND_CONV_BACKWARD_DATA,   /* dx from dy and w */
	BACKEND_CONV_BACKWARD_WEIGHT, /* dw += , db += from x and dy */
};

/* 3x3, stride 1, padding 1. x [n,h,w,in], y [n,h,w,out]; weights [out,in,3,3]. The members hold
 * gradients where the kind asks for them. */
struct backend_conv_desc {
	enum backend_conv_kind kind;
	int64_t n, h, w, in, out;
	float *x, *y, *weight, *bias;
	void *workspace;
	int64_t workspace_bytes;
};

/* qkv [b*t, 3c] (queries, keys, values; heads side by side), y [b*t, c], lse [b, heads, t]: log of
 * the sum of exponentials. Causal, scaled by 1/sqrt(c/heads). workspace: b*t*c floats forward, and
 * 2*b*t*c + b*t*heads backward. */
struct backend_attention {
	int64_t b, t, c, heads;
	const float *qkv;
	float *y, *lse;
	const float *dy; /* backward */
	float *dqkv;     /* backward */
	float *workspace;
};

/* y = (x - mean) * rstd * gain + bias per row. Backward: dx (added to when accumulate), dgain and
 * dbias (always added to); workspace: 2 * PLAN_ROW_BLOCKS * c floats. */
struct backend_layernorm {
	int64_t rows, c;
	const float *x, *gain, *bias;
	float *y, *mean, *rstd;
	const float *dy;
	float *dx, *dgain, *dbias, *workspace;
	bool accumulate;
};

/* y[r] = wte[tokens[r]] + wpe[r % t]. Backward adds dy into dwte and dwpe, rows in order. */
struct backend_embedding {
	int64_t rows, t, c;
	const int32_t *tokens;
	const float *wte, *wpe;
	float *y;
	const float *dy;
	float *dwte, *dwpe;
};

/* Per row: row_loss = -log softmax(logits)[label] (smoothed), row_hit = 1 when the first largest
 * logit is the label. Label -1: both 0. When scale > 0 the logits become their own gradient times
 * scale (0 for ignored rows); scale 0 leaves them. */
struct backend_softmax_xent {
	int64_t rows, classes;
	float *logits;
	const int32_t *labels;
	float *row_loss, *row_hit;
	float scale, smoothing;
};

/* Per row: row_loss = mean over outputs of (y - target)^2; y becomes its gradient times scale when
 * scale > 0. A row whose first target is NaN is ignored. */
struct backend_mse {
	int64_t rows, outputs;
	float *y;
	const float *targets;
	float *row_loss;
	float scale;
};

/* A range of the flat parameters with one decay. */
struct backend_segment {
	int64_t begin, end;
	float decay;
};

/* g is multiplied by grad_scale first (clipping). AdamW: decoupled decay, bias corrections given
 * as 1/(1-beta^step). SGD: decay is added to the gradient; m may be NULL without momentum. */
struct backend_update {
	const struct backend_segment *segments;
	int segment_count;
	float *w, *m, *v;
	const float *g;
	float grad_scale, learning_rate;
	float beta1, beta2, eps, correct1, correct2; /* adamw */
	float momentum;                              /* sgd */
};

struct backend {
	const char *name;

	/* Device and memory. map gives the one allocation, zeroed and host-addressable, freed by close.
	 * memory_bytes is the peak of what was handed out, of every kind. enter is called by the
	 * engine's thread before each run of operations (thread count of the calling thread). */
	int (*open)(int threads, struct backend_ctx **ret, struct err *err);
	void (*close)(struct backend_ctx *ctx);
	int (*map)(struct backend_ctx *ctx, int64_t bytes, void **ret, struct err *err);
	int64_t (*memory_bytes)(const struct backend_ctx *ctx);
	void (*enter)(struct backend_ctx *ctx);

	/* Products. Creating may fail (INTERNAL: the library refused; NO_MEMORY); running may not. The
	 * descriptor's pointers stay bound. */
	int (*linear_create)(struct backend_ctx *ctx, const struct backend_linear_desc *d,
		struct backend_linear **ret, struct err *err);
	int (*linear_run)(struct backend_linear *l, struct err *err);
	void (*linear_destroy)(struct backend_linear *l);
	int (*linear_backward_data)(const struct backend_linear_backward *d, struct err *err);
	int (*linear_backward_weight)(const struct backend_linear_backward *d, struct err *err);
	int (*conv_create)(struct backend_ctx *ctx, const struct backend_conv_desc *d,
		struct backend_conv **ret, struct err *err);
	int (*conv_run)(struct backend_conv *c, struct err *err);
	void (*conv_destroy)(struct backend_conv *c);

	/* Layers. */
	void (*embedding)(const struct backend_embedding *d);
	void (*embedding_backward)(const struct backend_embedding *d);
	void (*layernorm)(const struct backend_layernorm *d);
	void (*layernorm_backward)(const struct backend_layernorm *d);
	void (*attention)(const struct backend_attention *d);
	void (*attention_backward)(const struct backend_attention *d);
	void (*gelu)(int64_t count, const float *x, float *y);
	void (*gelu_backward)(int64_t count, const float *x, const float *dy, float *dx);
	void (*relu_backward)(int64_t count, const float *y, const float *dy, float *dx);
	void (*add)(int64_t count, const float *a, float *y); /* y += a */
	/* 2x2, stride 2, odd edges dropped; which is 0..3, the first largest. x [n,h,w,c]. */
	void (*maxpool)(
		int64_t n, int64_t h, int64_t w, int64_t c, const float *x, float *y, uint8_t *which);
	void (*maxpool_backward)(int64_t n, int64_t h, int64_t w, int64_t c, const float *dy,
		const uint8_t *which, float *dx);
	/* y = x / (1-p) or 0 with probability p, a function of (key, index). Backward is the same with
	 * the same key. x and y may be equal. */
	void (*dropout)(int64_t count, float p, uint64_t key, const float *x, float *y);

	/* Losses. */
	void (*softmax_xent)(const struct backend_softmax_xent *d);
	void (*mse)(const struct backend_mse *d);

	/* Reductions in double, in a fixed order whatever the threads. partial: PLAN_ROW_BLOCKS. */
	double (*sum)(int64_t count, const float *x, double *partial);
	double (*square_sum)(int64_t count, const float *x, double *partial);

	/* Optimizer. */
	void (*fill)(int64_t count, float value, float *y);
	void (*adamw)(const struct backend_update *d);
	void (*sgd)(const struct backend_update *d);
};

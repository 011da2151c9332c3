/* SPDX-License-Identifier: Apache-2.0
 * What the files of workers/plan share: the builder that families write into. Nobody else includes
 * this. The first failure sticks in the builder; later calls do nothing, so families check once. */
#pragma once

#include "workers/plan/plan.h"

struct plan_build {
	struct plan *p;
	const struct job_spec *spec;
	struct err *err;
	int code;
	int op_cap, buffer_cap, param_cap;
	enum plan_phase phase;  /* of the next operations */
	struct plan_op sink_op; /* written to after a failure */
};

/* Records the first failure. */
void plan_build_fail(struct plan_build *b, int code, const char *param, const char *fmt, ...)
	printf_like(4, 5);

/* Bytes of a and b and ... elements of 4 bytes; fails the builder when it overflows. */
int64_t plan_build_floats(struct plan_build *b, int64_t x, int64_t y, int64_t z);

/* A buffer whose lifetime follows from the operations that name it. */
int plan_build_buffer(struct plan_build *b, enum plan_buffer_kind kind, int64_t bytes,
	const char *fmt, ...) printf_like(4, 5);
/* A buffer that lives through the whole step. */
int plan_build_persistent(struct plan_build *b, enum plan_buffer_kind kind, int64_t bytes,
	const char *fmt, ...) printf_like(4, 5);

/* A parameter with its gradient and optimizer buffers; returns its index in params. */
struct plan_build_param {
	enum plan_init init;
	double init_scale;
	int rank;
	int64_t shape[PLAN_RANK_MAX];
};
int plan_build_param(struct plan_build *b, struct plan_build_param def, const char *fmt, ...)
	printf_like(3, 4);
int plan_build_weight(const struct plan_build *b, int param);
int plan_build_gradient(const struct plan_build *b, int param);

/* Appends an operation in the builder's phase; the caller fills the flags. operands and dims end
 * at the given counts. workspace_bytes 0 = none. Never NULL. */
struct plan_op *plan_build_op(struct plan_build *b, enum plan_op_kind kind, const char *name,
	const int *operands, int operand_count, const int64_t *dims, int dim_count,
	int64_t workspace_bytes);

#define PLAN_OPERANDS(...) (const int[]){ __VA_ARGS__ }, (int)ARRAY_LEN(((int[]){ __VA_ARGS__ }))
#define PLAN_DIMS(...) \
	(const int64_t[]){ __VA_ARGS__ }, (int)ARRAY_LEN(((int64_t[]){ __VA_ARGS__ }))

/* x[M,K] -> act(x w + b) + residual, and its backward. Dense layers of every family. */
struct plan_dense {
	const char *name;
	int weight, bias; /* parameters; bias -1 = none */
	int64_t m, k, n;
	bool transposed;
	enum plan_activation act;
};
void plan_build_dense(struct plan_build *b, const struct plan_dense *d, int x, int y, int residual);
void plan_build_dense_backward(
	struct plan_build *b, const struct plan_dense *d, int x, int dy, int dx);

/* Families. */
void plan_family_mlp(struct plan_build *b);
void plan_family_cnn(struct plan_build *b);
void plan_family_gpt2(struct plan_build *b);

/* Hidden layers with ReLU and dropout, then the output layer and the loss; forward only.
 * plan_head_backward emits the rest and returns the buffer of dx (-1 unless want_dx). */
enum { PLAN_HEAD_LAYERS_MAX = SPEC_LAYERS_MAX + 1 };
struct plan_head {
	int layers;
	struct plan_dense dense[PLAN_HEAD_LAYERS_MAX];
	char name[PLAN_HEAD_LAYERS_MAX][PLAN_NAME_MAX];
	int x[PLAN_HEAD_LAYERS_MAX + 1]; /* input of each layer; the last is the output */
};
void plan_head_forward(
	struct plan_build *b, struct plan_head *h, const char *prefix, int x, int64_t features);
int plan_head_backward(struct plan_build *b, struct plan_head *h, bool want_dx);

/* Assigns offsets: persistent buffers first, then the others by lifetime. */
int plan_layout(struct plan *p, struct err *err) must_check;

/* Sets flops and bytes of one operation. */
void plan_cost(const struct plan *p, struct plan_op *op);

/* SPDX-License-Identifier: Apache-2.0
 * Executes the plan's operations: one row of a table for each kind. Called by engine_step.c. */
#include "workers/engine/engine_private.h"
#include "workers/engine/rng.h"

#include <math.h>
#include <stdlib.h>

void *engine_buffer(const struct engine *e, int buffer)
{
	return buffer < 0 ? NULL : e->arena + e->plan->buffers[buffer].offset;
}

static float *operand(const struct engine *e, const struct plan_op *op, int i)
{
	return engine_buffer(e, op->operand[i]);
}

static float *workspace(const struct engine *e, const struct plan_op *op)
{
	return engine_buffer(e, op->workspace);
}

static int64_t workspace_bytes(const struct engine *e, const struct plan_op *op)
{
	return op->workspace < 0 ? 0 : e->plan->buffers[op->workspace].bytes;
}

typedef int (*exec_fn)(struct engine *e, int index, const struct plan_op *op, struct err *err);

static int embedding(struct engine *e, int index, const struct plan_op *op, struct err *err)
{
	e->backend->embedding(&(struct backend_embedding){ .rows = op->dim[0],
		.t = op->dim[1],
		.c = op->dim[2],
		.tokens = engine_buffer(e, op->operand[0]),
		.wte = operand(e, op, 1),
		.wpe = operand(e, op, 2),
		.y = operand(e, op, 3) });
	return 0;
}

static int embedding_backward(
	struct engine *e, int index, const struct plan_op *op, struct err *err)
{
	e->backend->embedding_backward(&(struct backend_embedding){ .rows = op->dim[0],
		.t = op->dim[1],
		.c = op->dim[2],
		.tokens = engine_buffer(e, op->operand[0]),
		.dy = operand(e, op, 1),
		.dwte = operand(e, op, 2),
		.dwpe = operand(e, op, 3) });
	return 0;
}

static int layernorm(struct engine *e, int index, const struct plan_op *op, struct err *err)
{
	e->backend->layernorm(&(struct backend_layernorm){ .rows = op->dim[0],
		.c = op->dim[1],
		.x = operand(e, op, 0),
		.gain = operand(e, op, 1),
		.bias = operand(e, op, 2),
		.y = operand(e, op, 3),
		.mean = operand(e, op, 4),
		.rstd = operand(e, op, 5) });
	return 0;
}

static int layernorm_backward(
	struct engine *e, int index, const struct plan_op *op, struct err *err)
{
	e->backend->layernorm_backward(&(struct backend_layernorm){ .rows = op->dim[0],
		.c = op->dim[1],
		.x = operand(e, op, 0),
		.gain = operand(e, op, 1),
		.mean = operand(e, op, 2),
		.rstd = operand(e, op, 3),
		.dy = operand(e, op, 4),
		.dx = operand(e, op, 5),
		.dgain = operand(e, op, 6),
		.dbias = operand(e, op, 7),
		.workspace = workspace(e, op),
		.accumulate = op->accumulate });
	return 0;
}

static int linear(struct engine *e, int index, const struct plan_op *op, struct err *err)
{
	return e->backend->linear_run(e->linear[index], err);
}

static int linear_backward_data(
	struct engine *e, int index, const struct plan_op *op, struct err *err)
{
	return e->backend->linear_backward_data(&(struct backend_linear_backward){ .m = op->dim[0],
												.k = op->dim[1],
												.n = op->dim[2],
												.transposed = op->transposed,
												.dy = operand(e, op, 0),
												.w = operand(e, op, 1),
												.dx = operand(e, op, 2) },
		err);
}

static int linear_backward_weight(
	struct engine *e, int index, const struct plan_op *op, struct err *err)
{
	return e->backend->linear_backward_weight(&(struct backend_linear_backward){ .m = op->dim[0],
												  .k = op->dim[1],
												  .n = op->dim[2],
												  .transposed = op->transposed,
												  .x = operand(e, op, 0),
												  .dy = operand(e, op, 1),
												  .dw = operand(e, op, 2),
												  .db = operand(e, op, 3) },
		err);
}

static int gelu(struct engine *e, int index, const struct plan_op *op, struct err *err)
{
	e->backend->gelu(op->dim[0], operand(e, op, 0), operand(e, op, 1));
	return 0;
}

static int gelu_backward(struct engine *e, int index, const struct plan_op *op, struct err *err)
{
	e->backend->gelu_backward(op->dim[0], operand(e, op, 0), operand(e, op, 1), operand(e, op, 2));
	return 0;
}

static int relu_backward(struct engine *e, int index, const struct plan_op *op, struct err *err)
{
	e->backend->relu_backward(op->dim[0], operand(e, op, 0), operand(e, op, 1), operand(e, op, 2));
	return 0;
}

static int add(struct engine *e, int index, const struct plan_op *op, struct err *err)
{
	e->backend->add(op->dim[0], operand(e, op, 0), operand(e, op, 1));
	return 0;
}

static int attention(struct engine *e, int index, const struct plan_op *op, struct err *err)
{
	e->backend->attention(&(struct backend_attention){ .b = op->dim[0],
		.t = op->dim[1],
		.c = op->dim[2],
		.heads = op->dim[3],
		.qkv = operand(e, op, 0),
		.y = operand(e, op, 1),
		.lse = operand(e, op, 2),
		.workspace = workspace(e, op) });
	return 0;
}

static int attention_backward(
	struct engine *e, int index, const struct plan_op *op, struct err *err)
{
	e->backend->attention_backward(&(struct backend_attention){ .b = op->dim[0],
		.t = op->dim[1],
		.c = op->dim[2],
		.heads = op->dim[3],
		.qkv = operand(e, op, 0),
		.y = operand(e, op, 1),
		.lse = operand(e, op, 2),
		.dy = operand(e, op, 3),
		.dqkv = operand(e, op, 4),
		.workspace = workspace(e, op) });
	return 0;
}

static int conv(struct engine *e, int index, const struct plan_op *op, struct err *err)
{
	return e->backend->conv_run(e->conv[index], err);
}

static int maxpool(struct engine *e, int index, const struct plan_op *op, struct err *err)
{
	e->backend->maxpool(op->dim[0], op->dim[1], op->dim[2], op->dim[3], operand(e, op, 0),
		operand(e, op, 1), engine_buffer(e, op->operand[2]));
	return 0;
}

static int maxpool_backward(struct engine *e, int index, const struct plan_op *op, struct err *err)
{
	e->backend->maxpool_backward(op->dim[0], op->dim[1], op->dim[2], op->dim[3], operand(e, op, 0),
		engine_buffer(e, op->operand[1]), operand(e, op, 2));
	return 0;
}

/* Forward and backward are one function of the same key. */
static int dropout(struct engine *e, int index, const struct plan_op *op, struct err *err)
{
	uint64_t batch = rng_key((uint64_t)e->state.seed, RNG_DROPOUT, (uint64_t)e->micro_position);
	e->backend->dropout(op->dim[0], e->train ? (float)e->spec->hyper.dropout : 0.0f,
		rng_mix(batch + (uint64_t)op->dim[1]), operand(e, op, 0), operand(e, op, 1));
	return 0;
}

static int softmax_xent(struct engine *e, int index, const struct plan_op *op, struct err *err)
{
	e->backend->softmax_xent(&(struct backend_softmax_xent){ .rows = op->dim[0],
		.classes = op->dim[1],
		.logits = operand(e, op, 0),
		.labels = engine_buffer(e, op->operand[1]),
		.row_loss = operand(e, op, 2),
		.row_hit = operand(e, op, 3),
		.scale = e->loss_scale,
		.smoothing = e->train ? (float)e->spec->hyper.label_smoothing : 0.0f });
	return 0;
}

static int mse(struct engine *e, int index, const struct plan_op *op, struct err *err)
{
	e->backend->mse(&(struct backend_mse){ .rows = op->dim[0],
		.outputs = op->dim[1],
		.y = operand(e, op, 0),
		.targets = operand(e, op, 1),
		.row_loss = operand(e, op, 2),
		.scale = e->loss_scale });
	return 0;
}

static int gradient_norm(struct engine *e, int index, const struct plan_op *op, struct err *err)
{
	e->grad_square =
		e->backend->square_sum(op->dim[0], operand(e, op, 0), engine_buffer(e, op->workspace));
	return 0;
}

static int adamw(struct engine *e, int index, const struct plan_op *op, struct err *err)
{
	const struct spec_hyper *h = &e->spec->hyper;
	double t = (double)(e->state.step + 1);
	e->backend->adamw(&(struct backend_update){ .segments = e->segments,
		.segment_count = e->segment_count,
		.w = operand(e, op, 0),
		.g = operand(e, op, 1),
		.m = operand(e, op, 2),
		.v = operand(e, op, 3),
		.grad_scale = e->grad_scale,
		.learning_rate = e->learning_rate,
		.beta1 = (float)h->beta1,
		.beta2 = (float)h->beta2,
		.eps = (float)h->eps,
		.correct1 = (float)(1.0 / (1.0 - pow(h->beta1, t))),
		.correct2 = (float)(1.0 / (1.0 - pow(h->beta2, t))) });
	return 0;
}

static int sgd(struct engine *e, int index, const struct plan_op *op, struct err *err)
{
	e->backend->sgd(&(struct backend_update){ .segments = e->segments,
		.segment_count = e->segment_count,
		.w = operand(e, op, 0),
		.g = operand(e, op, 1),
		.m = operand(e, op, 2),
		.grad_scale = e->grad_scale,
		.learning_rate = e->learning_rate,
		.momentum = (float)e->spec->hyper.momentum });
	return 0;
}

static const exec_fn exec_table[PLAN_OP_COUNT] = {
	[PLAN_OP_EMBEDDING] = embedding,
	[PLAN_OP_EMBEDDING_BACKWARD] = embedding_backward,
	[PLAN_OP_LAYERNORM] = layernorm,
	[PLAN_OP_LAYERNORM_BACKWARD] = layernorm_backward,
	[PLAN_OP_LINEAR] = linear,
	[PLAN_OP_LINEAR_BACKWARD_DATA] = linear_backward_data,
	[PLAN_OP_LINEAR_BACKWARD_WEIGHT] = linear_backward_weight,
	[PLAN_OP_GELU] = gelu,
	[PLAN_OP_GELU_BACKWARD] = gelu_backward,
	[PLAN_OP_RELU_BACKWARD] = relu_backward,
	[PLAN_OP_ADD] = add,
	[PLAN_OP_ATTENTION] = attention,
	[PLAN_OP_ATTENTION_BACKWARD] = attention_backward,
	[PLAN_OP_CONV] = conv,
	[PLAN_OP_CONV_BACKWARD_DATA] = conv,
	[PLAN_OP_CONV_BACKWARD_WEIGHT] = conv,
	[PLAN_OP_MAXPOOL] = maxpool,
	[PLAN_OP_MAXPOOL_BACKWARD] = maxpool_backward,
	[PLAN_OP_DROPOUT] = dropout,
	[PLAN_OP_DROPOUT_BACKWARD] = dropout,
	[PLAN_OP_SOFTMAX_XENT] = softmax_xent,
	[PLAN_OP_MSE] = mse,
	[PLAN_OP_GRADIENT_NORM] = gradient_norm,
	[PLAN_OP_ADAMW] = adamw,
	[PLAN_OP_SGD] = sgd,
};

int engine_exec(struct engine *e, int begin, int end, struct err *err)
{
	for (int i = begin; i < end; i++) {
		const struct plan_op *op = &e->plan->ops[i];
		int rc = exec_table[op->kind](e, i, op, err);
		if (rc)
			return rc;
	}
	return 0;
}

static int prepare_linear(struct engine *e, int i, struct err *err)
{
	const struct plan_op *op = &e->plan->ops[i];
	struct backend_linear_desc d = { .m = op->dim[0],
		.k = op->dim[1],
		.n = op->dim[2],
		.transposed = op->transposed,
		.act = op->act,
		.x = operand(e, op, 0),
		.w = operand(e, op, 1),
		.b = operand(e, op, 2),
		.y = operand(e, op, 3),
		.residual = operand(e, op, 4),
		.workspace = workspace(e, op),
		.workspace_bytes = workspace_bytes(e, op) };
	return e->backend->linear_create(e->ctx, &d, &e->linear[i], err);
}

static int prepare_conv(struct engine *e, int i, struct err *err)
{
	const struct plan_op *op = &e->plan->ops[i];
	struct backend_conv_desc d = { .n = op->dim[0],
		.h = op->dim[1],
		.w = op->dim[2],
		.in = op->dim[3],
		.out = op->dim[4],
		.workspace = workspace(e, op),
		.workspace_bytes = workspace_bytes(e, op) };
	if (op->kind == PLAN_OP_CONV_BACKWARD_DATA) {
		d.kind = BACKEND_CONV_BACKWARD_DATA;
		d.y = operand(e, op, 0);
		d.weight = operand(e, op, 1);
		d.x = operand(e, op, 2);
		return e->backend->conv_create(e->ctx, &d, &e->conv[i], err);
	}
	bool forward = op->kind == PLAN_OP_CONV;
	d.kind = forward ? BACKEND_CONV : BACKEND_CONV_BACKWARD_WEIGHT;
	d.x = operand(e, op, 0);
	d.y = operand(e, op, forward ? 3 : 1);
	d.weight = operand(e, op, forward ? 1 : 2);
	d.bias = operand(e, op, forward ? 2 : 3);
	return e->backend->conv_create(e->ctx, &d, &e->conv[i], err);
}

int engine_exec_prepare(struct engine *e, struct err *err)
{
	size_t n = (size_t)e->plan->op_count;
	e->linear = calloc(n, sizeof(struct backend_linear *));
	e->conv = calloc(n, sizeof(struct backend_conv *));
	if (!e->linear || !e->conv)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory to prepare the operations");
	int rc = 0;
	for (int i = 0; i < e->plan->op_count && !rc; i++) {
		switch (e->plan->ops[i].kind) {
		case PLAN_OP_LINEAR: rc = prepare_linear(e, i, err); break;
		case PLAN_OP_CONV:
		case PLAN_OP_CONV_BACKWARD_DATA:
		case PLAN_OP_CONV_BACKWARD_WEIGHT: rc = prepare_conv(e, i, err); break;
		default: break;
		}
	}
	return rc;
}

void engine_exec_finish(struct engine *e)
{
	for (int i = 0; e->linear && i < e->plan->op_count; i++)
		e->backend->linear_destroy(e->linear[i]);
	for (int i = 0; e->conv && i < e->plan->op_count; i++)
		e->backend->conv_destroy(e->conv[i]);
	free(e->linear);
	free(e->conv);
}

/* SPDX-License-Identifier: Apache-2.0
 * Executes the plan's operations: a row of a table for each kind, a function that names what
 * plan_op.h lists by position. Here: language, dense layers, losses. Called by engine_step.c. */
#include "workers/engine/engine_private.h"
#include "workers/engine/rng.h"

#include <time.h>

void *engine_exec_operand(const struct engine *e, const struct plan_op *op, int i)
{
	if (op->operand[i] < 0)
		return NULL;
	const struct plan_buffer *b = &e->plan->buffers[op->operand[i]];
	return (char *)engine_buffer(e, op->operand[i]) + op->shift[i] * plan_type_bytes(b->type);
}

enum plan_type engine_exec_type(const struct engine *e, const struct plan_op *op, int i)
{
	return e->plan->buffers[op->operand[i]].type;
}

struct backend_workspace engine_exec_workspace(const struct engine *e, const struct plan_op *op)
{
	if (op->workspace < 0)
		return (struct backend_workspace){ 0 };
	return (struct backend_workspace){ engine_buffer(e, op->workspace),
		e->plan->buffers[op->workspace].bytes };
}

/* With ZeRO 2 and 3 each micro-batch makes its gradients anew. */
static bool overwrites_now(const struct engine *e, const struct plan_op *op)
{
	return op->overwrites && (e->micro == 0 || e->plan->mesh.zero >= 2);
}

#define OPERAND(i) engine_exec_operand(e, op, i)

static void cast(struct engine *e, const struct plan_op *op)
{
	e->backend->cast(op->dim[0], OPERAND(0), OPERAND(1));
}

static void embedding(struct engine *e, const struct plan_op *op)
{
	e->backend->embedding(&(struct backend_embedding){ .rows = op->dim[0],
		.t = op->dim[1],
		.c = op->dim[2],
		.v = op->dim[3],
		.first = op->dim[4],
		.w_type = engine_exec_type(e, op, 1),
		.tokens = OPERAND(0),
		.wte = OPERAND(1),
		.wpe = OPERAND(2),
		.positions = OPERAND(3),
		.y = OPERAND(4) });
}

static void embedding_backward(struct engine *e, const struct plan_op *op)
{
	e->backend->embedding_backward(&(struct backend_embedding){ .rows = op->dim[0],
		.t = op->dim[1],
		.c = op->dim[2],
		.v = op->dim[3],
		.first = op->dim[4],
		.w_type = e->plan->type,
		.tokens = OPERAND(0),
		.dy = OPERAND(1),
		.dwte = OPERAND(2),
		.dwpe = OPERAND(3),
		.positions = OPERAND(4) });
}

static void layernorm(struct engine *e, const struct plan_op *op)
{
	e->backend->layernorm(&(struct backend_norm){ .rows = op->dim[0],
		.c = op->dim[1],
		.eps = (float)op->scalar,
		.x = OPERAND(0),
		.gain = OPERAND(1),
		.bias = OPERAND(2),
		.y = OPERAND(3),
		.mean = OPERAND(4),
		.rstd = OPERAND(5) });
}

static void layernorm_backward(struct engine *e, const struct plan_op *op)
{
	e->backend->layernorm_backward(&(struct backend_norm){ .rows = op->dim[0],
		.c = op->dim[1],
		.eps = (float)op->scalar,
		.x = OPERAND(0),
		.gain = OPERAND(1),
		.mean = OPERAND(2),
		.rstd = OPERAND(3),
		.dy = OPERAND(4),
		.dx = OPERAND(5),
		.dgain = OPERAND(6),
		.dbias = OPERAND(7),
		.accumulate = op->accumulate,
		.ws = engine_exec_workspace(e, op) });
}

static void rmsnorm(struct engine *e, const struct plan_op *op)
{
	e->backend->rmsnorm(&(struct backend_norm){ .rows = op->dim[0],
		.c = op->dim[1],
		.eps = (float)op->scalar,
		.x = OPERAND(0),
		.gain = OPERAND(1),
		.y = OPERAND(2),
		.rstd = OPERAND(3) });
}

static void rmsnorm_backward(struct engine *e, const struct plan_op *op)
{
	e->backend->rmsnorm_backward(&(struct backend_norm){ .rows = op->dim[0],
		.c = op->dim[1],
		.eps = (float)op->scalar,
		.x = OPERAND(0),
		.gain = OPERAND(1),
		.rstd = OPERAND(2),
		.dy = OPERAND(3),
		.dx = OPERAND(4),
		.dgain = OPERAND(5),
		.accumulate = op->accumulate,
		.ws = engine_exec_workspace(e, op) });
}

static void rope(struct engine *e, const struct plan_op *op)
{
	e->backend->rope(&(struct backend_rope){ .rows = op->dim[0],
		.t = op->dim[1],
		.heads = op->dim[2],
		.kv_heads = op->dim[3],
		.head_size = op->dim[4],
		.qkv = OPERAND(0),
		.table = OPERAND(1),
		.positions = OPERAND(2),
		.inverse = op->inverse });
}

static void attention(struct engine *e, const struct plan_op *op)
{
	e->backend->attention(&(struct backend_attention){ .b = op->dim[0],
		.t = op->dim[1],
		.heads = op->dim[2],
		.kv_heads = op->dim[3],
		.head_size = op->dim[4],
		.qkv = OPERAND(0),
		.y = OPERAND(1),
		.lse = OPERAND(2),
		.starts = OPERAND(3),
		.ws = engine_exec_workspace(e, op) });
}

static void attention_backward(struct engine *e, const struct plan_op *op)
{
	e->backend->attention_backward(&(struct backend_attention){ .b = op->dim[0],
		.t = op->dim[1],
		.heads = op->dim[2],
		.kv_heads = op->dim[3],
		.head_size = op->dim[4],
		.qkv = OPERAND(0),
		.y = OPERAND(1),
		.lse = OPERAND(2),
		.dy = OPERAND(3),
		.dqkv = OPERAND(4),
		.starts = OPERAND(5),
		.ws = engine_exec_workspace(e, op) });
}

static void swiglu(struct engine *e, const struct plan_op *op)
{
	e->backend->swiglu(op->dim[0], op->dim[1], OPERAND(0), OPERAND(1));
}

static void swiglu_backward(struct engine *e, const struct plan_op *op)
{
	e->backend->swiglu_backward(op->dim[0], op->dim[1], OPERAND(0), OPERAND(1), OPERAND(2));
}

static float smoothing(const struct engine *e)
{
	return e->train ? (float)e->spec->hyper.label_smoothing : 0.0f;
}

static void classifier(struct engine *e, const struct plan_op *op)
{
	e->backend->classifier(&(struct backend_classifier){ .rows = op->dim[0],
		.c = op->dim[1],
		.v = op->dim[2],
		.chunk = op->dim[3],
		.w_type = engine_exec_type(e, op, 1),
		.x = OPERAND(0),
		.w = OPERAND(1),
		.labels = OPERAND(2),
		.row_loss = OPERAND(3),
		.row_hit = OPERAND(4),
		.dx = OPERAND(5),
		.dw = OPERAND(6),
		.overwrite = overwrites_now(e, op),
		.scale = e->row_scale,
		.smoothing = smoothing(e),
		.ws = engine_exec_workspace(e, op) });
}

static void linear(struct engine *e, const struct plan_op *op)
{
	e->backend->linear(&(struct backend_linear){ .m = op->dim[0],
		.k = op->dim[1],
		.n = op->dim[2],
		.ldx = op->dim[3],
		.ldy = op->dim[4],
		.transposed = op->transposed,
		.alpha = (float)op->scalar,
		.act = op->act,
		.w_type = engine_exec_type(e, op, 1),
		.x = OPERAND(0),
		.w = OPERAND(1),
		.b = OPERAND(2),
		.y = OPERAND(3),
		.residual = OPERAND(4),
		.pre = OPERAND(5),
		.ws = engine_exec_workspace(e, op) });
}

static void linear_backward_data(struct engine *e, const struct plan_op *op)
{
	e->backend->linear_backward_data(&(struct backend_linear_backward_data){ .m = op->dim[0],
		.k = op->dim[1],
		.n = op->dim[2],
		.lddy = op->dim[3],
		.lddx = op->dim[4],
		.transposed = op->transposed,
		.alpha = (float)op->scalar,
		.act = op->act,
		.w_type = engine_exec_type(e, op, 1),
		.dy = OPERAND(0),
		.w = OPERAND(1),
		.dx = OPERAND(2),
		.residual = OPERAND(3),
		.gate = OPERAND(4),
		.ws = engine_exec_workspace(e, op) });
}

static void linear_backward_weight(struct engine *e, const struct plan_op *op)
{
	e->backend->linear_backward_weight(&(struct backend_linear_backward_weight){ .m = op->dim[0],
		.k = op->dim[1],
		.n = op->dim[2],
		.ldx = op->dim[3],
		.lddy = op->dim[4],
		.transposed = op->transposed,
		.alpha = (float)op->scalar,
		.x = OPERAND(0),
		.dy = OPERAND(1),
		.dw = OPERAND(2),
		.db = OPERAND(3),
		.overwrite = overwrites_now(e, op),
		.ws = engine_exec_workspace(e, op) });
}

static void gelu(struct engine *e, const struct plan_op *op)
{
	e->backend->gelu(op->dim[0], OPERAND(0), OPERAND(1));
}

static void relu_backward(struct engine *e, const struct plan_op *op)
{
	e->backend->relu_backward(op->dim[0], OPERAND(0), OPERAND(1), OPERAND(2));
}

static void add(struct engine *e, const struct plan_op *op)
{
	e->backend->add(op->dim[0], OPERAND(0), OPERAND(1));
}

/* Forward, recomputed and backward are one function of the same key. */
static void dropout(struct engine *e, const struct plan_op *op)
{
	uint64_t batch = rng_key((uint64_t)e->state.seed, RNG_DROPOUT, (uint64_t)e->micro_position);
	e->backend->dropout(&(struct backend_dropout){ .count = op->dim[0],
		.p = e->train ? (float)op->scalar : 0.0f,
		.key = rng_mix(batch + (uint64_t)op->dim[1]),
		.cut = { op->dim[2], op->dim[3], op->dim[4] },
		.x = OPERAND(0),
		.y = OPERAND(1) });
}

static void softmax_xent(struct engine *e, const struct plan_op *op)
{
	e->backend->softmax_xent(&(struct backend_softmax_xent){ .rows = op->dim[0],
		.classes = op->dim[1],
		.logits = OPERAND(0),
		.labels = OPERAND(1),
		.row_loss = OPERAND(2),
		.row_hit = OPERAND(3),
		.scale = e->row_scale,
		.smoothing = smoothing(e) });
}

static void xent_statistics(struct engine *e, const struct plan_op *op)
{
	e->backend->xent_statistics(&(struct backend_xent_shared){ .rows = op->dim[0],
		.own = op->dim[1],
		.first = op->dim[2],
		.logits = OPERAND(0),
		.labels = OPERAND(1),
		.own_statistics = OPERAND(2) });
}

static void xent_shared(struct engine *e, const struct plan_op *op)
{
	e->backend->xent_shared(&(struct backend_xent_shared){ .rows = op->dim[0],
		.own = op->dim[1],
		.first = op->dim[2],
		.classes = op->dim[3],
		.ranks = op->dim[4],
		.logits = OPERAND(0),
		.labels = OPERAND(1),
		.statistics = OPERAND(2),
		.row_loss = OPERAND(3),
		.row_hit = OPERAND(4),
		.scale = e->row_scale,
		.smoothing = smoothing(e) });
}

static void mse(struct engine *e, const struct plan_op *op)
{
	e->backend->mse(&(struct backend_regress){ .rows = op->dim[0],
		.outputs = op->dim[1],
		.y = OPERAND(0),
		.targets = OPERAND(1),
		.row_loss = OPERAND(2),
		.scale = e->row_scale });
}

static void bce(struct engine *e, const struct plan_op *op)
{
	e->backend->bce(&(struct backend_regress){ .rows = op->dim[0],
		.outputs = 1,
		.y = OPERAND(0),
		.targets = OPERAND(1),
		.row_loss = OPERAND(2),
		.row_hit = OPERAND(3),
		.scale = e->row_scale });
}

static const engine_exec_fn exec_table[PLAN_OP_COUNT] = {
	[PLAN_OP_CAST] = cast,
	[PLAN_OP_EMBEDDING] = embedding,
	[PLAN_OP_EMBEDDING_BACKWARD] = embedding_backward,
	[PLAN_OP_LAYERNORM] = layernorm,
	[PLAN_OP_LAYERNORM_BACKWARD] = layernorm_backward,
	[PLAN_OP_RMSNORM] = rmsnorm,
	[PLAN_OP_RMSNORM_BACKWARD] = rmsnorm_backward,
	[PLAN_OP_ROPE] = rope,
	[PLAN_OP_ATTENTION] = attention,
	[PLAN_OP_ATTENTION_BACKWARD] = attention_backward,
	[PLAN_OP_SWIGLU] = swiglu,
	[PLAN_OP_SWIGLU_BACKWARD] = swiglu_backward,
	[PLAN_OP_CLASSIFIER] = classifier,
	[PLAN_OP_LINEAR] = linear,
	[PLAN_OP_LINEAR_BACKWARD_DATA] = linear_backward_data,
	[PLAN_OP_LINEAR_BACKWARD_WEIGHT] = linear_backward_weight,
	[PLAN_OP_GELU] = gelu,
	[PLAN_OP_RELU_BACKWARD] = relu_backward,
	[PLAN_OP_ADD] = add,
	[PLAN_OP_DROPOUT] = dropout,
	[PLAN_OP_DROPOUT_BACKWARD] = dropout,
	[PLAN_OP_SOFTMAX_XENT] = softmax_xent,
	[PLAN_OP_XENT_STATISTICS] = xent_statistics,
	[PLAN_OP_XENT_SHARED] = xent_shared,
	[PLAN_OP_MSE] = mse,
	[PLAN_OP_BCE] = bce,
};

int engine_exec_prepare(struct engine *e, struct err *err)
{
	for (int k = 0; k < PLAN_OP_COUNT; k++) {
		engine_exec_fn fn = exec_table[k];
		if (!fn)
			fn = engine_exec_vision((enum plan_op_kind)k);
		if (!fn)
			fn = engine_exec_piece((enum plan_op_kind)k);
		if (!fn)
			fn = engine_exec_comm((enum plan_op_kind)k);
		e->run[k] = fn ? fn : engine_exec_optimize((enum plan_op_kind)k);
	}
	for (int i = 0; i < e->plan->op_count; i++)
		if (!e->run[e->plan->ops[i].kind])
			return err_set(err, ERR_INTERNAL, NULL, "nothing executes the operation %s (%s)",
				e->plan->ops[i].name, plan_op_word(e->plan->ops[i].kind));
	return engine_exec_optimize_prepare(e, err);
}

static int64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

void engine_exec(struct engine *e, int begin, int end)
{
	bool trace = e->trace && e->train, last = e->micro == e->plan->micro_steps - 1;
	for (int i = begin; i < end && e->failure.code == 0; i++) {
		const struct plan_op *op = &e->plan->ops[i];
		if ((op->last_micro && !last) || (op->train_only && !e->train))
			continue;
		int64_t start = trace ? now_ns() : 0;
		e->run[op->kind](e, op);
		if (trace)
			engine_finish(e); /* otherwise the next operation's time would be this one's */
		if (trace)
			e->trace(e->trace_ctx, op, e->micro, start, now_ns());
	}
}

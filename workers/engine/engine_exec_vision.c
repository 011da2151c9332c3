/* SPDX-License-Identifier: Apache-2.0
 * Executes the operations of images and of click-through tables. Called by engine_exec.c. */
#include "workers/engine/engine_private.h"

#include <math.h>

#define OPERAND(i) engine_exec_operand(e, op, i)

static struct backend_conv conv_shape(const struct engine *e, const struct plan_op *op)
{
	return (struct backend_conv){ .n = op->dim[0],
		.h = op->dim[1],
		.w = op->dim[2],
		.in = op->dim[3],
		.out = op->dim[4],
		.kernel = op->dim[5],
		.stride = op->dim[6],
		.pad = op->dim[7],
		.act = op->act,
		.accumulate = op->accumulate,
		.w_type = e->plan->type,
		.ws = engine_exec_workspace(e, op) };
}

static void conv(struct engine *e, const struct plan_op *op)
{
	struct backend_conv d = conv_shape(e, op);
	d.w_type = engine_exec_type(e, op, 1);
	d.x = OPERAND(0);
	d.weight = OPERAND(1);
	d.bias = OPERAND(2);
	d.y = OPERAND(3);
	e->backend->conv(&d);
}

static void conv_backward_data(struct engine *e, const struct plan_op *op)
{
	struct backend_conv d = conv_shape(e, op);
	d.w_type = engine_exec_type(e, op, 1);
	d.dy = OPERAND(0);
	d.weight = OPERAND(1);
	d.dx = OPERAND(2);
	e->backend->conv_backward_data(&d);
}

static void conv_backward_weight(struct engine *e, const struct plan_op *op)
{
	struct backend_conv d = conv_shape(e, op);
	d.x = OPERAND(0);
	d.dy = OPERAND(1);
	d.dw = OPERAND(2);
	d.db = OPERAND(3);
	e->backend->conv_backward_weight(&d);
}

/* Several data ranks: each moves its statistics, from zero, by what this micro-batch of the step
 * weighs at the step's end (engine_exec_comm.c, running). */
static void batchnorm(struct engine *e, const struct plan_op *op)
{
	const struct plan_mesh *m = &e->plan->mesh;
	double left = 1 - ENGINE_RUNNING_MOMENTUM;
	e->backend->batchnorm(&(struct backend_batchnorm){ .rows = op->dim[0],
		.c = op->dim[1],
		.eps = (float)op->scalar,
		.keep = m->data > 1 ? pow(left, m->data) : left,
		.add = ENGINE_RUNNING_MOMENTUM * (m->data > 1 ? pow(left, m->data - 1 - m->data_rank) : 1),
		.train = e->train,
		.update_running = e->train && !op->recompute,
		.act = op->act,
		.x = OPERAND(0),
		.gain = OPERAND(1),
		.bias = OPERAND(2),
		.y = OPERAND(3),
		.mean = OPERAND(4),
		.rstd = OPERAND(5),
		.running_mean = OPERAND(6),
		.running_var = OPERAND(7),
		.residual = OPERAND(8),
		.ws = engine_exec_workspace(e, op) });
}

static void batchnorm_backward(struct engine *e, const struct plan_op *op)
{
	e->backend->batchnorm_backward(&(struct backend_batchnorm){ .rows = op->dim[0],
		.c = op->dim[1],
		.eps = (float)op->scalar,
		.train = true,
		.act = op->act,
		.x = OPERAND(0),
		.gain = OPERAND(1),
		.mean = OPERAND(2),
		.rstd = OPERAND(3),
		.y = OPERAND(4),
		.dy = OPERAND(5),
		.dx = OPERAND(6),
		.dgain = OPERAND(7),
		.dbias = OPERAND(8),
		.dresidual = OPERAND(9),
		.accumulate = op->accumulate,
		.ws = engine_exec_workspace(e, op) });
}

static struct backend_pool pool_shape(const struct plan_op *op)
{
	return (struct backend_pool){ .n = op->dim[0],
		.h = op->dim[1],
		.w = op->dim[2],
		.c = op->dim[3],
		.kernel = op->dim[4],
		.stride = op->dim[5],
		.pad = op->dim[6] };
}

static void maxpool(struct engine *e, const struct plan_op *op)
{
	struct backend_pool d = pool_shape(op);
	d.x = OPERAND(0);
	d.y = OPERAND(1);
	d.which = OPERAND(2);
	e->backend->maxpool(&d);
}

static void maxpool_backward(struct engine *e, const struct plan_op *op)
{
	struct backend_pool d = pool_shape(op);
	d.dy = OPERAND(0);
	d.which = OPERAND(1);
	d.dx = OPERAND(2);
	e->backend->maxpool_backward(&d);
}

static void avgpool(struct engine *e, const struct plan_op *op)
{
	e->backend->avgpool(op->dim[0], op->dim[1], op->dim[2], OPERAND(0), OPERAND(1));
}

static void avgpool_backward(struct engine *e, const struct plan_op *op)
{
	e->backend->avgpool_backward(op->dim[0], op->dim[1], op->dim[2], OPERAND(0), OPERAND(1));
}

/* The bags of one table out of [tables, samples, lookups]. */
static const int32_t *bags(const struct engine *e, const struct plan_op *op, int64_t table)
{
	return (const int32_t *)OPERAND(0) + table * op->dim[0] * op->dim[1];
}

static void embedding_bag(struct engine *e, const struct plan_op *op)
{
	e->backend->embedding_bag(&(struct backend_bag){ .samples = op->dim[0],
		.lookups = op->dim[1],
		.d = op->dim[2],
		.table = op->dim[4],
		.features = op->dim[5],
		.bags = bags(e, op, op->dim[4]),
		.weight = OPERAND(1),
		.z = OPERAND(2) });
}

/* Each micro-batch has its own part of the step's ids and gradients. */
static void sparse_store(struct engine *e, const struct plan_op *op)
{
	int64_t first = engine_micro_index(e, e->micro) * op->dim[0];
	e->backend->sparse_store(&(struct backend_bag){ .samples = op->dim[0],
		.lookups = op->dim[1],
		.d = op->dim[2],
		.table = op->dim[3],
		.features = op->dim[4],
		.bags = bags(e, op, op->dim[3]),
		.dz = OPERAND(1),
		.ids = (int32_t *)OPERAND(2) + first * op->dim[1],
		.grads = (float *)OPERAND(3) + first * op->dim[2] });
}

static void interaction(struct engine *e, const struct plan_op *op)
{
	e->backend->interaction(op->dim[0], op->dim[1], op->dim[2], OPERAND(0), OPERAND(1));
}

static void interaction_backward(struct engine *e, const struct plan_op *op)
{
	e->backend->interaction_backward(
		op->dim[0], op->dim[1], op->dim[2], OPERAND(0), OPERAND(1), OPERAND(2));
}

engine_exec_fn engine_exec_vision(enum plan_op_kind kind)
{
	static const engine_exec_fn table[PLAN_OP_COUNT] = {
		[PLAN_OP_CONV] = conv,
		[PLAN_OP_CONV_BACKWARD_DATA] = conv_backward_data,
		[PLAN_OP_CONV_BACKWARD_WEIGHT] = conv_backward_weight,
		[PLAN_OP_BATCHNORM] = batchnorm,
		[PLAN_OP_BATCHNORM_BACKWARD] = batchnorm_backward,
		[PLAN_OP_MAXPOOL] = maxpool,
		[PLAN_OP_MAXPOOL_BACKWARD] = maxpool_backward,
		[PLAN_OP_AVGPOOL] = avgpool,
		[PLAN_OP_AVGPOOL_BACKWARD] = avgpool_backward,
		[PLAN_OP_EMBEDDING_BAG] = embedding_bag,
		[PLAN_OP_INTERACTION] = interaction,
		[PLAN_OP_INTERACTION_BACKWARD] = interaction_backward,
		[PLAN_OP_SPARSE_STORE] = sparse_store,
	};
	return table[kind];
}

/* SPDX-License-Identifier: Apache-2.0
 * Executes what happens between ranks. A call is started where the plan says and what is computed
 * waits for it where it says so; the group's own thread moves the bytes meanwhile. The first
 * failure stops everything. Called by engine_exec.c, on the engine's thread. */
#include "workers/engine/engine_private.h"

#include <math.h>
#include <string.h>

/* Calls of a group that may be under way at once; it takes COMM_PENDING_MAX. */
enum { UNDER_WAY_MAX = COMM_PENDING_MAX / 2 };

#define OPERAND(i) engine_exec_operand(e, op, i)

static struct comm *group_of(const struct engine *e, enum plan_axis axis)
{
	switch (axis) {
	case PLAN_AXIS_DATA: return e->mesh->data;
	case PLAN_AXIS_TENSOR: return e->mesh->tensor;
	case PLAN_AXIS_PIPELINE: return e->mesh->pipeline;
	case PLAN_AXIS_ENDS: return e->mesh->ends;
	case PLAN_AXIS_ALL:
	case PLAN_AXIS_NONE: break;
	}
	return e->mesh->world;
}

int engine_exec_failed(const struct engine *e, struct err *err)
{
	if (e->failure.code < 0 && err != NULL)
		*err = e->failure;
	return e->failure.code;
}

void engine_exec_fail(struct engine *e, int rc, const struct err *err)
{
	if (rc < 0 && e->failure.code == 0) {
		e->failure = *err;
		e->failure.code = rc;
	}
}

static void wait_for(struct engine *e, struct comm *c, int64_t number)
{
	struct err err = { 0 };
	if (number > 0 && e->failure.code == 0)
		engine_exec_fail(e, comm_wait(c, number, &err), &err);
}

/* The call of an operation, where micro-batches take turns that of the present one. */
static struct engine_call *call_of(const struct engine *e, const struct plan_op *op)
{
	return &e->calls[op->ticket + (op->turns > 1 ? e->micro % op->turns : 0)];
}

/* What is computed from now on comes after the call. In host memory it is done then; on a device it
 * stays known until engine_exec_settle has waited for it. After a failure what is under way stays
 * known: engine_exec_leave ends it. */
static void end_call(struct engine *e, struct engine_call *call)
{
	struct err err = { 0 };
	bool done = false;
	if (e->failure.code < 0 || call->number == 0)
		return;
	int rc = comm_order(call->group, call->number, &err);
	if (rc == 0)
		rc = comm_test(call->group, call->number, &done, &err);
	engine_exec_fail(e, rc, &err);
	if (rc == 0 && done)
		*call = (struct engine_call){ 0 };
}

/* Numbers that are only moved are bytes to comm.h, which has no integers. */
static enum comm_type type_of(const struct engine *e, const struct plan_op *op, int64_t *count)
{
	switch (engine_exec_type(e, op, 0)) {
	case PLAN_F32: return COMM_F32;
	case PLAN_BF16: return COMM_BF16;
	case PLAN_F16: return COMM_F16;
	case PLAN_I32:
	case PLAN_U8:
	case PLAN_TYPE_COUNT: break;
	}
	*count *= plan_type_bytes(engine_exec_type(e, op, 0));
	return COMM_BYTES;
}

typedef int (*start_fn)(struct comm *, const struct comm_args *, int64_t *, struct err *);

static void begin(
	struct engine *e, const struct plan_op *op, struct comm *c, start_fn start, struct comm_args a)
{
	struct err err = { 0 };
	struct engine_call *call = call_of(e, op);
	a.count = op->dim[0];
	a.type = type_of(e, op, &a.count);
	end_call(e, call); /* of the micro-batch before */
	if (e->failure.code < 0)
		return;
	call->group = c;
	int rc = start(c, &a, &call->number, &err);
	engine_exec_fail(e, rc, &err);
	if (rc == 0 && call->number > UNDER_WAY_MAX)
		wait_for(e, c, call->number - UNDER_WAY_MAX);
}

static void call(struct engine *e, const struct plan_op *op, start_fn start, const void *x, void *y)
{
	begin(e, op, group_of(e, op->axis), start, (struct comm_args){ .send = x, .recv = y });
}

static void all_reduce(struct engine *e, const struct plan_op *op)
{
	call(e, op, group_of(e, op->axis)->ops->all_reduce, OPERAND(0), OPERAND(0));
}

static void reduce_scatter(struct engine *e, const struct plan_op *op)
{
	call(e, op, group_of(e, op->axis)->ops->reduce_scatter, OPERAND(0), OPERAND(1));
}

/* Rank 0 of an edge sends to rank 1 (mesh.h). */
static void send_op(struct engine *e, const struct plan_op *op)
{
	struct comm *c =
		e->mesh->edge[op->phase == PLAN_FORWARD ? MESH_FORWARD_OUT : MESH_BACKWARD_OUT];
	begin(e, op, c, c->ops->send, (struct comm_args){ .send = OPERAND(0), .root = 1 });
}

static void receive_op(struct engine *e, const struct plan_op *op)
{
	struct comm *c = e->mesh->edge[op->phase == PLAN_FORWARD ? MESH_FORWARD_IN : MESH_BACKWARD_IN];
	begin(e, op, c, c->ops->recv, (struct comm_args){ .recv = OPERAND(0), .root = 0 });
}

static void all_gather(struct engine *e, const struct plan_op *op)
{
	int64_t on = e->micro * op->dim[1];
	call(e, op, group_of(e, op->axis)->ops->all_gather,
		(char *)OPERAND(0) + on * plan_type_bytes(engine_exec_type(e, op, 0)),
		(char *)OPERAND(1) + on * plan_type_bytes(engine_exec_type(e, op, 1)));
}

static void all_to_all(struct engine *e, const struct plan_op *op)
{
	call(e, op, group_of(e, op->axis)->ops->all_to_all, OPERAND(0), OPERAND(1));
}

static void wait_op(struct engine *e, const struct plan_op *op)
{
	end_call(e, call_of(e, op));
}

static void accumulate(struct engine *e, const struct plan_op *op)
{
	e->backend->add_f32(op->dim[0], OPERAND(0), OPERAND(1));
}

/* Gaps between parameters, and what operations add to. */
static void clear(struct engine *e, const struct plan_op *op)
{
	const struct plan *p = e->plan;
	const struct plan_bucket *k = &p->buckets[op->bucket];
	float *x = OPERAND(0);
	int64_t done = 0;
	for (int i = k->first; i < k->end; i++) {
		const struct plan_param *pr = &p->params[p->bucket_params[i]];
		int64_t end = pr->bucket_begin + (pr->overwritten ? 0 : pr->count);
		if (end > done)
			e->backend->fill(end - done, 0.0f, x + done);
		done = pr->bucket_begin + pr->count;
	}
	if (k->count > done)
		e->backend->fill(k->count - done, 0.0f, x + done);
}

/* ------------------------------------------------------------------ numbers of the engine's own */

/* Of what every rank has told, the same on all of them: squares in the order of ranks, losses in
 * the order of the batch, from one rank of each data rank. */
static void take_numbers(struct engine *e, int64_t each)
{
	const struct plan_mesh *m = &e->plan->mesh;
	const double *all = e->numbers + each;
	e->grad_square = e->loss_sum = 0;
	for (int r = 0; r < plan_mesh_size(m); r++)
		e->grad_square += all[r * each];
	struct plan_mesh teller = { .data = m->data,
		.tensor = m->tensor,
		.pipeline = m->pipeline,
		.pipeline_rank = m->pipeline - 1 };
	for (int64_t micro = 0; micro < e->plan->micro_steps; micro++)
		for (teller.data_rank = 0; teller.data_rank < m->data; teller.data_rank++)
			e->loss_sum += all[plan_mesh_rank(&teller) * each + 1 + micro];
}

static void exchange(struct engine *e, const struct plan_op *op)
{
	struct err err = { 0 };
	int64_t ticket = 0, each = op->dim[0];
	struct comm *c = e->mesh->world;
	engine_step_settle(e);
	e->numbers[0] = e->grad_square;
	struct comm_args a = { .send = e->numbers,
		.recv = e->numbers + each,
		.count = each * (int64_t)sizeof(double),
		.type = COMM_BYTES };
	engine_exec_fail(e, c->ops->all_gather(c, &a, &ticket, &err), &err);
	wait_for(e, c, ticket);
	if (e->failure.code == 0)
		take_numbers(e, each);
}

/* Each data rank has moved its running statistics as if it alone had counted: their sum, and what
 * is left of those from before the step (engine_step.c), are what one rank would have. */
static void running(struct engine *e, const struct plan_op *op)
{
	const struct plan *p = e->plan;
	struct err err = { 0 };
	int64_t ticket = 0;
	float *own = e->running + op->dim[0];
	struct comm *c = e->mesh->data_host;
	engine_running_copy(e, own, false);
	struct comm_args a = { .send = own, .recv = own, .count = op->dim[0], .type = COMM_F32 };
	engine_exec_fail(e, c->ops->all_reduce(c, &a, &ticket, &err), &err);
	wait_for(e, c, ticket);
	if (e->failure.code < 0)
		return;
	double left = pow(1 - ENGINE_RUNNING_MOMENTUM, (double)(p->micro_steps * p->mesh.data));
	for (int64_t i = 0; i < op->dim[0]; i++)
		own[i] = (float)(left * (double)e->running[i] + (double)own[i]);
	engine_running_copy(e, own, true);
}

void engine_exec_settle(struct engine *e)
{
	for (int i = 0; e->mesh != NULL && i < e->plan->ticket_count; i++) {
		struct engine_call *call = &e->calls[i];
		wait_for(e, call->group, call->number);
		if (e->failure.code == 0)
			*call = (struct engine_call){ 0 };
	}
}

void engine_exec_leave(struct engine *e)
{
	for (int i = 0; e->mesh != NULL && i < e->plan->ticket_count; i++) {
		struct err err = { 0 };
		struct engine_call *call = &e->calls[i];
		if (call->number == 0)
			continue;
		comm_abort(call->group,
			e->failure.code < 0 ? e->failure.message
								: "the engine was closed before its calls were done");
		engine_exec_fail(e, comm_wait(call->group, call->number, &err), &err);
		*call = (struct engine_call){ 0 };
	}
}

void engine_exec_return_weights(struct engine *e)
{
	const struct plan *p = e->plan;
	for (int i = 0; i < p->op_count; i++) {
		const struct plan_op *op = &p->ops[i];
		bool returns = op->phase == PLAN_OPTIMIZE && op->kind == PLAN_OP_ALL_GATHER;
		if (returns && e->failure.code == 0) {
			e->micro = 0;
			all_gather(e, op);
		}
	}
	engine_exec_settle(e);
}

engine_exec_fn engine_exec_comm(enum plan_op_kind kind)
{
	static const engine_exec_fn table[PLAN_OP_COUNT] = {
		[PLAN_OP_ALL_REDUCE] = all_reduce,
		[PLAN_OP_REDUCE_SCATTER] = reduce_scatter,
		[PLAN_OP_ALL_GATHER] = all_gather,
		[PLAN_OP_ALL_TO_ALL] = all_to_all,
		[PLAN_OP_SEND] = send_op,
		[PLAN_OP_RECEIVE] = receive_op,
		[PLAN_OP_WAIT] = wait_op,
		[PLAN_OP_ACCUMULATE] = accumulate,
		[PLAN_OP_CLEAR] = clear,
		[PLAN_OP_EXCHANGE] = exchange,
		[PLAN_OP_RUNNING] = running,
	};
	return table[kind];
}

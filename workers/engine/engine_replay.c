/* SPDX-License-Identifier: Apache-2.0
 * Gives a pass of a micro-batch to the device as one, where the device keeps it (backend.h:
 * record). Called by engine_step.c, on the engine's thread. */
#include "workers/engine/engine_private.h"

#include <string.h>

/* Passes that differ in what operations overwrite, and in which run at all. */
enum part { PART_FIRST, PART_OTHER, PART_LAST, PART_MICROS };
_Static_assert(2 * (int)PART_MICROS <= (int)BACKEND_PARTS, "forward and backward of each");

static int part_of(const struct engine *e, int begin)
{
	bool last = e->micro == e->plan->micro_steps - 1;
	enum part part = e->micro == 0 ? PART_FIRST : last ? PART_LAST : PART_OTHER;
	return (int)part + (begin == 0 ? 0 : PART_MICROS);
}

/* Whether all that the operation is given follows from the plan, the part and e->row_scale. A kind
 * that is not listed is recorded anew each time: dropout has the micro-batch's position, what is
 * stored for sparse tables its index. */
static bool is_steady(enum plan_op_kind kind)
{
	switch ((int)kind) {
	case PLAN_OP_CAST:
	case PLAN_OP_EMBEDDING:
	case PLAN_OP_EMBEDDING_BACKWARD:
	case PLAN_OP_LAYERNORM:
	case PLAN_OP_LAYERNORM_BACKWARD:
	case PLAN_OP_RMSNORM:
	case PLAN_OP_RMSNORM_BACKWARD:
	case PLAN_OP_ROPE:
	case PLAN_OP_ATTENTION:
	case PLAN_OP_ATTENTION_BACKWARD:
	case PLAN_OP_SWIGLU:
	case PLAN_OP_SWIGLU_BACKWARD:
	case PLAN_OP_CLASSIFIER:
	case PLAN_OP_LINEAR:
	case PLAN_OP_LINEAR_BACKWARD_DATA:
	case PLAN_OP_LINEAR_BACKWARD_WEIGHT:
	case PLAN_OP_GELU:
	case PLAN_OP_RELU_BACKWARD:
	case PLAN_OP_ADD:
	case PLAN_OP_CONV:
	case PLAN_OP_CONV_BACKWARD_DATA:
	case PLAN_OP_CONV_BACKWARD_WEIGHT:
	case PLAN_OP_BATCHNORM:
	case PLAN_OP_BATCHNORM_BACKWARD:
	case PLAN_OP_MAXPOOL:
	case PLAN_OP_MAXPOOL_BACKWARD:
	case PLAN_OP_AVGPOOL:
	case PLAN_OP_AVGPOOL_BACKWARD:
	case PLAN_OP_EMBEDDING_BAG:
	case PLAN_OP_INTERACTION:
	case PLAN_OP_INTERACTION_BACKWARD:
	case PLAN_OP_SOFTMAX_XENT:
	case PLAN_OP_MSE:
	case PLAN_OP_BCE: return true;
	default: return false;
	}
}

/* What the part is given besides: never 0, which is like no other. */
static uint64_t key_of(const struct engine *e, int begin, int end)
{
	uint32_t scale = 0;
	for (int i = begin; i < end; i++)
		if (!is_steady(e->plan->ops[i].kind))
			return 0;
	memcpy(&scale, &e->row_scale, sizeof(scale));
	return (uint64_t)scale + 1;
}

/* Between ranks the host takes part in the middle of a pass, and a trace is of single operations.
 */
static bool is_one(const struct engine *e)
{
	return plan_mesh_size(&e->plan->mesh) == 1 && !e->trace;
}

void engine_replay(struct engine *e, int begin, int end)
{
	const struct backend *b = e->backend;
	int part = part_of(e, begin);
	uint64_t key = key_of(e, begin, end);
	if (is_one(e) && b->replay(e->ctx, part, key))
		return;
	bool records = is_one(e) && b->record(e->ctx, part);
	engine_exec(e, begin, end);
	if (records && !b->recorded(e->ctx, key))
		engine_exec(e, begin, end);
}

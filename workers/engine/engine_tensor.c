/* SPDX-License-Identifier: Apache-2.0
 * The list of tensors that checkpoints and tests see: parameters in the plan's order, then the
 * optimizer's, then the averages. Called by the engine's owner. */
#include "workers/engine/engine_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KINDS = 4 };

int engine_tensor_exact(const struct plan_param *p)
{
	return p->role == PLAN_TRAINED && p->master >= 0 ? p->master : p->weight;
}

static int buffer_of(const struct plan_param *p, int group)
{
	switch (group) {
	case 0: return engine_tensor_exact(p);
	case 1: return p->moment1;
	case 2: return p->moment2;
	default: return p->average;
	}
}

int engine_tensor_prepare(struct engine *e, struct err *err)
{
	const struct plan *p = e->plan;
	bool adam = p->optimizer == SPEC_ADAMW;
	const char *const prefix[KINDS] = { "",
		adam ? "optimizer.exp_avg." : "optimizer.momentum_buffer.", "optimizer.exp_avg_sq.",
		"average." };
	const enum engine_tensor_kind kind[KINDS] = { ENGINE_PARAMETER, ENGINE_OPTIMIZER,
		ENGINE_OPTIMIZER, ENGINE_AVERAGE };
	e->slots = calloc((size_t)p->param_count * KINDS, sizeof(*e->slots));
	if (!e->slots)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for the list of tensors");
	for (int group = 0; group < KINDS; group++)
		for (int i = 0; i < p->param_count; i++) {
			int buffer = buffer_of(&p->params[i], group);
			if (buffer >= 0)
				e->slots[e->slot_count++] = (struct engine_slot){
					.kind = kind[group], .prefix = prefix[group], .param = i, .buffer = buffer
				};
		}
	return 0;
}

int engine_tensor_count(const struct engine *e)
{
	return e->slot_count;
}

void engine_tensor_at(struct engine *e, int i, struct engine_tensor *ret)
{
	static const char *const dtype[PLAN_TYPE_COUNT] = { "F32", "BF16", "F16", "I32", "U8" };
	const struct engine_slot *s = &e->slots[i];
	const struct plan_param *p = &e->plan->params[s->param];
	enum plan_type type = e->plan->buffers[s->buffer].type;
	*ret = (struct engine_tensor){ .kind = s->kind,
		.dtype = dtype[type],
		.type = type,
		.role = p->role,
		.rank = p->rank,
		.bytes = p->count * plan_type_bytes(type),
		.data = engine_buffer(e, s->buffer) };
	memcpy(ret->shape, p->shape, sizeof(ret->shape));
	snprintf(ret->name, sizeof(ret->name), "%s%s", s->prefix, p->name);
}

/* SPDX-License-Identifier: Apache-2.0
 * Fresh parameters, and the rounding of masters into what the operations read. Called by the
 * engine's owner; draws on all of its threads. */
#include "workers/engine/engine_draw.h"
#include "workers/engine/engine_private.h"
#include "workers/engine/rng.h"

#include <string.h>

/* Writes fp32 values where a parameter's exact ones are, which is rounded when it is frozen. */
static void put(
	const struct engine *e, enum plan_type type, char *to, int64_t count, const float *x)
{
	if (type == PLAN_F32)
		memcpy(to, x, (size_t)count * sizeof(float));
	else
		e->backend->from_f32(count, x, to);
}

static void draw(const struct engine *e, const struct plan_param *p, uint64_t key)
{
	const struct plan_buffer *b = &e->plan->buffers[engine_tensor_exact(p)];
	char *to = engine_buffer(e, engine_tensor_exact(p));
	int64_t blocks = (p->count + ENGINE_DRAW_BLOCK - 1) / ENGINE_DRAW_BLOCK;
#pragma omp parallel for schedule(static)
	for (int64_t i = 0; i < blocks; i++) {
		float x[ENGINE_DRAW_BLOCK] __attribute__((aligned(64)));
		int64_t begin = i * ENGINE_DRAW_BLOCK;
		int64_t count = p->count - begin < ENGINE_DRAW_BLOCK ? p->count - begin : ENGINE_DRAW_BLOCK;
		if (p->init == PLAN_INIT_NORMAL)
			engine_draw_normal(key, i, (float)p->init_scale, x);
		else
			engine_draw_uniform(key, i, (float)p->init_scale, x);
		put(e, b->type, to + begin * plan_type_bytes(b->type), count, x);
	}
}

static void fill(const struct engine *e, const struct plan_param *p, float value)
{
	const struct plan_buffer *b = &e->plan->buffers[engine_tensor_exact(p)];
	char *to = engine_buffer(e, engine_tensor_exact(p));
	if (b->type == PLAN_F32) {
		e->backend->fill(p->count, value, (float *)to);
		return;
	}
	float x[ENGINE_DRAW_BLOCK];
	for (int i = 0; i < ENGINE_DRAW_BLOCK; i++)
		x[i] = value;
	for (int64_t begin = 0; begin < p->count; begin += ENGINE_DRAW_BLOCK) {
		int64_t left = p->count - begin;
		put(e, b->type, to + begin * plan_type_bytes(b->type),
			left < ENGINE_DRAW_BLOCK ? left : ENGINE_DRAW_BLOCK, x);
	}
}

void engine_average_begin(struct engine *e)
{
	for (int i = 0; i < e->plan->param_count; i++) {
		const struct plan_param *p = &e->plan->params[i];
		if (p->average >= 0)
			memcpy(engine_buffer(e, p->average), engine_buffer(e, engine_tensor_exact(p)),
				(size_t)p->count * sizeof(float));
	}
}

void engine_init_params(struct engine *e)
{
	e->backend->enter(e->ctx);
	for (int i = 0; i < e->plan->param_count; i++) {
		const struct plan_param *p = &e->plan->params[i];
		switch (p->init) {
		case PLAN_INIT_ZERO: fill(e, p, 0.0f); break;
		case PLAN_INIT_ONE: fill(e, p, 1.0f); break;
		case PLAN_INIT_NORMAL:
		case PLAN_INIT_UNIFORM:
			draw(e, p, rng_key((uint64_t)e->spec->seed, RNG_PARAMETERS, (uint64_t)i));
			break;
		}
		if (p->moment1 >= 0)
			e->backend->fill(p->count, 0.0f, engine_buffer(e, p->moment1));
		if (p->moment2 >= 0)
			e->backend->fill(p->count, 0.0f, engine_buffer(e, p->moment2));
	}
	engine_average_begin(e);
	engine_parameters_changed(e);
	e->state = (struct engine_state){ .seed = e->spec->seed,
		.loss_scale = e->plan->type == PLAN_F16 ? ENGINE_SCALE_FIRST : 1.0 };
}

void engine_parameters_changed(struct engine *e)
{
	e->backend->enter(e->ctx);
	for (int i = 0; i < e->plan->param_count; i++) {
		const struct plan_param *p = &e->plan->params[i];
		int exact = engine_tensor_exact(p);
		if (exact != p->weight)
			e->backend->from_f32(p->count, engine_buffer(e, exact), engine_buffer(e, p->weight));
	}
}

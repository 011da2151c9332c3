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

/* Elements [block * ENGINE_DRAW_BLOCK, ...) of a whole parameter, as far as they are in [begin,
 * end) of it, which the piece has from its element at on. */
static void draw_block(const struct engine *e, const struct plan_param *p,
	const struct engine_piece *piece, char *to, uint64_t key, int64_t block, int64_t begin,
	int64_t end, int64_t at)
{
	float x[ENGINE_DRAW_BLOCK] __attribute__((aligned(64)));
	int64_t first = block * ENGINE_DRAW_BLOCK, shift = first > begin ? first - begin : 0;
	if (end > first + ENGINE_DRAW_BLOCK)
		end = first + ENGINE_DRAW_BLOCK;
	if (begin + shift >= end)
		return;
	enum plan_type type = e->plan->buffers[piece->buffer].type;
	if (p->init == PLAN_INIT_NORMAL)
		engine_draw_normal(key, block, (float)p->init_scale, x);
	else
		engine_draw_uniform(key, block, (float)p->init_scale, x);
	put(e, type, to + (at + shift) * plan_type_bytes(type), end - begin - shift,
		x + (begin + shift - first));
}

/* A parameter's values are those of the whole, whoever keeps which of them. */
static void draw(const struct engine *e, const struct plan_param *p,
	const struct engine_piece *piece, char *to, uint64_t key)
{
	if (piece->count == 0)
		return;
	const int64_t run = p->cut.run, end = piece->begin + piece->count;
	const int64_t first = piece->begin / run, last = (end - 1) / run;
	const int64_t blocks = run / ENGINE_DRAW_BLOCK + 2; /* that a run may touch */
#pragma omp parallel for schedule(static) collapse(2)
	for (int64_t r = first; r <= last; r++)
		for (int64_t i = 0; i < blocks; i++) {
			int64_t own = r * run > piece->begin ? r * run : piece->begin;
			int64_t upto = (r + 1) * run < end ? (r + 1) * run : end;
			int64_t begin = plan_cut_at(&p->cut, own);
			draw_block(e, p, piece, to, key, begin / ENGINE_DRAW_BLOCK + i, begin,
				begin + upto - own, own - piece->begin);
		}
}

static void fill(const struct engine *e, const struct engine_piece *piece, char *to, float value)
{
	enum plan_type type = e->plan->buffers[piece->buffer].type;
	float x[ENGINE_DRAW_BLOCK];
	for (int i = 0; i < ENGINE_DRAW_BLOCK; i++)
		x[i] = value;
#pragma omp parallel for schedule(static)
	for (int64_t begin = 0; begin < piece->count; begin += ENGINE_DRAW_BLOCK) {
		int64_t left = piece->count - begin;
		put(e, type, to + begin * plan_type_bytes(type),
			left < ENGINE_DRAW_BLOCK ? left : ENGINE_DRAW_BLOCK, x);
	}
}

void engine_average_begin(struct engine *e)
{
	for (int i = 0; i < e->plan->param_count; i++) {
		struct engine_piece mean = engine_piece_of(e->plan, i, ENGINE_MEAN);
		struct engine_piece exact = engine_piece_of(e->plan, i, ENGINE_EXACT);
		if (mean.buffer >= 0)
			e->backend->copy(e->ctx, engine_piece_data(e, &mean), engine_piece_data(e, &exact),
				mean.count * (int64_t)sizeof(float));
	}
}

/* An average begins as the parameter: engine_average_begin. */
static void init_slot(struct engine *e, int i)
{
	const struct engine_slot *s = &e->slots[i];
	const struct plan_param *p = &e->plan->params[s->param];
	if (s->part == ENGINE_MEAN)
		return;
	char *to = engine_host_tensor_anew(e, i);
	if (s->part != ENGINE_EXACT) {
		fill(e, &s->piece, to, 0.0f);
		return;
	}
	switch (p->init) {
	case PLAN_INIT_ZERO: fill(e, &s->piece, to, 0.0f); break;
	case PLAN_INIT_ONE: fill(e, &s->piece, to, 1.0f); break;
	case PLAN_INIT_NORMAL:
	case PLAN_INIT_UNIFORM:
		draw(e, p, &s->piece, to,
			rng_key((uint64_t)e->spec->seed, RNG_PARAMETERS, (uint64_t)p->number));
		break;
	}
}

int engine_init_params(struct engine *e, struct err *err)
{
	int rc = engine_check_joined(e, err);
	if (rc)
		return rc;
	e->backend->enter(e->ctx);
	engine_host_forget(e);
	for (int i = 0; i < e->slot_count; i++)
		init_slot(e, i);
	engine_host_push(e);
	engine_average_begin(e);
	engine_host_forget(e);
	e->state = (struct engine_state){ .seed = e->spec->seed,
		.loss_scale = e->plan->type == PLAN_F16 ? ENGINE_SCALE_FIRST : 1.0 };
	return engine_parameters_changed(e, err);
}

/* The own part of a bucket's masters, into its weights. */
static void round_bucket(struct engine *e, const struct plan_bucket *k)
{
	bool gathered = k->own_weights >= 0;
	char *to = engine_buffer(e, gathered ? k->own_weights : k->weights);
	if (!gathered)
		to += e->plan->mesh.data_rank * k->shard * plan_type_bytes(k->type);
	if (k->own_master >= 0)
		e->backend->cast(k->shard, engine_buffer(e, k->own_master), to);
}

static void round_nearest(struct engine *e)
{
	for (int i = 0; i < e->plan->param_count; i++) {
		const struct plan_param *p = &e->plan->params[i];
		int exact = engine_tensor_exact(p);
		if (p->bucket < 0 && exact != p->weight)
			e->backend->cast(p->count, engine_buffer(e, exact), engine_buffer(e, p->weight));
	}
	for (int i = 0; i < e->plan->bucket_count; i++)
		round_bucket(e, &e->plan->buckets[i]);
}

/* A plan whose weights are rounded by chance has operations for it; what they round to is the
 * step's, so that a run that goes on from here reads what the uninterrupted one does. */
void engine_round_weights(struct engine *e, int64_t step)
{
	const struct plan *p = e->plan;
	e->reading_step = step;
	if (!e->spec->hyper.stochastic_rounding)
		round_nearest(e);
	for (int i = p->optimize_begin; i < p->op_count; i++)
		if (p->ops[i].kind == PLAN_OP_ROUND)
			e->run[PLAN_OP_ROUND](e, &p->ops[i]);
	engine_exec_return_weights(e);
}

int engine_parameters_changed(struct engine *e, struct err *err)
{
	int rc = engine_check_joined(e, err);
	if (rc)
		return rc;
	e->backend->enter(e->ctx);
	engine_host_push(e);
	engine_round_weights(e, e->state.step);
	engine_finish(e);
	return engine_exec_failed(e, err);
}

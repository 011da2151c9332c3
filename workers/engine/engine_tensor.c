/* SPDX-License-Identifier: Apache-2.0
 * The list of tensors that checkpoints and tests see: parameters in the plan's order, then the
 * optimizer's, then the averages. Called by the engine's owner. */
#include "workers/engine/engine_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int engine_tensor_exact(const struct plan_param *p)
{
	return p->role == PLAN_TRAINED && p->master >= 0 ? p->master : p->weight;
}

static int whole_buffer(const struct plan_param *p, enum engine_part part)
{
	switch (part) {
	case ENGINE_EXACT: return engine_tensor_exact(p);
	case ENGINE_MOMENT1: return p->moment1;
	case ENGINE_MOMENT2: return p->moment2;
	case ENGINE_MEAN: return p->average;
	case ENGINE_PART_COUNT: break;
	}
	return -1;
}

static int bucket_buffer(const struct plan_bucket *k, enum engine_part part)
{
	switch (part) {
	case ENGINE_EXACT:
		return k->own_master >= 0 ? k->own_master
			: k->own_weights >= 0 ? k->own_weights
								  : k->weights;
	case ENGINE_MOMENT1: return k->own_moment1;
	case ENGINE_MOMENT2: return k->own_moment2;
	case ENGINE_MEAN: return k->own_average;
	case ENGINE_PART_COUNT: break;
	}
	return -1;
}

struct engine_piece engine_piece_of(const struct plan *p, int param, enum engine_part part)
{
	const struct plan_param *pr = &p->params[param];
	if (pr->bucket < 0)
		return (struct engine_piece){ .buffer = whole_buffer(pr, part), .count = pr->count };
	const struct plan_bucket *k = &p->buckets[pr->bucket];
	struct engine_piece piece = { .buffer = bucket_buffer(k, part) };
	/* The own part of the bucket, and of it what is the parameter's. */
	int64_t own = p->mesh.data_rank * k->shard;
	int64_t begin = own > pr->bucket_begin ? own : pr->bucket_begin;
	int64_t end = own + k->shard < pr->bucket_begin + pr->count ? own + k->shard
																: pr->bucket_begin + pr->count;
	if (begin >= end)
		return piece;
	piece.begin = begin - pr->bucket_begin;
	piece.count = end - begin;
	piece.at = begin - (piece.buffer == k->weights ? 0 : own);
	return piece;
}

void *engine_piece_data(const struct engine *e, const struct engine_piece *piece)
{
	if (piece->buffer < 0)
		return NULL;
	enum plan_type type = e->plan->buffers[piece->buffer].type;
	return (char *)engine_buffer(e, piece->buffer) + piece->at * plan_type_bytes(type);
}

int engine_tensor_prepare(struct engine *e, struct err *err)
{
	const struct plan *p = e->plan;
	bool adam = p->optimizer == SPEC_ADAMW;
	const char *const prefix[ENGINE_PART_COUNT] = { "",
		adam ? "optimizer.exp_avg." : "optimizer.momentum_buffer.", "optimizer.exp_avg_sq.",
		"average." };
	const enum engine_tensor_kind kind[ENGINE_PART_COUNT] = { ENGINE_PARAMETER, ENGINE_OPTIMIZER,
		ENGINE_OPTIMIZER, ENGINE_AVERAGE };
	e->slots = calloc((size_t)p->param_count * ENGINE_PART_COUNT, sizeof(*e->slots));
	if (!e->slots)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for the list of tensors");
	for (int part = 0; part < ENGINE_PART_COUNT; part++)
		for (int i = 0; i < p->param_count; i++) {
			struct engine_piece piece = engine_piece_of(p, i, (enum engine_part)part);
			if (piece.buffer >= 0)
				e->slots[e->slot_count++] = (struct engine_slot){ .kind = kind[part],
					.prefix = prefix[part],
					.part = (enum engine_part)part,
					.param = i,
					.number = part * PLAN_BUFFERS_MAX + p->params[i].number,
					.piece = piece };
		}
	return 0;
}

int engine_tensor_count(const struct engine *e)
{
	return e->slot_count;
}

/* Ranks of the data axis keep the same unless buckets cut it, or pieces of tables; those of the
 * tensor axis unless the plan cuts it for them. */
static void count_copies(
	const struct plan *plan, const struct plan_param *p, struct engine_tensor *ret)
{
	const struct plan_mesh *m = &plan->mesh;
	bool whole = p->cut.run == p->cut.period,
		 shared = p->bucket < 0 && !(p->sparse && plan->pieces);
	int tensor = whole ? m->tensor : 1, data = shared ? m->data : 1;
	ret->copies = tensor * data;
	ret->copy = (shared ? m->data_rank : 0) * tensor + (whole ? m->tensor_rank : 0);
	if (p->ends && m->pipeline_rank > 0) /* the first stage's, which may be cut elsewhere */
		ret->copy += ret->copies;
}

void engine_tensor_at(struct engine *e, int i, struct engine_tensor *ret)
{
	static const char *const dtype[PLAN_TYPE_COUNT] = { "F32", "BF16", "F16", "I32", "U8" };
	const struct engine_slot *s = &e->slots[i];
	const struct plan_param *p = &e->plan->params[s->param];
	enum plan_type type = e->plan->buffers[s->piece.buffer].type;
	*ret = (struct engine_tensor){ .kind = s->kind,
		.dtype = dtype[type],
		.type = type,
		.role = p->role,
		.number = s->number,
		.rank = p->rank,
		.begin = s->piece.begin,
		.count = s->piece.count,
		.bytes = s->piece.count * plan_type_bytes(type),
		.cut = p->cut,
		.data = engine_host_tensor(e, i) };
	count_copies(e->plan, p, ret);
	memcpy(ret->shape, p->shape, sizeof(ret->shape));
	snprintf(ret->name, sizeof(ret->name), "%s%s", s->prefix, p->name);
}

/* SPDX-License-Identifier: Apache-2.0
 * A pipeline's sections, what goes from stage to stage, and what the first and the last rank keep
 * both. Receives of one section are started while the one before computes, and sends are waited for
 * only before what they send is overwritten. Called by the language models' files. */
#include "workers/plan/plan_private.h"

enum {
	/* A gradient is received while the one before is computed or sent. */
	GRADIENT_TURNS = 2,
	RECEIVE_TURNS = 2,
};

int plan_pipeline_stage(const struct plan *p, int chunk)
{
	return chunk * p->mesh.pipeline + p->mesh.pipeline_rank;
}

bool plan_pipeline_is_first(const struct plan *p, int chunk)
{
	return plan_pipeline_stage(p, chunk) == 0;
}

bool plan_pipeline_is_last(const struct plan *p, int chunk)
{
	return plan_pipeline_stage(p, chunk) == p->mesh.pipeline * p->mesh.chunks - 1;
}

bool plan_pipeline_is_joint(const struct plan *p, int chunk)
{
	return plan_pipeline_is_last(p, chunk);
}

static bool is_in(const struct plan_section *s, int op)
{
	return op >= s->begin && op < s->end;
}

int plan_pipeline_section(const struct plan *p, int op)
{
	for (int c = 0; c < p->chunk_count; c++) {
		if (is_in(&p->chunks[c].forward, op))
			return 2 * c;
		if (is_in(&p->chunks[c].backward, op))
			return plan_pipeline_is_joint(p, c) ? 2 * c : 2 * c + 1;
	}
	return -1;
}

static struct plan_section *section_of(struct plan_build *b, int chunk, enum plan_phase phase)
{
	struct plan_chunk *c = &b->p->chunks[chunk];
	return phase == PLAN_FORWARD ? &c->forward : &c->backward;
}

void plan_pipeline_begin(struct plan_build *b, int chunk, enum plan_phase phase)
{
	struct plan_section *s = section_of(b, chunk, phase);
	s->begin = s->body = b->p->op_count;
	b->phase = phase;
	b->chunk = chunk;
}

void plan_pipeline_end(struct plan_build *b, int chunk, enum plan_phase phase)
{
	section_of(b, chunk, phase)->end = b->p->op_count;
}

void plan_pipeline_whole(struct plan_build *b)
{
	struct plan *p = b->p;
	if (p->chunk_count > 0)
		return;
	p->chunk_count = 1;
	p->chunks[0].slots = 1;
	p->chunks[0].forward = (struct plan_section){ 0, 0, p->backward_begin };
	p->chunks[0].backward =
		(struct plan_section){ p->backward_begin, p->backward_begin, p->op_count };
}

static int tickets(struct plan_build *b, int count)
{
	int first = b->p->ticket_count;
	b->p->ticket_count += count;
	return first;
}

static struct plan_op *call(struct plan_build *b, enum plan_op_kind kind, const char *name, int x,
	int64_t count, int ticket, int turns)
{
	struct plan_op *op = plan_build_op(b, kind, name, PLAN_OPERANDS(x), PLAN_DIMS(count), 0);
	op->axis = PLAN_AXIS_PIPELINE;
	op->ticket = ticket;
	op->turns = turns;
	if (kind == PLAN_OP_SEND && !b->code)
		op->wire_bytes = (double)(count * plan_type_bytes(b->p->buffers[x].type));
	return op;
}

static void wait_for(struct plan_build *b, const char *name, int x, int ticket, int turns)
{
	struct plan_op *op = plan_build_op(b, PLAN_OP_WAIT, name, PLAN_OPERANDS(x), NULL, 0, 0);
	op->axis = PLAN_AXIS_PIPELINE;
	op->ticket = ticket;
	op->turns = turns;
}

static void receive(struct plan_build *b, int chunk, const char *name, int x, int64_t count)
{
	int ticket = tickets(b, RECEIVE_TURNS);
	call(b, PLAN_OP_RECEIVE, name, x, count, ticket, RECEIVE_TURNS);
	section_of(b, chunk, b->phase)->body = b->p->op_count;
	wait_for(b, name, x, ticket, RECEIVE_TURNS);
}

int plan_pipeline_stream(struct plan_build *b, int chunk, int64_t count, const char *name)
{
	int x = plan_build_activation(b, count, "%.64s.received.%d", name, chunk);
	plan_build_keep(b, x, b->p->chunks[chunk].slots + 1);
	receive(b, chunk, name, x, count);
	return x;
}

struct plan_stream plan_pipeline_gradient(
	struct plan_build *b, int chunk, int64_t count, const char *name)
{
	struct plan_stream s = { .turns = GRADIENT_TURNS };
	bool first = plan_pipeline_is_first(b->p, chunk);
	s.buffer = plan_build_activation(b, count, "%.64s.d.residual.%d", name, chunk);
	plan_build_keep(b, s.buffer, GRADIENT_TURNS);
	s.ticket = first ? -1 : tickets(b, GRADIENT_TURNS);
	if (!first)
		wait_for(b, name, s.buffer, s.ticket, s.turns);
	if (!plan_pipeline_is_last(b->p, chunk))
		receive(b, chunk, name, s.buffer, count);
	return s;
}

struct plan_stream plan_pipeline_before(struct plan_build *b, const char *name)
{
	struct plan_stream s = { .buffer = -1, .ticket = tickets(b, 1), .turns = 1 };
	wait_for(b, name, -1, s.ticket, s.turns);
	return s;
}

void plan_pipeline_send(struct plan_build *b, struct plan_stream s, int64_t count, const char *name)
{
	call(b, PLAN_OP_SEND, name, s.buffer, count, s.ticket, s.turns);
}

/* The gradients of a parameter that both ends keep; with ZeRO it has a bucket of its own, and a
 * rank keeps the same part of it as the one at the other end. */
void plan_pipeline_ends(struct plan_build *b)
{
	struct plan *p = b->p;
	for (int i = 0; i < p->param_count && !b->code; i++) {
		const struct plan_param *pr = &p->params[i];
		if (!pr->ends || pr->role != PLAN_TRAINED)
			continue;
		const struct plan_bucket *k = pr->bucket >= 0 ? &p->buckets[pr->bucket] : NULL;
		int x = !k ? pr->gradient : p->mesh.zero == 1 ? k->gradient : k->own_gradient;
		int64_t count = k ? k->shard : pr->count;
		int ticket = tickets(b, 1);
		struct plan_op *op = call(b, PLAN_OP_ALL_REDUCE, pr->name, x, count, ticket, 1);
		op->axis = PLAN_AXIS_ENDS;
		op->shift[0] = k && p->mesh.zero == 1 ? p->mesh.data_rank * k->shard : 0;
		if (!b->code) /* of two ranks, to the other: what is there, and the sum */
			op->wire_bytes = (double)(count * plan_type_bytes(PLAN_F32));
		wait_for(b, pr->name, x, ticket, 1);
		p->ops[p->op_count - 1].axis = PLAN_AXIS_ENDS;
	}
}

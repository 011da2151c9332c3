/* SPDX-License-Identifier: Apache-2.0
 * What the host sees of a device whose memory is apart: a copy of each tensor, brought when it is
 * asked for, and a micro-batch's inputs on their way. A device that shares the host's memory has no
 * copies: the functions give the memory itself. Called by the other engine_*.c files. */
#include "core/base/num.h"
#include "workers/engine/engine_private.h"

#include <stdlib.h>
#include <string.h>

static int64_t slot_bytes(const struct engine *e, const struct engine_slot *s)
{
	return s->piece.count * plan_type_bytes(e->plan->buffers[s->piece.buffer].type);
}

enum { INPUTS = 5 };

/* The buffers of a set of inputs, in one order; -1 where the plan has no such input. */
static void list_inputs(const struct plan_inputs *in, int ret[INPUTS])
{
	const int all[INPUTS] = { in->input, in->labels, in->positions, in->starts, in->bags };
	memcpy(ret, all, sizeof(all));
}

/* A part of the host's copies; NULL where the plan has no such input. */
static void *take_input(struct engine *e, int buffer, int64_t *at)
{
	if (buffer < 0)
		return NULL;
	void *data = e->host + *at;
	*at += num_round_up(e->plan->buffers[buffer].bytes, PLAN_ALIGN_BYTES);
	return data;
}

int engine_host_prepare(struct engine *e, struct err *err)
{
	const struct plan *p = e->plan;
	const struct plan_inputs *in = &p->inputs;
	int inputs[INPUTS];
	int64_t at = 0, bytes = PLAN_ALIGN_BYTES;
	if (!e->backend->apart)
		return 0;
	for (int i = 0; i < e->slot_count; i++) {
		e->slots[i].host_at = at;
		at += num_round_up(slot_bytes(e, &e->slots[i]), PLAN_ALIGN_BYTES);
	}
	list_inputs(in, inputs);
	for (size_t i = 0; i < ARRAY_LEN(inputs); i++)
		if (inputs[i] >= 0)
			bytes += num_round_up(p->buffers[inputs[i]].bytes, PLAN_ALIGN_BYTES);
	e->host = aligned_alloc(PLAN_ALIGN_BYTES, (size_t)(at + bytes));
	if (!e->host)
		return err_set(err, ERR_NO_MEMORY, NULL,
			"no %lld bytes of host memory for the copies of the device's tensors",
			(long long)(at + bytes));
	e->host_batch = (struct data_batch){ .samples = p->micro_batch,
		.input = take_input(e, in->input, &at),
		.labels = take_input(e, in->labels, &at),
		.positions = take_input(e, in->positions, &at),
		.starts = take_input(e, in->starts, &at),
		.bags = take_input(e, in->bags, &at) };
	return 0;
}

void *engine_host_tensor(struct engine *e, int slot)
{
	struct engine_slot *s = &e->slots[slot];
	void *device = engine_piece_data(e, &s->piece);
	if (!e->backend->apart)
		return device;
	void *host = e->host + s->host_at;
	if (!s->host_is_fresh) {
		e->backend->enter(e->ctx);
		e->backend->get(e->ctx, host, device, slot_bytes(e, s));
	}
	s->host_is_fresh = true;
	return host;
}

void *engine_host_tensor_anew(struct engine *e, int slot)
{
	struct engine_slot *s = &e->slots[slot];
	s->host_is_fresh = true;
	return e->backend->apart ? e->host + s->host_at : engine_piece_data(e, &s->piece);
}

void engine_host_push(struct engine *e)
{
	for (int i = 0; i < e->slot_count && e->backend->apart; i++) {
		struct engine_slot *s = &e->slots[i];
		if (s->host_is_fresh)
			e->backend->put(
				e->ctx, engine_piece_data(e, &s->piece), e->host + s->host_at, slot_bytes(e, s));
	}
}

void engine_host_forget(struct engine *e)
{
	for (int i = 0; i < e->slot_count; i++)
		e->slots[i].host_is_fresh = false;
}

int engine_tensors_refresh(struct engine *e, struct err *err)
{
	if (!e->backend->apart)
		return 0;
	engine_host_forget(e);
	for (int i = 0; i < e->slot_count; i++)
		(void)engine_host_tensor(e, i);
	engine_finish(e);
	engine_exec_settle(e); /* a call that failed has let the device go on */
	return engine_exec_failed(e, err);
}

struct data_batch engine_host_batch(const struct engine *e)
{
	return e->backend->apart ? e->host_batch : engine_batch(e, &e->plan->inputs);
}

static void put_input(struct engine *e, int to, const void *from)
{
	void *device = engine_buffer(e, to);
	if (to >= 0 && device != from)
		e->backend->put(e->ctx, device, from, e->plan->buffers[to].bytes);
}

void engine_host_put_batch(struct engine *e, const struct data_batch *b)
{
	const struct plan_inputs *in = &e->plan->inputs;
	put_input(e, in->input, b->input);
	put_input(e, in->labels, b->labels);
	put_input(e, in->positions, b->positions);
	put_input(e, in->starts, b->starts);
	put_input(e, in->bags, b->bags);
}

void engine_host_put_ahead(struct engine *e, const struct data_batch *b)
{
	int to[INPUTS];
	list_inputs(&e->plan->arriving, to);
	const void *const from[INPUTS] = { b->input, b->labels, b->positions, b->starts, b->bags };
	for (size_t i = 0; i < ARRAY_LEN(to); i++)
		if (to[i] >= 0)
			e->backend->put_ahead(
				e->ctx, engine_buffer(e, to[i]), from[i], e->plan->buffers[to[i]].bytes);
}

void engine_host_take_ahead(struct engine *e)
{
	int from[INPUTS], to[INPUTS];
	list_inputs(&e->plan->arriving, from);
	list_inputs(&e->plan->inputs, to);
	for (size_t i = 0; i < ARRAY_LEN(to); i++)
		if (to[i] >= 0)
			e->backend->take_ahead(e->ctx, engine_buffer(e, to[i]), engine_buffer(e, from[i]),
				e->plan->buffers[to[i]].bytes);
}

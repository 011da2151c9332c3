/* SPDX-License-Identifier: Apache-2.0
 * Where each buffer lies in the arena. Persistent buffers come first, each kind of state in one
 * flat range in the order of the parameters, then what a pipeline's sections leave to each other;
 * the rest share what is left by their lifetimes: a walk over the operations with a sorted list of
 * free ranges, best fit. What is read ahead comes last. Called by plan_compile. */
#include "core/base/num.h"
#include "workers/plan/plan_private.h"

#include <stdlib.h>
#include <string.h>

enum { PAGE_BYTES = 4096 };

struct range {
	int64_t begin, bytes;
};

struct free_list {
	struct range *items;
	int count;
	int64_t end; /* of everything handed out so far */
};

static int64_t aligned(int64_t bytes)
{
	return num_round_up(bytes, PLAN_ALIGN_BYTES);
}

static void drop(struct free_list *f, int i)
{
	memmove(&f->items[i], &f->items[i + 1], (size_t)(f->count - i - 1) * sizeof(struct range));
	f->count--;
}

static int64_t take(struct free_list *f, int64_t bytes)
{
	int best = -1;
	for (int i = 0; i < f->count; i++)
		if (f->items[i].bytes >= bytes && (best < 0 || f->items[i].bytes < f->items[best].bytes))
			best = i;
	if (best >= 0) {
		struct range *r = &f->items[best];
		int64_t at = r->begin;
		r->begin += bytes;
		r->bytes -= bytes;
		if (r->bytes == 0)
			drop(f, best);
		return at;
	}
	int64_t at = f->end;
	if (f->count > 0 && f->items[f->count - 1].begin + f->items[f->count - 1].bytes == f->end) {
		at = f->items[f->count - 1].begin;
		f->count--;
	}
	f->end = at + bytes;
	return at;
}

/* The list never has more ranges than buffers, for which there is room. */
static void give(struct free_list *f, int64_t begin, int64_t bytes)
{
	int i = f->count;
	while (i > 0 && f->items[i - 1].begin > begin)
		i--;
	memmove(&f->items[i + 1], &f->items[i], (size_t)(f->count - i) * sizeof(struct range));
	f->items[i] = (struct range){ begin, bytes };
	f->count++;
	if (i + 1 < f->count && begin + bytes == f->items[i + 1].begin) {
		f->items[i].bytes += f->items[i + 1].bytes;
		drop(f, i + 1);
	}
	if (i > 0 && f->items[i - 1].begin + f->items[i - 1].bytes == begin) {
		f->items[i - 1].bytes += f->items[i].bytes;
		drop(f, i);
	}
}

static int64_t place(struct plan_buffer *b, int64_t at, int op_count)
{
	b->offset = at;
	b->slot_stride = aligned(b->bytes);
	b->first_op = 0;
	b->last_op = op_count - 1;
	return at + b->slots * b->slot_stride;
}

/* The flat ranges: one member of every dense trained parameter, in their order. */
enum member { MASTER, GRADIENT, MOMENT1, MOMENT2, AVERAGE, COPY, MEMBER_COUNT };

static int member_of(const struct plan_param *pr, enum member m)
{
	switch (m) {
	case MASTER: return pr->master;
	case GRADIENT: return pr->gradient;
	case MOMENT1: return pr->moment1;
	case MOMENT2: return pr->moment2;
	case AVERAGE: return pr->average;
	case COPY: return pr->weight == pr->master ? -1 : pr->weight;
	case MEMBER_COUNT: break;
	}
	return -1;
}

static bool is_ahead(const struct plan *p, int buffer)
{
	bool found = false;
	for (int i = 0; i < PLAN_STAGING; i++) {
		const struct plan_inputs *in = &p->staging[i];
		found |= buffer == in->input || buffer == in->labels || buffer == in->positions ||
			buffer == in->starts || buffer == in->bags;
	}
	return found;
}

/* Flat ranges first, then whatever else persists on the device. */
static int64_t place_persistent(struct plan *p)
{
	int64_t at = 0;
	for (int m = 0; m < MEMBER_COUNT; m++)
		for (int i = 0; i < p->param_count; i++) {
			int buffer = p->params[i].flat >= 0 ? member_of(&p->params[i], (enum member)m) : -1;
			if (buffer >= 0)
				at = place(&p->buffers[buffer], at, p->op_count);
		}
	for (int i = 0; i < p->buffer_count; i++)
		if (p->buffers[i].last_op == PLAN_OPS_MAX && !is_ahead(p, i))
			at = place(&p->buffers[i], at, p->op_count);
	return at;
}

/* From 0 on, until it is known where the device's end. */
static int64_t place_ahead(struct plan *p)
{
	int64_t at = 0;
	for (int i = 0; i < p->buffer_count; i++)
		if (is_ahead(p, i))
			at = place(&p->buffers[i], at, p->op_count);
	return at;
}

static void end_device(struct plan *p, int64_t device_bytes, int64_t ahead_bytes)
{
	p->device_bytes = num_round_up(device_bytes, PAGE_BYTES);
	p->total_bytes = p->device_bytes + num_round_up(ahead_bytes, PAGE_BYTES);
	for (int i = 0; i < p->buffer_count; i++)
		if (is_ahead(p, i))
			p->buffers[i].offset += p->device_bytes;
}

/* What one section leaves to another has a place for each micro-batch under way. */
static int64_t place_kept(struct plan *p, int64_t at)
{
	for (int i = 0; i < p->buffer_count; i++) {
		struct plan_buffer *b = &p->buffers[i];
		if (b->first_op < 0 || (b->first_op == 0 && b->last_op == p->op_count - 1))
			continue;
		int section = plan_pipeline_section(p, b->first_op);
		if (section == plan_pipeline_section(p, b->last_op))
			continue;
		b->slots = p->chunks[plan_pipeline_section_chunk(section)].slots;
		at = place(b, at, p->op_count);
	}
	return at;
}

/* Buffers in the order of their first (or last) operation: heads[op] starts a chain in next. */
static void chain(const struct plan *p, bool by_last, int *heads, int *next)
{
	for (int i = 0; i < p->op_count; i++)
		heads[i] = -1;
	for (int i = p->buffer_count - 1; i >= 0; i--) {
		const struct plan_buffer *b = &p->buffers[i];
		if (b->first_op < 0 || (b->first_op == 0 && b->last_op == p->op_count - 1))
			continue;
		int op = by_last ? b->last_op : b->first_op;
		next[i] = heads[op];
		heads[op] = i;
	}
}

int plan_layout(struct plan *p, struct err *err)
{
	size_t ops = (size_t)p->op_count, buffers = (size_t)p->buffer_count;
	cleanup(freep) int *index = calloc(2 * (ops + buffers), sizeof(int));
	cleanup(freep) struct range *items = calloc(buffers + 1, sizeof(*items));
	if (!index || !items)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for the plan");
	int *first = index, *last = first + ops, *next_first = last + ops,
		*next_last = next_first + buffers;
	int64_t ahead_bytes = place_ahead(p);
	struct free_list f = { .items = items, .end = place_kept(p, place_persistent(p)) };
	chain(p, false, first, next_first);
	chain(p, true, last, next_last);
	for (int op = 0; op < p->op_count; op++) {
		for (int i = first[op]; i >= 0; i = next_first[i])
			p->buffers[i].offset = take(&f, aligned(p->buffers[i].bytes));
		for (int i = last[op]; i >= 0; i = next_last[i])
			give(&f, p->buffers[i].offset, aligned(p->buffers[i].bytes));
	}
	end_device(p, f.end, ahead_bytes);
	return 0;
}

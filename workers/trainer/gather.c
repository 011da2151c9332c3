/* SPDX-License-Identifier: Apache-2.0
 * Tensors from all ranks to rank 0. Of ranks that keep the same, the first copy is sent. */
#include "workers/trainer/gather.h"

#include "workers/trainer/agree.h"
#include "workers/trainer/span.h"

#include <stdlib.h>
#include <string.h>

/* What one rank has of one tensor. */
struct part {
	struct engine_tensor of; /* as it is on that rank; data: rank 0's own */
	int rank;
};

struct gather {
	struct comm *comm;
	struct hf_weights tensors;
	/* Rank 0: */
	struct part *parts; /* by tensor, as they make up the whole */
	int part_count, part_cap;
	int *first;           /* by tensor: its first part; one more */
	char *block, *packed; /* of a block: as it is handed on; what a rank has sent of it */
};

static enum half_type type_of(const struct engine_tensor *t)
{
	return (enum half_type)t->type;
}
_Static_assert((int)HALF_F32 == (int)PLAN_F32 && (int)HALF_BF16 == (int)PLAN_BF16 &&
		(int)HALF_F16 == (int)PLAN_F16,
	"floats come first, in one order");

static bool is_sent(const struct engine_tensor *t)
{
	return t->copy == 0 && t->count > 0;
}

static int move(struct gather *g, bool send, int other, void *data, int64_t bytes, struct err *err)
{
	int64_t ticket = 0;
	const struct comm_args a = { .send = send ? data : NULL,
		.recv = send ? NULL : data,
		.count = bytes,
		.type = COMM_BYTES,
		.root = other,
		.deadline_ms = AGREE_WORK_MS }; /* until rank 0 has written what others have before */
	int rc = send ? g->comm->ops->send(g->comm, &a, &ticket, err)
				  : g->comm->ops->recv(g->comm, &a, &ticket, err);
	return rc < 0 ? rc : comm_wait(g->comm, ticket, err);
}

/* ------------------------------------------------------------------------------ who has what */

static int by_number(const void *a, const void *b)
{
	const struct engine_tensor *x = a, *y = b;
	return (x->number > y->number) - (x->number < y->number);
}

static int by_place(const void *a, const void *b)
{
	const struct part *x = a, *y = b;
	const struct span s = span_of(&x->of), t = span_of(&y->of);
	int order = by_number(&x->of, &y->of);
	return order != 0 ? order : span_compare(&s, &t);
}

/* A copy of the rank's list, in the order of the whole model. */
static int list_own(struct gather *g, const struct hf_weights *w, struct err *err)
{
	g->tensors.list = calloc((size_t)w->count + 1, sizeof(*g->tensors.list));
	if (g->tensors.list == NULL)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory to list %d tensors", w->count);
	if (w->count > 0)
		memcpy(g->tensors.list, w->list, (size_t)w->count * sizeof(*w->list));
	g->tensors.count = w->count;
	qsort(g->tensors.list, (size_t)w->count, sizeof(*w->list), by_number);
	return 0;
}

static int tell(struct gather *g, struct err *err)
{
	struct hf_weights *w = &g->tensors;
	int64_t count = 0;
	cleanup(freep) struct engine_tensor *sent = calloc((size_t)w->count + 1, sizeof(*sent));
	if (sent == NULL)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory to describe %d tensors", w->count);
	for (int i = 0; i < w->count; i++)
		if (is_sent(&w->list[i]))
			sent[count++] = w->list[i];
	int rc = move(g, true, 0, &count, sizeof(count), err);
	return rc < 0 || count == 0 ? rc : move(g, true, 0, sent, count * (int64_t)sizeof(*sent), err);
}

static int add_parts(
	struct gather *g, int rank, const struct engine_tensor *list, int64_t count, struct err *err)
{
	int64_t need = g->part_count + count;
	if (need > g->part_cap) {
		int64_t cap = need > 2 * (int64_t)g->part_cap ? need : 2 * (int64_t)g->part_cap;
		void *more =
			cap <= INT32_MAX / 2 ? realloc(g->parts, (size_t)cap * sizeof(*g->parts)) : NULL;
		if (more == NULL)
			return err_set(err, ERR_NO_MEMORY, NULL, "no memory for what the ranks have");
		g->parts = more;
		g->part_cap = (int)cap;
	}
	for (int64_t i = 0; i < count; i++)
		if (is_sent(&list[i]))
			g->parts[g->part_count++] = (struct part){ .of = list[i], .rank = rank };
	return 0;
}

static int hear(struct gather *g, int rank, struct err *err)
{
	int64_t count = 0;
	int rc = move(g, false, rank, &count, sizeof(count), err);
	if (rc < 0 || count == 0)
		return rc;
	cleanup(freep) struct engine_tensor *list = calloc((size_t)count, sizeof(*list));
	if (list == NULL)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for what rank %d has", rank);
	rc = move(g, false, rank, list, count * (int64_t)sizeof(*list), err);
	for (int64_t i = 0; i < count && rc == 0; i++) /* pointers of another process */
		list[i].data = NULL;
	return rc < 0 ? rc : add_parts(g, rank, list, count, err);
}

/* The whole tensor that a part is of. */
static struct engine_tensor whole_of(const struct engine_tensor *part)
{
	struct engine_tensor t = *part;
	t.dtype = half_word(type_of(part));
	t.count = hf_weights_elements(part);
	t.cut = plan_cut_none(t.count);
	t.begin = 0;
	t.bytes = t.count * plan_type_bytes(t.type);
	t.copies = 1;
	t.data = NULL;
	return t;
}

static bool is_part_of(const struct engine_tensor *part, const struct engine_tensor *whole)
{
	return part->kind == whole->kind && part->type == whole->type && part->rank == whole->rank &&
		strcmp(part->name, whole->name) == 0 &&
		memcmp(part->shape, whole->shape, sizeof(part->shape)) == 0;
}

/* Tensor i from the part at which it begins; returns where the next one does. */
static int put_together(struct gather *g, int i, int at, int *ret_end, struct err *err)
{
	struct engine_tensor *t = &g->tensors.list[i];
	struct span_tiling tiling = { 0 };
	*t = whole_of(&g->parts[at].of);
	bool fits = true;
	for (; at < g->part_count && g->parts[at].of.number == t->number && fits; at++) {
		const struct span s = span_of(&g->parts[at].of);
		fits = is_part_of(&g->parts[at].of, t) && span_add(&tiling, &s, t->count) == SPAN_FITS;
	}
	if (!fits || !span_is_whole(&tiling, t->count))
		return err_set(err, ERR_INTERNAL, t->name,
			"what the ranks have of %s is not the whole of it, once (part of rank %d)", t->name,
			g->parts[at - 1].rank);
	*ret_end = at;
	return 0;
}

static int list_whole(struct gather *g, struct err *err)
{
	int count = 0, rc = 0;
	qsort(g->parts, (size_t)g->part_count, sizeof(*g->parts), by_place);
	for (int k = 0; k < g->part_count; k++)
		count += k == 0 || g->parts[k].of.number != g->parts[k - 1].of.number;
	hf_weights_finish(&g->tensors);
	g->tensors.list = calloc((size_t)count + 1, sizeof(*g->tensors.list));
	g->first = calloc((size_t)count + 1, sizeof(*g->first));
	if (g->tensors.list == NULL || g->first == NULL)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory to list %d tensors", count);
	g->tensors.count = count;
	for (int i = 0; i < count && rc == 0; i++)
		rc = put_together(g, i, g->first[i], &g->first[i + 1], err);
	return rc;
}

static int hear_all(struct gather *g, struct err *err)
{
	g->block = malloc(GATHER_BLOCK_BYTES);
	g->packed = malloc(GATHER_BLOCK_BYTES);
	if (g->block == NULL || g->packed == NULL)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory to gather a model");
	int rc = add_parts(g, 0, g->tensors.list, g->tensors.count, err);
	for (int r = 1; r < g->comm->size && rc == 0; r++)
		rc = hear(g, r, err);
	return rc < 0 ? rc : list_whole(g, err);
}

int gather_create(
	struct mesh *mesh, const struct hf_weights *w, struct gather **ret, struct err *err)
{
	cleanup(gather_destroyp) struct gather *g = calloc(1, sizeof(*g));
	if (g == NULL)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory to gather a model");
	g->comm = mesh->save;
	int rc = list_own(g, w, err);
	if (rc == 0)
		rc = g->comm->rank == 0 ? hear_all(g, err) : tell(g, err);
	if (rc < 0) /* the others may be in the middle of it */
		comm_abort(g->comm, "the ranks could not tell what they have of the model");
	if (rc == 0)
		rc = agree_on(g->comm, rc, err);
	if (rc < 0)
		return rc;
	*ret = take_ptr(g);
	return 0;
}

void gather_destroy(struct gather *g)
{
	if (g == NULL)
		return;
	hf_weights_finish(&g->tensors);
	free(g->parts);
	free(g->first);
	free(g->block);
	free(g->packed);
	free(g);
}

void gather_destroyp(struct gather **g)
{
	gather_destroy(*g);
	*g = NULL;
}

const struct hf_weights *gather_tensors(const struct gather *g)
{
	return &g->tensors;
}

/* ------------------------------------------------------------------------------ what they have */

/* The end of the block of t that an element is in. */
static int64_t block_end(const struct engine_tensor *t, int64_t element)
{
	const int64_t block = GATHER_BLOCK_BYTES / plan_type_bytes(t->type);
	int64_t total = hf_weights_elements(t), end = (element / block + 1) * block;
	return end < total ? end : total;
}

static char *data_at(const struct engine_tensor *t, int64_t local)
{
	return (char *)t->data + (local - t->begin) * plan_type_bytes(t->type);
}

static bool is_one_run(const struct span *s)
{
	int64_t last = plan_cut_at(&s->cut, s->begin + s->count - 1);
	return last - plan_cut_at(&s->cut, s->begin) == s->count - 1;
}

/* What one rank has of the block [begin, end), put where it belongs. */
static int place(struct gather *g, const struct part *p, const struct span *in, int64_t begin,
	int64_t end, struct err *err)
{
	const struct engine_tensor *t = &p->of;
	const enum half_type type = type_of(t);
	const int64_t unit = plan_type_bytes(t->type);
	const struct span block = span_stretch(hf_weights_elements(t), begin, end);
	char *from = p->rank == 0 ? data_at(t, in->begin) : g->packed;
	int rc = 0;
	if (p->rank != 0 && is_one_run(in)) {
		int64_t at = (plan_cut_at(&in->cut, in->begin) - begin) * unit;
		return move(g, false, p->rank, g->block + at, in->count * unit, err);
	}
	if (p->rank != 0)
		rc = move(g, false, p->rank, g->packed, in->count * unit, err);
	if (rc == 0)
		span_copy(&block, type, g->block, in, type, from);
	return rc;
}

int gather_next(
	struct gather *g, int i, int64_t at, const void **ret, int64_t *ret_bytes, struct err *err)
{
	const struct engine_tensor *t = &g->tensors.list[i];
	const int64_t unit = plan_type_bytes(t->type);
	const int64_t begin = at / unit, end = block_end(t, begin);
	const void *data = g->block;
	int rc = 0;
	for (int k = g->first[i]; k < g->first[i + 1] && rc == 0; k++) {
		const struct part *p = &g->parts[k];
		const struct span s = span_of(&p->of), in = span_inside(&s, begin, end);
		if (in.count == end - begin && p->rank == 0)
			data = data_at(&p->of, in.begin); /* it is there already */
		else if (in.count > 0)
			rc = place(g, p, &in, begin, end, err);
	}
	if (rc < 0)
		return rc;
	*ret = data;
	*ret_bytes = (end - begin) * unit;
	return 0;
}

int gather_send(struct gather *g, int i, struct err *err)
{
	const struct engine_tensor *t = &g->tensors.list[i];
	const struct span own = span_of(t);
	int rc = 0;
	if (!is_sent(t))
		return 0;
	const int64_t last = plan_cut_at(&t->cut, t->begin + t->count - 1);
	for (int64_t at = plan_cut_at(&t->cut, t->begin), end = 0; at <= last && rc == 0; at = end) {
		end = block_end(t, at);
		const struct span in = span_inside(&own, at, end); /* side by side here, in any case */
		if (in.count > 0)
			rc = move(g, true, 0, data_at(t, in.begin), in.count * plan_type_bytes(t->type), err);
	}
	return rc;
}

/* SPDX-License-Identifier: Apache-2.0
 * Tensors from all ranks to rank 0. */
#include "workers/trainer/gather.h"

#include <stdlib.h>

struct range {
	int64_t begin, count;
};

struct gather {
	struct comm *comm;
	const struct hf_weights *w;
	struct range *ranges; /* [rank][tensor] */
	char *block;          /* rank 0: what came last */
};

static const struct range *range_of(const struct gather *g, int rank, int i)
{
	return &g->ranges[(int64_t)rank * g->w->count + i];
}

static int64_t unit_of(const struct gather *g, int i)
{
	return plan_type_bytes(g->w->list[i].type);
}

/* The first rank that has the element, -1: none. */
static int owner_of(const struct gather *g, int i, int64_t element)
{
	for (int r = 0; r < g->comm->size; r++) {
		const struct range *x = range_of(g, r, i);
		if (element >= x->begin && element < x->begin + x->count)
			return r;
	}
	return -1;
}

static int exchange(struct gather *g, struct err *err)
{
	const int count = g->w->count;
	int64_t ticket = 0;
	struct range *own = g->ranges + (int64_t)g->comm->rank * count;
	for (int i = 0; i < count; i++)
		own[i] = (struct range){ g->w->list[i].begin, g->w->list[i].count };
	const struct comm_args a = {
		.send = own, .recv = g->ranges, .count = count * (int64_t)sizeof(*own), .type = COMM_BYTES
	};
	int rc = g->comm->ops->all_gather(g->comm, &a, &ticket, err);
	return rc < 0 ? rc : comm_wait(g->comm, ticket, err);
}

int gather_create(
	struct mesh *mesh, const struct hf_weights *w, struct gather **ret, struct err *err)
{
	cleanup(gather_destroyp) struct gather *g = calloc(1, sizeof(*g));
	if (g == NULL)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory to gather a model");
	g->comm = mesh->save;
	g->w = w;
	g->ranges = calloc((size_t)g->comm->size * (size_t)w->count + 1, sizeof(*g->ranges));
	g->block = g->comm->rank == 0 ? malloc(GATHER_BLOCK_BYTES) : NULL;
	if (g->ranges == NULL || (g->comm->rank == 0 && g->block == NULL))
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory to gather a model");
	int rc = exchange(g, err);
	if (rc < 0)
		return rc;
	*ret = take_ptr(g);
	return 0;
}

void gather_destroy(struct gather *g)
{
	if (g == NULL)
		return;
	free(g->ranges);
	free(g->block);
	free(g);
}

void gather_destroyp(struct gather **g)
{
	gather_destroy(*g);
	*g = NULL;
}

int gather_next(
	struct gather *g, int i, int64_t at, const void **ret, int64_t *ret_bytes, struct err *err)
{
	const int64_t unit = unit_of(g, i), element = at / unit;
	const struct engine_tensor *t = &g->w->list[i];
	int from = owner_of(g, i, element);
	if (from < 0)
		return err_set(err, ERR_INTERNAL, t->name, "no rank has element %lld of %s",
			(long long)element, t->name);
	const struct range *x = range_of(g, from, i);
	int64_t bytes = (x->begin + x->count - element) * unit;
	if (from == 0) {
		*ret = (const char *)t->data + (element - t->begin) * unit;
		*ret_bytes = bytes;
		return 0;
	}
	if (bytes > GATHER_BLOCK_BYTES)
		bytes = GATHER_BLOCK_BYTES;
	int64_t ticket = 0;
	const struct comm_args a = {
		.recv = g->block, .count = bytes, .type = COMM_BYTES, .root = from
	};
	int rc = g->comm->ops->recv(g->comm, &a, &ticket, err);
	if (rc == 0)
		rc = comm_wait(g->comm, ticket, err);
	if (rc < 0)
		return rc;
	*ret = g->block;
	*ret_bytes = bytes;
	return 0;
}

int gather_send(struct gather *g, int i, struct err *err)
{
	const struct engine_tensor *t = &g->w->list[i];
	int rc = 0;
	if (t->count == 0 || owner_of(g, i, t->begin) != g->comm->rank)
		return 0;
	for (int64_t at = 0, bytes = 0; at < t->bytes && rc == 0; at += bytes) {
		int64_t ticket = 0;
		bytes = t->bytes - at < GATHER_BLOCK_BYTES ? t->bytes - at : GATHER_BLOCK_BYTES;
		const struct comm_args a = {
			.send = (const char *)t->data + at, .count = bytes, .type = COMM_BYTES
		};
		rc = g->comm->ops->send(g->comm, &a, &ticket, err);
		if (rc == 0)
			rc = comm_wait(g->comm, ticket, err);
	}
	return rc;
}

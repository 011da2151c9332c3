/* SPDX-License-Identifier: Apache-2.0
 * What other ranks have of a model, of which no rank has all tensors: enough to tell a tensor of
 * theirs in a file from one that the model does not have. Part of hf_weights.h. */
#include "workers/trainer/hf_weights.h"

#include "workers/engine/mesh.h"
#include "workers/trainer/agree.h"

#include <stdlib.h>
#include <string.h>

/* FNV-1a. Two names that share 64 bits would only hide that a file has a tensor too many. */
static uint64_t sum_of(const char *name)
{
	uint64_t sum = 0xcbf29ce484222325u;
	for (; *name != '\0'; name++)
		sum = (sum ^ (uint8_t)*name) * 0x100000001b3u;
	return sum;
}

static int by_value(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;
	return (*x > *y) - (*x < *y);
}

static int share(struct comm *c, const void *send, void *recv, size_t bytes, struct err *err)
{
	int64_t ticket = 0;
	const struct comm_args a = { .send = send,
		.recv = recv,
		.count = (int64_t)bytes,
		.type = COMM_BYTES,
		.deadline_ms = AGREE_WORK_MS };
	int rc = c->ops->all_gather(c, &a, &ticket, err);
	return rc < 0 ? rc : comm_wait(c, ticket, err);
}

/* Lists of one length: a rank that has fewer fills up with its first. */
static int share_sums(
	struct comm *c, const struct hf_weights *w, int64_t most, uint64_t *ret_all, struct err *err)
{
	uint64_t *own = ret_all + c->rank * most;
	for (int64_t i = 0; i < most && w->count > 0; i++)
		own[i] = sum_of(w->list[i < w->count ? i : 0].name);
	return share(c, own, ret_all, (size_t)most * sizeof(*own), err);
}

int hf_weights_meet(struct comm *others, struct hf_weights *w, struct err *err)
{
	const int64_t own = w->count;
	int64_t most = 0;
	cleanup(freep) int64_t *counts = calloc((size_t)others->size, sizeof(*counts));
	cleanup(freep) uint64_t *all = NULL;
	int rc = counts != NULL ? 0 : err_set(err, ERR_NO_MEMORY, NULL, "no memory for counts");
	rc = agree_on(others, rc, err);
	if (rc == 0)
		rc = share(others, &own, counts, sizeof(own), err);
	if (rc < 0)
		return rc;
	for (int r = 0; r < others->size; r++)
		most = counts[r] > most ? counts[r] : most;
	all = calloc((size_t)(most * others->size) + 1, sizeof(*all));
	if (all == NULL)
		rc = err_set(err, ERR_NO_MEMORY, NULL, "no memory for the names of all ranks' tensors");
	rc = agree_on(others, rc, err);
	if (rc == 0)
		rc = share_sums(others, w, most, all, err);
	if (rc < 0)
		return rc;
	qsort(all, (size_t)(most * others->size), sizeof(*all), by_value);
	w->elsewhere_count = (int)(most * others->size);
	w->elsewhere = take_ptr(all);
	return 0;
}

bool hf_weights_elsewhere(const struct hf_weights *w, const char *name)
{
	const uint64_t sum = sum_of(name);
	return w->elsewhere != NULL &&
		bsearch(&sum, w->elsewhere, (size_t)w->elsewhere_count, sizeof(sum), by_value) != NULL;
}

int hf_weights_of_rank(struct engine *e, struct mesh *mesh, struct hf_weights *ret, struct err *err)
{
	struct hf_weights w = { 0 };
	int rc = hf_weights_of(e, &w, err);
	if (mesh != NULL && mesh->place.pipeline > 1) {
		rc = agree_on(mesh->save, rc, err);
		if (rc == 0)
			rc = hf_weights_meet(mesh->save, &w, err);
	}
	if (rc < 0) {
		hf_weights_finish(&w);
		return rc;
	}
	*ret = w;
	return 0;
}

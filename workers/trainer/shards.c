/* SPDX-License-Identifier: Apache-2.0
 * What one rank writes of a checkpoint. Part of shards.h. */
#include "workers/trainer/shards.h"

#include "core/base/file.h"
#include "workers/trainer/agree.h"
#include "workers/trainer/files.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool shards_are_used(const struct plan_mesh *place)
{
	return place->zero > 0 && place->data > 1;
}

void shards_name(int rank, int size, char ret_name[static MANIFEST_NAME_MAX])
{
	snprintf(ret_name, MANIFEST_NAME_MAX, "shard-%05d-of-%05d.safetensors", rank + 1, size);
}

bool shards_include(const struct engine_tensor *t, bool lora)
{
	return t->kind != ENGINE_PARAMETER || hf_weights_is_adapter(t->name) == lora;
}

static void put_piece(const struct engine_tensor *t, struct safetensors_tensor *s)
{
	snprintf(s->name, sizeof(s->name), "%s", t->name);
	snprintf(s->dtype, sizeof(s->dtype), "%s", t->dtype);
	s->rank = 1;
	s->shape[0] = t->count;
	s->bytes = t->bytes;
	s->data = t->data;
	size_t used = (size_t)snprintf(s->note, sizeof(s->note), "%" PRId64, t->begin);
	for (int d = 0; d < t->rank; d++)
		used += (size_t)snprintf(s->note + used, sizeof(s->note) - used, "%s%" PRId64,
			d == 0 ? " of " : "x", t->shape[d]);
}

/* Bytes of what every rank has and one has to write. */
static int64_t alike_bytes(const struct hf_weights *w, bool lora)
{
	int64_t bytes = 0;
	for (int i = 0; i < w->count; i++)
		if (w->list[i].copies > 1 && shards_include(&w->list[i], lora))
			bytes += w->list[i].bytes;
	return bytes;
}

int shards_list(const struct hf_weights *w, const struct plan_mesh *place, bool lora,
	struct safetensors_tensor **ret, int *ret_count, struct err *err)
{
	const int rank = plan_mesh_rank(place), size = plan_mesh_size(place);
	double total = (double)alike_bytes(w, lora), before = 0;
	struct safetensors_tensor *list = calloc((size_t)w->count + 1, sizeof(*list));
	int count = 0;
	if (list == NULL)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory to list %d tensors", w->count);
	for (int i = 0; i < w->count; i++) {
		const struct engine_tensor *t = &w->list[i];
		if (!shards_include(t, lora))
			continue;
		/* The same sum on every rank: each takes the tensors that begin in its part of it. */
		bool mine = t->copies == 1 || (int)(before / total * size) == rank;
		before += t->copies > 1 ? (double)t->bytes : 0;
		if (mine && t->count > 0)
			put_piece(t, &list[count++]);
	}
	*ret = list;
	*ret_count = count;
	return 0;
}

/* Rank 0 leaves a mark, after every rank has removed what an earlier run left of one. */
int shards_meet(struct comm *others, const char *dir, bool *ret_apart, struct err *err)
{
	char mark[FILE_PATH_MAX];
	uint8_t seen = 0;
	int64_t ticket = 0;
	cleanup(freep) uint8_t *all = calloc((size_t)others->size, 1);
	int rc = all == NULL ? err_set(err, ERR_NO_MEMORY, NULL, "no memory for what ranks see")
						 : file_join(mark, dir, ".ranks", err);
	if (rc == 0)
		(void)unlink(mark);
	rc = agree_on(others, rc, err);
	if (rc < 0)
		return rc;
	if (others->rank == 0)
		rc = files_write(mark, "", 0, err);
	rc = agree_on(others, rc, err);
	if (rc < 0)
		return rc;
	seen = file_exists(mark);
	const struct comm_args a = { .send = &seen, .recv = all, .count = 1, .type = COMM_BYTES };
	rc = others->ops->all_gather(others, &a, &ticket, err);
	if (rc == 0)
		rc = comm_wait(others, ticket, err);
	(void)unlink(mark);
	if (rc < 0)
		return rc;
	*ret_apart = memchr(all, 0, (size_t)others->size) != NULL;
	return 0;
}

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

enum { SHARE_BYTES_MIN = 256 * 1024 }; /* of a tensor that is written in parts */

bool shards_are_used(const struct plan_mesh *place)
{
	return (place->zero > 0 && place->data > 1) || place->tensor > 1 || place->pipeline > 1;
}

void shards_name(int rank, int size, char ret_name[static MANIFEST_NAME_MAX])
{
	snprintf(ret_name, MANIFEST_NAME_MAX, "shard-%05d-of-%05d.safetensors", rank + 1, size);
}

bool shards_include(const struct engine_tensor *t, bool lora)
{
	return t->kind != ENGINE_PARAMETER || hf_weights_is_adapter(t->name) == lora;
}

/* A rank's share of what several have: large tensors in parts, so that each writes as much, small
 * ones whole, in turns; nothing of what an earlier stage has too. Follows from the tensor alone,
 * since ranks that share one may not share the next. */
static void share_of(const struct engine_tensor *t, int64_t *ret_begin, int64_t *ret_count)
{
	const int n = t->copies;
	bool parts = t->bytes >= SHARE_BYTES_MIN && t->copy < n;
	*ret_begin = parts ? t->count / n * t->copy : 0;
	*ret_count = t->number % n == t->copy ? t->count : 0;
	if (parts)
		*ret_count = t->copy == n - 1 ? t->count - *ret_begin : t->count / n;
}

static void put_place(const struct engine_tensor *t, int64_t begin, struct safetensors_tensor *s)
{
	const struct plan_cut *c = &t->cut;
	size_t used = (size_t)snprintf(s->note, sizeof(s->note), "%" PRId64, begin);
	for (int d = 0; d < t->rank; d++)
		used += (size_t)snprintf(s->note + used, sizeof(s->note) - used, "%s%" PRId64,
			d == 0 ? " of " : "x", t->shape[d]);
	if (c->run != c->period)
		snprintf(s->note + used, sizeof(s->note) - used, " cut %" PRId64 "/%" PRId64 "+%" PRId64,
			c->run, c->period, c->first);
}

static bool put_piece(const struct engine_tensor *t, struct safetensors_tensor *s)
{
	int64_t begin = 0, unit = plan_type_bytes(t->type);
	share_of(t, &begin, &s->shape[0]);
	snprintf(s->name, sizeof(s->name), "%s", t->name);
	snprintf(s->dtype, sizeof(s->dtype), "%s", t->dtype);
	s->rank = 1;
	s->bytes = s->shape[0] * unit;
	s->data = (const char *)t->data + begin * unit;
	put_place(t, t->begin + begin, s);
	return s->shape[0] > 0;
}

int shards_list(const struct hf_weights *w, bool lora, struct safetensors_tensor **ret,
	int *ret_count, struct err *err)
{
	struct safetensors_tensor *list = calloc((size_t)w->count + 1, sizeof(*list));
	int count = 0;
	if (list == NULL)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory to list %d tensors", w->count);
	for (int i = 0; i < w->count; i++)
		if (shards_include(&w->list[i], lora) && put_piece(&w->list[i], &list[count]))
			count++;
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

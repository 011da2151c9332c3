/* SPDX-License-Identifier: Apache-2.0
 * Listing an engine's tensors and writing them as Hugging Face files. */
#include "workers/trainer/hf_weights.h"

#include "core/json/writer.h"
#include "workers/trainer/gather.h"
#include "workers/trainer/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char adapter_prefix[] = "base_model.model.";

int hf_weights_of(struct engine *e, struct hf_weights *ret, struct err *err)
{
	int count = engine_tensor_count(e);
	struct engine_tensor *list = calloc((size_t)count + 1, sizeof(*list));
	if (list == NULL)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory to list %d tensors", count);
	for (int i = 0; i < count; i++)
		engine_tensor_at(e, i, &list[i]);
	*ret = (struct hf_weights){ .list = list, .count = count };
	return 0;
}

void hf_weights_finish(struct hf_weights *w)
{
	free(w->list);
	free(w->elsewhere);
	*w = (struct hf_weights){ 0 };
}

int64_t hf_weights_elements(const struct engine_tensor *t)
{
	int64_t count = 1;
	for (int d = 0; d < t->rank; d++)
		count *= t->shape[d];
	return count;
}

bool hf_weights_is_adapter(const char *name)
{
	return strncmp(name, adapter_prefix, sizeof(adapter_prefix) - 1) == 0;
}

/* ------------------------------------------------------------------------------ what is written */

struct set {
	struct safetensors_tensor *list;
	int *from; /* of each tensor, its index in the engine's list; -1: it is none of the engine's */
	int count;
	int *shard; /* of each tensor, from 0 */
	int shards;
	int64_t bytes;
};

static void set_finish(struct set *s)
{
	free(s->list);
	free(s->from);
	free(s->shard);
}

/* -1: there is none. */
static int average_of(const struct hf_weights *w, const char *name)
{
	for (int i = 0; i < w->count; i++)
		if (w->list[i].kind == ENGINE_AVERAGE &&
			strcmp(w->list[i].name + sizeof("average.") - 1, name) == 0)
			return i;
	return -1;
}

static void add(struct set *s, const char *name, const struct hf_weights *w, int from)
{
	const struct engine_tensor *t = &w->list[from];
	s->from[s->count] = from;
	struct safetensors_tensor *out = &s->list[s->count++];
	snprintf(out->name, sizeof(out->name), "%s", name);
	snprintf(out->dtype, sizeof(out->dtype), "%s", t->dtype);
	out->rank = t->rank;
	memcpy(out->shape, t->shape, sizeof(t->shape[0]) * (size_t)t->rank);
	out->bytes = hf_weights_elements(t) * plan_type_bytes(t->type);
	out->data = t->data;
	s->bytes += out->bytes;
}

/* torch's batch norms count the batches they have seen, in a buffer that no plan has. */
static void add_batches(struct set *s, const char *running_var, const int64_t *batches)
{
	s->from[s->count] = -1;
	struct safetensors_tensor *out = &s->list[s->count++];
	int stem = (int)(strlen(running_var) - sizeof("running_var") + 1);
	snprintf(out->name, sizeof(out->name), "%.*snum_batches_tracked", stem, running_var);
	snprintf(out->dtype, sizeof(out->dtype), "I64");
	out->bytes = sizeof(*batches);
	out->data = batches;
	s->bytes += out->bytes;
}

static bool ends_with(const char *name, const char *end)
{
	size_t n = strlen(name), k = strlen(end);
	return n >= k && strcmp(name + n - k, end) == 0;
}

static int collect(
	const struct hf_weights *w, const struct hf_weights_options *o, struct set *s, struct err *err)
{
	s->list = calloc(2 * (size_t)w->count + 1, sizeof(*s->list));
	s->from = calloc(2 * (size_t)w->count + 1, sizeof(*s->from));
	s->shard = calloc(2 * (size_t)w->count + 1, sizeof(*s->shard));
	if (s->list == NULL || s->from == NULL || s->shard == NULL)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory to list %d tensors", w->count);
	for (int i = 0; i < w->count; i++) {
		const struct engine_tensor *t = &w->list[i];
		if (t->kind != ENGINE_PARAMETER || hf_weights_is_adapter(t->name) != o->adapters)
			continue;
		int average = o->averages ? average_of(w, t->name) : -1;
		add(s, t->name, w, average >= 0 ? average : i);
		if (t->role == PLAN_STATE && ends_with(t->name, ".running_var"))
			add_batches(s, t->name, &o->batches);
	}
	return 0;
}

/* In order, a new shard whenever the next tensor does not fit. */
static void split(struct set *s, int64_t shard_bytes)
{
	do {
		int64_t used = 0;
		s->shards = 1;
		for (int i = 0; i < s->count; i++) {
			if (used > 0 && used + s->list[i].bytes > shard_bytes) {
				s->shards++;
				used = 0;
			}
			used += s->list[i].bytes;
			s->shard[i] = s->shards - 1;
		}
		shard_bytes *= 2;
	} while (s->shards > HF_SHARDS_MAX);
}

static void shard_name(
	const struct set *s, const char *stem, int shard, char ret_name[static MANIFEST_NAME_MAX])
{
	if (s->shards == 1)
		snprintf(ret_name, MANIFEST_NAME_MAX, "%.64s.safetensors", stem);
	else
		snprintf(ret_name, MANIFEST_NAME_MAX, "%.64s-%05d-of-%05d.safetensors", stem, shard + 1,
			s->shards);
}

struct entry {
	const char *name;
	int shard;
};

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct entry *)a)->name, ((const struct entry *)b)->name);
}

static int write_index(const struct set *s, const char *stem, struct folder *f, struct err *err)
{
	char name[MANIFEST_NAME_MAX];
	struct json_writer w;
	cleanup(buf_finish) struct buf text;
	cleanup(freep) struct entry *entries = calloc((size_t)s->count, sizeof(*entries));
	if (entries == NULL)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for the index");
	for (int i = 0; i < s->count; i++)
		entries[i] = (struct entry){ s->list[i].name, s->shard[i] };
	qsort(entries, (size_t)s->count, sizeof(*entries), by_name);
	buf_init(&text, HF_INDEX_BYTES_MAX);
	json_writer_init(&w, &text);
	json_begin_object(&w);
	json_key(&w, "metadata");
	json_begin_object(&w);
	json_field_i64(&w, "total_size", s->bytes);
	json_end_object(&w);
	json_key(&w, "weight_map");
	json_begin_object(&w);
	for (int i = 0; i < s->count; i++) {
		shard_name(s, stem, entries[i].shard, name);
		json_field_str(&w, entries[i].name, name);
	}
	json_end_object(&w);
	json_end_object(&w);
	buf_char(&text, '\n');
	snprintf(name, sizeof(name), "%.64s.safetensors.index.json", stem);
	return folder_add_text(f, name, &text, err);
}

/* What one file is written from. */
struct source {
	const struct set *set;
	struct gather *gather; /* NULL: everything is in memory */
	int first;             /* of the file, in the set */
};

static int next_bytes(
	void *ctx, int i, int64_t at, const void **ret, int64_t *ret_bytes, struct err *err)
{
	const struct source *x = ctx;
	const struct safetensors_tensor *t = &x->set->list[x->first + i];
	int from = x->set->from[x->first + i];
	if (x->gather != NULL && from >= 0)
		return gather_next(x->gather, from, at, ret, ret_bytes, err);
	*ret = (const char *)t->data + at;
	*ret_bytes = t->bytes - at;
	return 0;
}

/* The same tensors in the same order as where they are written. */
static int send_all(const struct set *s, struct gather *gather, struct err *err)
{
	int rc = 0;
	for (int i = 0; i < s->count && rc == 0; i++)
		if (gather != NULL && s->from[i] >= 0)
			rc = gather_send(gather, s->from[i], err);
	return rc;
}

static int write_files(
	const struct set *s, const char *stem, struct gather *gather, struct folder *f, struct err *err)
{
	struct source x = { .set = s, .gather = gather };
	int rc = 0;
	for (int shard = 0; shard < s->shards && rc == 0; shard++) {
		char name[MANIFEST_NAME_MAX], path[FILE_PATH_MAX];
		int end = x.first;
		while (end < s->count && s->shard[end] == shard)
			end++;
		shard_name(s, stem, shard, name);
		rc = folder_add(f, name, path, err);
		if (rc == 0)
			rc =
				safetensors_write_from(path, s->list + x.first, end - x.first, next_bytes, &x, err);
		x.first = end;
	}
	return rc == 0 && s->shards > 1 ? write_index(s, stem, f, err) : rc;
}

int hf_weights_write(const struct hf_weights *w, const char *stem,
	const struct hf_weights_options *o, struct folder *f, struct err *err)
{
	cleanup(set_finish) struct set s = { 0 };
	int rc = collect(o->gather != NULL ? gather_tensors(o->gather) : w, o, &s, err);
	if (rc < 0)
		return rc;
	if (f == NULL)
		return send_all(&s, o->gather, err);
	split(&s, o->shard_bytes > 0 ? o->shard_bytes : HF_SHARD_BYTES);
	return write_files(&s, stem, o->gather, f, err);
}

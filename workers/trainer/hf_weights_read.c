/* SPDX-License-Identifier: Apache-2.0
 * Loading Hugging Face files into an engine's tensors. Part of hf_weights.h. */
#include "workers/trainer/hf_weights.h"

#include "core/json/reader.h"
#include "workers/trainer/safetensors.h"
#include "workers/trainer/shards.h"
#include "workers/trainer/span.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { INDEX_NAME_MAX = 128, SHAPE_TEXT_MAX = 96, HEAD_BLOCK = 1024 };

/* One reading. */
struct load {
	const struct hf_weights *w;
	const struct spec_model *model;
	const char *dir;
	bool adapters;
	bool *loaded;                   /* by tensor of w */
	struct json_doc *index;         /* NULL: one file */
	char head_file[INDEX_NAME_MAX]; /* a file with a head that should be the embedding; "" */
	char head_name[SAFETENSORS_NAME_MAX];
	struct err *err;
};

static const char *family_prefix(const struct load *l)
{
	switch (l->model->family) {
	case SPEC_GPT2: return "transformer.";
	case SPEC_LLAMA: return "model.";
	default: return "";
	}
}

static const char *embedding_name(const struct load *l)
{
	return l->model->family == SPEC_GPT2 ? "transformer.wte.weight" : "model.embed_tokens.weight";
}

static bool ends_with(const char *name, const char *end)
{
	size_t n = strlen(name), k = strlen(end);
	return n >= k && strcmp(name + n - k, end) == 0;
}

/* Masks, rotation tables and counters that older files carry. */
static bool is_buffer(const struct load *l, const char *name)
{
	switch (l->model->family) {
	case SPEC_GPT2: return ends_with(name, ".attn.bias") || ends_with(name, ".attn.masked_bias");
	case SPEC_LLAMA: return ends_with(name, ".rotary_emb.inv_freq");
	case SPEC_CNN: return ends_with(name, ".num_batches_tracked");
	default: return false;
	}
}

static bool wanted(const struct load *l, int i)
{
	const struct engine_tensor *t = &l->w->list[i];
	return t->kind == ENGINE_PARAMETER && hf_weights_is_adapter(t->name) == l->adapters;
}

static int find(const struct load *l, const char *name)
{
	for (int i = 0; i < l->w->count; i++)
		if (wanted(l, i) && strcmp(l->w->list[i].name, name) == 0)
			return i;
	return -1;
}

static int find_any_prefix(const struct load *l, const char *name)
{
	char full[SAFETENSORS_NAME_MAX + 16];
	int i = find(l, name);
	if (i >= 0 || l->adapters)
		return i;
	snprintf(full, sizeof(full), "%s%s", family_prefix(l), name);
	return find(l, full);
}

/* Another rank reads it. */
static bool is_elsewhere(const struct load *l, const char *name)
{
	char full[SAFETENSORS_NAME_MAX + 16];
	snprintf(full, sizeof(full), "%s%s", family_prefix(l), name);
	return hf_weights_elsewhere(l->w, name) || (!l->adapters && hf_weights_elsewhere(l->w, full));
}

static const char *shape_text(int rank, const int64_t *shape, char ret[static SHAPE_TEXT_MAX])
{
	size_t used = (size_t)snprintf(ret, SHAPE_TEXT_MAX, "[");
	for (int d = 0; d < rank && used + 24 < SHAPE_TEXT_MAX; d++)
		used += (size_t)snprintf(
			ret + used, SHAPE_TEXT_MAX - used, "%s%lld", d > 0 ? ", " : "", (long long)shape[d]);
	snprintf(ret + used, SHAPE_TEXT_MAX - used, "]");
	return ret;
}

static struct span whole_of(const struct engine_tensor *t)
{
	int64_t total = hf_weights_elements(t);
	return span_stretch(total, 0, total);
}

static int copy(struct load *l, const char *file, const struct safetensors_tensor *s, int i)
{
	const struct engine_tensor *t = &l->w->list[i];
	char found[SHAPE_TEXT_MAX], needed[SHAPE_TEXT_MAX];
	enum half_type from, to;
	if (s->rank != t->rank ||
		memcmp(s->shape, t->shape, sizeof(t->shape[0]) * (size_t)t->rank) != 0)
		return err_set(l->err, ERR_INVALID_DATA, s->name,
			"%s: %s has the shape %s, the model needs %s", file, s->name,
			shape_text(s->rank, s->shape, found), shape_text(t->rank, t->shape, needed));
	if (!half_type_of(s->dtype, &from))
		return err_set(l->err, ERR_INVALID_DATA, s->name,
			"%s: %s is of type %s; F32, BF16 and F16 are read", file, s->name, s->dtype);
	if (!half_type_of(t->dtype, &to))
		return err_set(l->err, ERR_INTERNAL, t->name, "the engine's %s is no float", t->name);
	if (l->loaded[i])
		return err_set(
			l->err, ERR_INVALID_DATA, s->name, "%s: %s is there a second time", file, s->name);
	const struct span kept = span_of(t), whole = whole_of(t);
	span_copy(&kept, to, t->data, &whole, from, s->data);
	l->loaded[i] = true;
	return 0;
}

/* What the index says of a tensor must be where it is. */
static int check_index(const struct load *l, const char *file, const char *name)
{
	if (l->index == NULL)
		return 0;
	const char *said =
		json_str_or(json_get(json_get(json_doc_root(l->index), "weight_map"), name), NULL);
	if (said == NULL || strcmp(said, file) != 0)
		return err_set(l->err, ERR_INVALID_DATA, name, "%s has %s, the index says %s", file, name,
			said != NULL ? said : "nothing of it");
	return 0;
}

static int read_tensor(struct load *l, const char *file, const struct safetensors_tensor *s)
{
	int i = find_any_prefix(l, s->name), rc = check_index(l, file, s->name);
	if (rc < 0 || i >= 0)
		return rc < 0 ? rc : copy(l, file, s, i);
	if ((!l->adapters && is_buffer(l, s->name)) || is_elsewhere(l, s->name))
		return 0;
	if (!l->adapters && l->model->tied && strcmp(s->name, "lm_head.weight") == 0) {
		snprintf(l->head_file, sizeof(l->head_file), "%s", file);
		snprintf(l->head_name, sizeof(l->head_name), "%s", s->name);
		return 0;
	}
	return err_set(l->err, ERR_INVALID_DATA, s->name,
		"%s has the tensor %s, which the model does not have%s", file, s->name,
		strcmp(s->name, "lm_head.weight") == 0 ? ": its head is tied to the embedding" : "");
}

static int open_file(const struct load *l, const char *file, struct safetensors **ret)
{
	char path[FILE_PATH_MAX];
	int rc = file_join(path, l->dir, file, l->err);
	return rc < 0 ? rc : safetensors_open(path, ret, l->err);
}

static int read_file(struct load *l, const char *file)
{
	cleanup(safetensors_closep) struct safetensors *s = NULL;
	int rc = open_file(l, file, &s);
	for (int i = 0; rc == 0 && i < safetensors_count(s); i++)
		rc = read_tensor(l, file, safetensors_at(s, i));
	return rc;
}

/* ------------------------------------------------------------------------------ shards */

static int check_shard_name(const struct load *l, const char *name, const char *tensor)
{
	if (name == NULL || name[0] == '\0' || name[0] == '.' || strchr(name, '/') != NULL ||
		strlen(name) >= INDEX_NAME_MAX)
		return err_set(l->err, ERR_INVALID_DATA, tensor,
			"the index puts %s into a file whose name is not one", tensor);
	return 0;
}

/* Every file once, in the order of its first tensor. */
static int read_shards(struct load *l)
{
	char seen[HF_SHARDS_MAX * 8][INDEX_NAME_MAX];
	int count = 0, rc = 0;
	void *iter = NULL;
	const char *tensor = NULL;
	const struct json_val *v = NULL, *map = json_get(json_doc_root(l->index), "weight_map");
	if (json_kind(map) != JSON_OBJECT)
		return err_set(l->err, ERR_INVALID_DATA, "weight_map", "the index has no weight_map");
	while (rc == 0 && json_object_next(map, &iter, &tensor, &v)) {
		const char *file = json_str_or(v, NULL);
		int i = 0;
		rc = check_shard_name(l, file, tensor);
		while (rc == 0 && i < count && strcmp(seen[i], file) != 0)
			i++;
		if (rc < 0 || i < count)
			continue;
		if (count == (int)ARRAY_LEN(seen))
			return err_set(l->err, ERR_INVALID_DATA, NULL, "the index names more than %d files",
				(int)ARRAY_LEN(seen));
		snprintf(seen[count++], INDEX_NAME_MAX, "%s", file);
		rc = read_file(l, file);
	}
	return rc;
}

/* A checkpoint of several ranks. */
static bool in_shards(const struct load *l, struct manifest *m)
{
	return manifest_read(l->dir, m, NULL) == 0 && shards_count(m) > 0;
}

static int read_pieces(struct load *l, const struct manifest *m)
{
	cleanup(shards_closep) struct shards *s = NULL;
	int rc = shards_open(l->dir, m, &s, l->err);
	for (int i = 0; i < l->w->count && rc == 0; i++)
		if (wanted(l, i)) {
			rc = shards_load(s, &l->w->list[i], l->err);
			l->loaded[i] = rc == 0;
		}
	return rc;
}

static int read_all(struct load *l, const char *stem)
{
	char name[INDEX_NAME_MAX], path[FILE_PATH_MAX];
	struct manifest m;
	cleanup(freep) char *text = NULL;
	size_t bytes = 0;
	snprintf(name, sizeof(name), "%.64s.safetensors", stem);
	int rc = file_join(path, l->dir, name, l->err);
	if (rc == 0 && file_exists(path))
		return read_file(l, name);
	if (rc == 0 && in_shards(l, &m))
		return read_pieces(l, &m);
	snprintf(name, sizeof(name), "%.64s.safetensors.index.json", stem);
	if (rc == 0)
		rc = file_join(path, l->dir, name, l->err);
	if (rc == 0 && !file_exists(path))
		rc = err_set(l->err, ERR_INVALID_DATA, NULL, "%s has neither %.64s.safetensors nor %s",
			l->dir, stem, name);
	if (rc == 0)
		rc = file_read(path, HF_INDEX_BYTES_MAX, &text, &bytes, l->err);
	if (rc == 0)
		rc = json_doc_parse(text, bytes, HF_INDEX_BYTES_MAX, &l->index, l->err);
	return rc < 0 ? rc : read_shards(l);
}

/* ------------------------------------------------------------------------------ after all */

static int check_complete(const struct load *l)
{
	int missing = 0;
	const char *first = NULL;
	for (int i = 0; i < l->w->count; i++)
		if (wanted(l, i) && !l->loaded[i]) {
			first = first != NULL ? first : l->w->list[i].name;
			missing++;
		}
	if (missing == 0)
		return 0;
	return err_set(l->err, ERR_INVALID_DATA, first, "%s lacks the tensor %s%s", l->dir, first,
		missing > 1 ? " and others" : "");
}

/* The same numbers, run by run. */
static bool is_equal(const struct engine_tensor *t, const struct safetensors_tensor *s)
{
	const struct span kept = span_of(t), whole = whole_of(t);
	struct span_run run = { 0 };
	enum half_type from, to;
	char block[HEAD_BLOCK * 4];
	if (s->rank != t->rank || !half_type_of(s->dtype, &from) || !half_type_of(t->dtype, &to) ||
		memcmp(s->shape, t->shape, sizeof(t->shape[0]) * (size_t)t->rank) != 0)
		return false;
	while (span_next(&kept, &whole, &run)) {
		run.count = run.count < HEAD_BLOCK ? run.count : HEAD_BLOCK;
		half_convert(run.count, from, (const char *)s->data + run.b * half_bytes(from), to, block);
		if (memcmp(block, (const char *)t->data + run.a * half_bytes(to),
				(size_t)(run.count * half_bytes(to))) != 0)
			return false;
	}
	return true;
}

/* The engine has one matrix for both; a file whose two differ is another kind of model. Each rank
 * compares what it keeps. */
static int check_head(struct load *l)
{
	cleanup(safetensors_closep) struct safetensors *s = NULL;
	int embedding = find(l, embedding_name(l));
	if (l->head_file[0] == '\0' || embedding < 0)
		return 0;
	int rc = open_file(l, l->head_file, &s);
	if (rc < 0)
		return rc;
	const struct safetensors_tensor *head = safetensors_find(s, l->head_name);
	if (head != NULL && is_equal(&l->w->list[embedding], head))
		return 0;
	return err_set(l->err, ERR_INVALID_DATA, l->head_name,
		"%s: %s is not the embedding, but the model's head is tied to it", l->head_file,
		l->head_name);
}

int hf_weights_read(const struct hf_weights *w, const char *dir, const char *stem,
	const struct spec_model *model, bool adapters, struct err *err)
{
	cleanup(freep) bool *loaded = calloc((size_t)w->count + 1, sizeof(*loaded));
	if (loaded == NULL)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory to load %d tensors", w->count);
	struct load l = {
		.w = w,
		.model = model,
		.dir = dir,
		.adapters = adapters,
		.loaded = loaded,
		.err = err,
	};
	int rc = read_all(&l, stem);
	if (rc == 0)
		rc = check_complete(&l);
	if (rc == 0)
		rc = check_head(&l);
	json_doc_free(l.index);
	return rc;
}

bool hf_weights_exist(const char *dir, const char *stem)
{
	char name[INDEX_NAME_MAX], path[FILE_PATH_MAX];
	static const char *const ends[] = { "", ".index.json" };
	for (size_t i = 0; i < ARRAY_LEN(ends); i++) {
		snprintf(name, sizeof(name), "%.64s.safetensors%s", stem, ends[i]);
		if (file_join(path, dir, name, NULL) == 0 && file_exists(path))
			return true;
	}
	return false;
}

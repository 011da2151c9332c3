/* SPDX-License-Identifier: Apache-2.0
 * Putting tensors together again from the pieces of all ranks. Part of shards.h. */
#include "workers/trainer/shards.h"

#include "core/base/file.h"
#include "workers/trainer/span.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct piece {
	const struct safetensors_tensor *from;
	int file;
	bool used;
	int rank; /* of the tensor that it is a piece of */
	int64_t shape[PLAN_RANK_MAX];
	struct span span;
};

struct shards {
	struct safetensors *files[MANIFEST_FILES_MAX];
	char names[MANIFEST_FILES_MAX][MANIFEST_NAME_MAX];
	int file_count;
	struct piece *pieces; /* by name and place */
	int count;
};

int shards_count(const struct manifest *m)
{
	char name[MANIFEST_NAME_MAX];
	for (int i = 0; i < m->count; i++) {
		int rank = 0, size = 0;
		if (sscanf(m->files[i].name, "shard-%5d-of-%5d.", &rank, &size) != 2 || rank < 1 ||
			size < rank)
			continue;
		shards_name(rank - 1, size, name);
		if (strcmp(name, m->files[i].name) == 0)
			return size;
	}
	return 0;
}

/* A number and what must follow it. */
static bool take(const char **at, const char *then, int64_t *ret)
{
	char *end = NULL;
	*ret = strtoll(*at, &end, 10);
	if (end == *at || *ret < 0 || strncmp(end, then, strlen(then)) != 0)
		return false;
	*at = end + strlen(then);
	return true;
}

static bool parse_shape(const char **at, struct piece *p, int64_t *ret_total)
{
	int64_t total = 1;
	bool more = true;
	while (more && p->rank < PLAN_RANK_MAX) {
		int64_t n = 0;
		more = take(at, "x", &n);
		if ((!more && !take(at, "", &n)) || n < 1 || __builtin_mul_overflow(total, n, &total))
			return false;
		p->shape[p->rank++] = n;
	}
	*ret_total = total;
	return !more;
}

/* "4096 of 768x2304", and maybe " cut 768/2304+0" */
static bool parse_place(const struct safetensors_tensor *t, struct piece *p)
{
	static const char cut[] = " cut ";
	const char *at = t->note;
	struct span *s = &p->span;
	int64_t total = 0;
	if (t->rank != 1 || !take(&at, " of ", &s->begin) || !parse_shape(&at, p, &total))
		return false;
	s->cut = plan_cut_none(total);
	if (strncmp(at, cut, sizeof(cut) - 1) == 0) {
		struct plan_cut *c = &s->cut;
		at += sizeof(cut) - 1;
		if (!take(&at, "/", &c->run) || !take(&at, "+", &c->period) || !take(&at, "", &c->first))
			return false;
		if (c->run < 1 || c->period < c->run || c->first > c->period - c->run ||
			total % c->period != 0)
			return false;
	}
	int64_t kept = total / s->cut.period * s->cut.run;
	s->count = t->shape[0];
	return *at == '\0' && s->count >= 1 && s->count <= kept && s->begin <= kept - s->count;
}

static int by_place(const void *a, const void *b)
{
	const struct piece *x = a, *y = b;
	int order = strcmp(x->from->name, y->from->name);
	if (order == 0)
		order = span_compare(&x->span, &y->span);
	return order != 0 ? order : (x->file > y->file) - (x->file < y->file);
}

static int list_pieces(struct shards *s, struct err *err)
{
	size_t most = 0;
	for (int f = 0; f < s->file_count; f++)
		most += (size_t)safetensors_count(s->files[f]);
	s->pieces = calloc(most + 1, sizeof(*s->pieces));
	if (s->pieces == NULL)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory to list %zu pieces", most);
	for (int f = 0; f < s->file_count; f++)
		for (int i = 0; i < safetensors_count(s->files[f]); i++) {
			struct piece *p = &s->pieces[s->count++];
			p->from = safetensors_at(s->files[f], i);
			p->file = f;
			if (!parse_place(p->from, p))
				return err_set(err, ERR_INVALID_DATA, p->from->name,
					"%s does not say where its piece of %s belongs", s->names[f], p->from->name);
		}
	qsort(s->pieces, (size_t)s->count, sizeof(*s->pieces), by_place);
	return 0;
}

static int open_files(struct shards *s, const char *dir, const struct manifest *m, struct err *err)
{
	const int size = shards_count(m);
	char path[FILE_PATH_MAX];
	for (int i = 0; i < size; i++) {
		char name[MANIFEST_NAME_MAX];
		shards_name(i, size, name);
		if (i == MANIFEST_FILES_MAX || manifest_find(m, name) == NULL)
			return err_set(err, ERR_INVALID_DATA, NULL, "the checkpoint's manifest lacks %s", name);
		int rc = file_join(path, dir, name, err);
		if (rc == 0)
			rc = safetensors_open(path, &s->files[i], err);
		if (rc < 0)
			return rc;
		snprintf(s->names[i], sizeof(s->names[i]), "%s", name);
		s->file_count++;
	}
	return 0;
}

int shards_open(const char *dir, const struct manifest *m, struct shards **ret, struct err *err)
{
	cleanup(shards_closep) struct shards *s = calloc(1, sizeof(*s));
	if (s == NULL)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory to open a checkpoint");
	int rc = open_files(s, dir, m, err);
	if (rc == 0)
		rc = list_pieces(s, err);
	if (rc < 0)
		return rc;
	*ret = take_ptr(s);
	return 0;
}

void shards_close(struct shards *s)
{
	if (s == NULL)
		return;
	for (int i = 0; i < s->file_count; i++)
		safetensors_close(s->files[i]);
	free(s->pieces);
	free(s);
}

void shards_closep(struct shards **s)
{
	shards_close(*s);
	*s = NULL;
}

/* The first piece of that name, or where it would be. */
static int first_of(const struct shards *s, const char *name)
{
	int low = 0, high = s->count;
	while (low < high) {
		int middle = low + (high - low) / 2;
		if (strcmp(s->pieces[middle].from->name, name) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static int check_kind(
	const struct shards *s, const struct piece *p, const struct engine_tensor *t, struct err *err)
{
	enum half_type type;
	bool readable = t->kind == ENGINE_PARAMETER ? half_type_of(p->from->dtype, &type)
												: strcmp(p->from->dtype, t->dtype) == 0;
	if (readable && p->rank == t->rank &&
		memcmp(p->shape, t->shape, sizeof(t->shape[0]) * (size_t)t->rank) == 0)
		return 0;
	return err_set(err, ERR_INVALID_DATA, t->name, "%s: the type or shape of %s is not the model's",
		s->names[p->file], t->name);
}

/* The next of the pieces that together make up t. */
static int check_place(const struct shards *s, const struct piece *p, const struct engine_tensor *t,
	struct span_tiling *tiling, struct err *err)
{
	const char *file = s->names[p->file];
	int64_t total = hf_weights_elements(t);
	int64_t missing = span_missing(tiling, total);
	int64_t element = plan_cut_at(&p->span.cut, p->span.begin);
	switch (span_add(tiling, &p->span, total)) {
	case SPAN_FITS: return 0;
	case SPAN_OVERLAPS:
		return err_set(err, ERR_INVALID_DATA, t->name,
			"%s has element %lld of %s, and another piece has it too", file, (long long)element,
			t->name);
	case SPAN_LEAVES_GAP:
		return err_set(err, ERR_INVALID_DATA, t->name,
			"%s goes on with element %lld of %s, and none has those from %lld on", file,
			(long long)element, t->name, (long long)missing);
	case SPAN_OF_ANOTHER_CUT: break;
	}
	return err_set(err, ERR_INVALID_DATA, t->name,
		"%s has a piece of %s that is cut as no other is: \"%s\"", file, t->name, p->from->note);
}

static int load_piece(const struct piece *p, const struct engine_tensor *t, struct err *err)
{
	const struct span to = span_of(t);
	enum half_type from_type, to_type;
	if (!half_type_of(p->from->dtype, &from_type) || !half_type_of(t->dtype, &to_type))
		return err_set(err, ERR_INTERNAL, t->name, "%s is no float", t->name);
	span_copy(&to, to_type, t->data, &p->span, from_type, p->from->data);
	return 0;
}

int shards_load(struct shards *s, const struct engine_tensor *t, struct err *err)
{
	const int64_t total = hf_weights_elements(t);
	struct span_tiling tiling = { 0 };
	for (int i = first_of(s, t->name); i < s->count; i++) {
		struct piece *p = &s->pieces[i];
		if (strcmp(p->from->name, t->name) != 0)
			break;
		int rc = check_kind(s, p, t, err);
		if (rc == 0)
			rc = check_place(s, p, t, &tiling, err);
		if (rc == 0)
			rc = load_piece(p, t, err);
		if (rc < 0)
			return rc;
		p->used = true;
	}
	if (!span_is_whole(&tiling, total))
		return err_set(err, ERR_INVALID_DATA, t->name,
			"the %d shards have %lld of the %lld elements of %s, and not element %lld",
			s->file_count, (long long)tiling.count, (long long)total, t->name,
			(long long)span_missing(&tiling, total));
	return 0;
}

int shards_check_used(const struct shards *s, const struct hf_weights *w, struct err *err)
{
	for (int i = 0; i < s->count; i++) {
		const struct piece *p = &s->pieces[i];
		if (!p->used && !hf_weights_elsewhere(w, p->from->name))
			return err_set(err, ERR_INVALID_DATA, p->from->name,
				"%s has the tensor %s, which the model does not have", s->names[p->file],
				p->from->name);
	}
	return 0;
}

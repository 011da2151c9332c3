/* SPDX-License-Identifier: Apache-2.0
 * Putting tensors together again from the pieces of all ranks. Part of shards.h. */
#include "workers/trainer/shards.h"

#include "core/base/file.h"
#include "workers/trainer/half.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct piece {
	const struct safetensors_tensor *from;
	int file;
	bool used;
	int rank; /* of the tensor that it is a piece of */
	int64_t shape[PLAN_RANK_MAX];
	int64_t begin, count;
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

/* "4096 of 768x768" */
static bool parse_place(const struct safetensors_tensor *t, struct piece *p)
{
	const char *at = t->note;
	char *end = NULL;
	int64_t total = 1;
	p->begin = strtoll(at, &end, 10);
	if (end == at || strncmp(end, " of ", 4) != 0 || t->rank != 1)
		return false;
	for (at = end + 4; p->rank < PLAN_RANK_MAX; at = end + 1) {
		int64_t n = strtoll(at, &end, 10);
		if (end == at || n < 1 || __builtin_mul_overflow(total, n, &total))
			return false;
		p->shape[p->rank++] = n;
		if (*end != 'x')
			break;
	}
	p->count = t->shape[0];
	return *end == '\0' && p->begin >= 0 && p->count >= 1 && p->count <= total &&
		p->begin <= total - p->count;
}

static int by_place(const void *a, const void *b)
{
	const struct piece *x = a, *y = b;
	int order = strcmp(x->from->name, y->from->name);
	if (order != 0)
		return order;
	return x->begin != y->begin ? (x->begin > y->begin) - (x->begin < y->begin)
								: (x->file > y->file) - (x->file < y->file);
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

static int check_piece(const struct shards *s, const struct piece *p, const struct engine_tensor *t,
	int64_t at, struct err *err)
{
	const char *file = s->names[p->file];
	enum half_type type;
	bool readable = t->kind == ENGINE_PARAMETER ? half_type_of(p->from->dtype, &type)
												: strcmp(p->from->dtype, t->dtype) == 0;
	if (!readable || p->rank != t->rank ||
		memcmp(p->shape, t->shape, sizeof(t->shape[0]) * (size_t)t->rank) != 0)
		return err_set(err, ERR_INVALID_DATA, t->name,
			"%s: the type or shape of %s is not the model's", file, t->name);
	if (p->begin < at)
		return err_set(err, ERR_INVALID_DATA, t->name,
			"%s has element %lld of %s, and another piece has it too", file, (long long)p->begin,
			t->name);
	if (p->begin > at)
		return err_set(err, ERR_INVALID_DATA, t->name,
			"%s goes on with element %lld of %s, and none has those from %lld on", file,
			(long long)p->begin, t->name, (long long)at);
	return 0;
}

/* What the piece has of the elements that t keeps. */
static void copy(const struct piece *p, const struct engine_tensor *t)
{
	int64_t begin = p->begin > t->begin ? p->begin : t->begin;
	int64_t end = p->begin + p->count;
	enum half_type from = HALF_F32, to = HALF_F32;
	if (end > t->begin + t->count)
		end = t->begin + t->count;
	if (begin >= end || !half_type_of(p->from->dtype, &from) || !half_type_of(t->dtype, &to))
		return;
	half_convert(end - begin, from,
		(const char *)p->from->data + (begin - p->begin) * half_bytes(from), to,
		(char *)t->data + (begin - t->begin) * half_bytes(to));
}

int shards_load(struct shards *s, const struct engine_tensor *t, struct err *err)
{
	const int64_t total = hf_weights_elements(t);
	int64_t at = 0;
	for (int i = first_of(s, t->name); i < s->count; i++) {
		struct piece *p = &s->pieces[i];
		if (strcmp(p->from->name, t->name) != 0)
			break;
		int rc = check_piece(s, p, t, at, err);
		if (rc < 0)
			return rc;
		copy(p, t);
		p->used = true;
		at += p->count;
	}
	if (at != total)
		return err_set(err, ERR_INVALID_DATA, t->name,
			"the %d shards have %lld of the %lld elements of %s", s->file_count, (long long)at,
			(long long)total, t->name);
	return 0;
}

int shards_check_used(const struct shards *s, struct err *err)
{
	for (int i = 0; i < s->count; i++)
		if (!s->pieces[i].used)
			return err_set(err, ERR_INVALID_DATA, s->pieces[i].from->name,
				"%s has the tensor %s, which the model does not have", s->names[s->pieces[i].file],
				s->pieces[i].from->name);
	return 0;
}

/* SPDX-License-Identifier: Apache-2.0
 * Reading safetensors from a mapped file of unknown origin. */
#include "workers/trainer/safetensors.h"

#include "core/json/reader.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LENGTH_BYTES = 8 };

struct safetensors {
	char *map;
	size_t map_bytes;
	struct safetensors_tensor *tensors; /* by name */
	int count;
};

static const struct {
	const char *name;
	int bytes;
} dtypes[] = {
	{ "F64", 8 },
	{ "I64", 8 },
	{ "U64", 8 },
	{ "F32", 4 },
	{ "I32", 4 },
	{ "U32", 4 },
	{ "F16", 2 },
	{ "BF16", 2 },
	{ "I16", 2 },
	{ "U16", 2 },
	{ "I8", 1 },
	{ "U8", 1 },
	{ "BOOL", 1 },
};

static int dtype_bytes(const char *name)
{
	for (size_t i = 0; i < ARRAY_LEN(dtypes); i++)
		if (strcmp(dtypes[i].name, name) == 0)
			return dtypes[i].bytes;
	return 0;
}

static int read_shape(struct json_obj *o, struct safetensors_tensor *t, int64_t *ret_bytes)
{
	const struct json_val *shape = NULL;
	json_obj_need(o, "shape");
	json_obj_array(o, "shape", SAFETENSORS_RANK_MAX, &shape);
	int64_t bytes = dtype_bytes(t->dtype);
	if (shape == NULL)
		return o->code;
	t->rank = (int)json_array_len(shape);
	for (int d = 0; d < t->rank; d++) {
		const struct json_val *v = json_array_at(shape, (size_t)d);
		int64_t n = json_i64_or(v, -1);
		if (json_kind(v) != JSON_INT || n < 0) {
			json_obj_fail(o, ERR_INVALID_DATA, "shape", "a dimension is not a count");
			return o->code;
		}
		if (__builtin_mul_overflow(bytes, n, &bytes)) {
			json_obj_fail(o, ERR_INVALID_DATA, "shape", "the product of the shape overflows");
			return o->code;
		}
		t->shape[d] = n;
	}
	*ret_bytes = bytes;
	return 0;
}

static int read_offsets(struct json_obj *o, int64_t data_bytes, struct safetensors_tensor *t)
{
	const struct json_val *offsets = NULL;
	json_obj_need(o, "data_offsets");
	json_obj_array(o, "data_offsets", 2, &offsets);
	if (offsets == NULL)
		return o->code;
	int64_t begin = json_i64_or(json_array_at(offsets, 0), -1);
	int64_t end = json_i64_or(json_array_at(offsets, 1), -1);
	if (json_array_len(offsets) != 2 || begin < 0 || end < begin || end > data_bytes) {
		json_obj_fail(o, ERR_INVALID_DATA, "data_offsets",
			"the range does not lie inside the %lld bytes of data", (long long)data_bytes);
		return o->code;
	}
	t->begin = begin;
	t->bytes = end - begin;
	return 0;
}

static int read_tensor(const char *name, const struct json_val *v, int64_t data_bytes,
	struct safetensors_tensor *t, struct err *err)
{
	struct json_obj o;
	const char *dtype = "";
	int64_t bytes = 0;
	if (strlen(name) == 0 || strlen(name) >= sizeof(t->name))
		return err_set(err, ERR_INVALID_DATA, NULL, "a tensor's name is empty or too long");
	snprintf(t->name, sizeof(t->name), "%s", name);
	char path[JSON_PATH_MAX];
	snprintf(path, sizeof(path), "%.100s", name);
	json_obj_open(&o, v, path, err);
	json_obj_need(&o, "dtype");
	json_obj_str(&o, "dtype", 1, sizeof(t->dtype) - 1, &dtype);
	snprintf(t->dtype, sizeof(t->dtype), "%s", dtype);
	if (o.code == 0 && dtype_bytes(t->dtype) == 0)
		json_obj_fail(&o, ERR_INVALID_DATA, "dtype", "the type %s is not known", t->dtype);
	int rc = read_shape(&o, t, &bytes);
	if (rc == 0)
		rc = read_offsets(&o, data_bytes, t);
	if (rc == 0 && bytes != t->bytes)
		json_obj_fail(&o, ERR_INVALID_DATA, "data_offsets",
			"%lld bytes are given, the shape needs %lld", (long long)t->bytes, (long long)bytes);
	return json_obj_close(&o);
}

static int by_begin(const void *a, const void *b)
{
	const struct safetensors_tensor *x = a, *y = b;
	if (x->begin != y->begin)
		return x->begin < y->begin ? -1 : 1;
	return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static int by_name(const void *a, const void *b)
{
	return strcmp(
		((const struct safetensors_tensor *)a)->name, ((const struct safetensors_tensor *)b)->name);
}

/* The tensors must tile the data part: nothing overlaps, nothing is left over. */
static int check_tiling(struct safetensors *s, int64_t data_bytes, struct err *err)
{
	int64_t at = 0;
	qsort(s->tensors, (size_t)s->count, sizeof(*s->tensors), by_begin);
	for (int i = 0; i < s->count; i++) {
		const struct safetensors_tensor *t = &s->tensors[i];
		if (t->begin != at)
			return err_set(err, ERR_INVALID_DATA, t->name,
				"tensor %s starts at byte %lld, expected %lld: tensors overlap or leave a gap",
				t->name, (long long)t->begin, (long long)at);
		at += t->bytes;
	}
	if (at != data_bytes)
		return err_set(err, ERR_INVALID_DATA, NULL,
			"the tensors cover %lld bytes of data, the file has %lld", (long long)at,
			(long long)data_bytes);
	qsort(s->tensors, (size_t)s->count, sizeof(*s->tensors), by_name);
	return 0;
}

static void read_note(const struct json_val *root, struct safetensors_tensor *t)
{
	const char *note = json_str_or(json_get(json_get(root, "__metadata__"), t->name), "");
	if (strlen(note) < sizeof(t->note))
		snprintf(t->note, sizeof(t->note), "%s", note);
}

static int read_header(struct safetensors *s, struct err *err)
{
	uint64_t length = 0;
	if (s->map_bytes < LENGTH_BYTES)
		return err_set(err, ERR_INVALID_DATA, NULL, "the file has only %zu bytes", s->map_bytes);
	memcpy(&length, s->map, sizeof(length));
	length = le64toh(length);
	if (length > SAFETENSORS_HEADER_MAX || length > s->map_bytes - LENGTH_BYTES)
		return err_set(err, ERR_INVALID_DATA, NULL,
			"the header claims %llu bytes, at most %zu are possible", (unsigned long long)length,
			s->map_bytes - LENGTH_BYTES);
	cleanup(json_doc_freep) struct json_doc *doc = NULL;
	int rc = json_doc_parse(s->map + LENGTH_BYTES, length, SAFETENSORS_HEADER_MAX, &doc, err);
	if (rc < 0)
		return rc;
	const struct json_val *root = json_doc_root(doc);
	if (json_kind(root) != JSON_OBJECT)
		return err_set(err, ERR_INVALID_DATA, NULL, "the header is not an object");

	size_t data_at = LENGTH_BYTES + (size_t)length;
	int64_t data_bytes = (int64_t)(s->map_bytes - data_at);
	void *iter = NULL;
	const char *name = NULL;
	const struct json_val *v = NULL;
	int entries = 0;
	while (json_object_next(root, &iter, &name, &v))
		entries++;
	if (entries > SAFETENSORS_TENSORS_MAX)
		return err_set(err, ERR_INVALID_DATA, NULL, "the header lists %d tensors", entries);
	s->tensors = calloc((size_t)entries + 1, sizeof(*s->tensors));
	if (s->tensors == NULL)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for %d tensors", entries);
	iter = NULL;
	while (json_object_next(root, &iter, &name, &v)) {
		if (strcmp(name, "__metadata__") == 0)
			continue;
		struct safetensors_tensor *t = &s->tensors[s->count];
		rc = read_tensor(name, v, data_bytes, t, err);
		if (rc < 0)
			return rc;
		t->data = s->map + data_at + t->begin;
		read_note(root, t);
		s->count++;
	}
	return check_tiling(s, data_bytes, err);
}

int safetensors_open(const char *path, struct safetensors **ret, struct err *err)
{
	cleanup(safetensors_closep) struct safetensors *s = calloc(1, sizeof(*s));
	cleanup(closep) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	struct stat st;
	if (s == NULL)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory to open %s", path);
	if (fd < 0 || fstat(fd, &st) < 0)
		return err_errno(err, ERR_IO, errno, "%s cannot be opened", path);
	if (!S_ISREG(st.st_mode) || st.st_size < LENGTH_BYTES)
		return err_set(err, ERR_INVALID_DATA, NULL, "%s is too short for safetensors", path);
	void *map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	if (map == MAP_FAILED)
		return err_errno(err, ERR_IO, errno, "%s cannot be mapped", path);
	s->map = map;
	s->map_bytes = (size_t)st.st_size;
	struct err why = { 0 };
	int rc = read_header(s, &why);
	if (rc < 0)
		return err_set(err, rc == ERR_NO_MEMORY ? rc : ERR_INVALID_DATA, why.param, "%s: %.600s",
			path, why.message);
	*ret = take_ptr(s);
	return 0;
}

void safetensors_close(struct safetensors *s)
{
	if (s == NULL)
		return;
	if (s->map != NULL)
		munmap(s->map, s->map_bytes);
	free(s->tensors);
	free(s);
}

void safetensors_closep(struct safetensors **s)
{
	safetensors_close(*s);
	*s = NULL;
}

int safetensors_count(const struct safetensors *s)
{
	return s->count;
}

const struct safetensors_tensor *safetensors_at(const struct safetensors *s, int i)
{
	return &s->tensors[i];
}

const struct safetensors_tensor *safetensors_find(const struct safetensors *s, const char *name)
{
	struct safetensors_tensor key = { 0 };
	if (strlen(name) >= sizeof(key.name))
		return NULL;
	snprintf(key.name, sizeof(key.name), "%s", name);
	return bsearch(&key, s->tensors, (size_t)s->count, sizeof(*s->tensors), by_name);
}

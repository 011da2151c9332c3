/* SPDX-License-Identifier: Apache-2.0
 * NumPy's .npy files, versions 1 to 3: a magic, the length of a header, the header as the text of a
 * Python dict, the elements. C order only. Called by data.c and data_tokens.c. */
#include "workers/engine/data/data_private.h"

#include <stdio.h>
#include <string.h>

enum { PREFIX_BYTES = 8, DESCR_MAX = 8 };

struct reader {
	const struct data_map *m;
	const char *param;
	const unsigned char *at, *end;
};

static int bad(const struct reader *r, const char *what, struct err *err)
{
	return err_set(err, ERR_INVALID_DATA, r->param, "file %s: its .npy header has %s (offset %lld)",
		r->m->label, what, (long long)(r->at - r->m->bytes));
}

static bool take(struct reader *r, const char *text)
{
	size_t n = strlen(text);
	while (r->at < r->end && (*r->at == ' ' || *r->at == '\n' || *r->at == '\t'))
		r->at++;
	if ((size_t)(r->end - r->at) < n || memcmp(r->at, text, n) != 0)
		return false;
	r->at += n;
	return true;
}

/* '<f4' and so on. */
static int read_type(struct reader *r, struct data_array *a, struct err *err)
{
	static const struct {
		const char *name;
		enum data_array_type type;
	} types[] = { { "u1", DATA_U8 }, { "i1", DATA_I8 }, { "i2", DATA_I16 }, { "i4", DATA_I32 },
		{ "i8", DATA_I64 }, { "u2", DATA_U16 }, { "u4", DATA_U32 }, { "f4", DATA_F32 },
		{ "f8", DATA_F64 } };
	if (!take(r, "'") && !take(r, "\""))
		return bad(r, "a type that is no string: only plain arrays are read", err);
	char order = r->at < r->end ? (char)*r->at : 0;
	if (order != '<' && order != '>' && order != '|' && order != '=')
		return bad(r, "a type without byte order", err);
	r->at++;
	a->big_endian = order == '>';
	for (size_t i = 0; i < ARRAY_LEN(types); i++)
		if (take(r, types[i].name)) {
			a->type = types[i].type;
			return take(r, "'") || take(r, "\"") ? 0 : bad(r, "a type without end", err);
		}
	return bad(r, "a type other than u1 i1 i2 i4 i8 u2 u4 f4 f8", err);
}

static int read_shape(struct reader *r, struct data_array *a, struct err *err)
{
	if (!take(r, "("))
		return bad(r, "no shape", err);
	a->rank = 0;
	while (!take(r, ")")) {
		if (a->rank == DATA_RANK_MAX)
			return bad(r, "more than 4 dimensions", err);
		const unsigned char *begin = r->at;
		int64_t n = 0;
		for (; r->at < r->end && *r->at >= '0' && *r->at <= '9'; r->at++)
			if (__builtin_mul_overflow(n, 10, &n) || __builtin_add_overflow(n, *r->at - '0', &n))
				return bad(r, "a dimension that no file holds", err);
		if (r->at == begin)
			return bad(r, "a shape that is not of whole numbers", err);
		a->dim[a->rank++] = n;
		(void)take(r, "L");
		if (!take(r, ",") && (r->at == r->end || *r->at != ')'))
			return bad(r, "a shape without end", err);
		(void)take(r, "");
	}
	return a->rank > 0 ? 0 : bad(r, "no dimensions", err);
}

static int read_dict(struct reader *r, struct data_array *a, struct err *err)
{
	bool descr = false, order = false, shape = false;
	if (!take(r, "{"))
		return bad(r, "no dict", err);
	while (!take(r, "}")) {
		int rc = 0;
		if (!descr && take(r, "'descr':")) {
			descr = true;
			rc = read_type(r, a, err);
		} else if (!order && take(r, "'fortran_order':")) {
			order = true;
			if (take(r, "True"))
				rc = bad(r, "Fortran order; save the array in C order", err);
			else if (!take(r, "False"))
				rc = bad(r, "no fortran_order", err);
		} else if (!shape && take(r, "'shape':")) {
			shape = true;
			rc = read_shape(r, a, err);
		} else {
			rc = bad(r, "a member other than descr, fortran_order and shape, once each", err);
		}
		if (rc)
			return rc;
		if (!take(r, ",") && (r->at == r->end || *r->at != '}'))
			return bad(r, "no end", err);
	}
	return descr && order && shape ? 0 : bad(r, "no descr, no fortran_order or no shape", err);
}

static int check_size(
	const struct data_map *m, const char *param, const struct data_array *a, struct err *err)
{
	int64_t bytes = data_array_item_bytes(a->type);
	for (int i = 0; i < a->rank; i++) {
		if (a->dim[i] == 0)
			return err_set(err, ERR_INVALID_DATA, param, "file %s has no items: dimension %d is 0",
				m->label, i);
		if (__builtin_mul_overflow(bytes, a->dim[i], &bytes))
			return err_set(err, ERR_INVALID_DATA, param,
				"file %s: the dimensions multiply to more than any file holds", m->label);
	}
	int64_t have = (int64_t)m->size - a->offset;
	if (have != bytes)
		return err_set(err, ERR_INVALID_DATA, param,
			"file %s %s: the header promises %lld bytes behind offset %lld, the file ends at "
			"offset %zu",
			m->label, have < bytes ? "is truncated" : "is too long", (long long)bytes,
			(long long)a->offset, m->size);
	return 0;
}

int data_npy_read(
	const struct data_map *m, const char *param, struct data_array *ret, struct err *err)
{
	const unsigned char *p = m->bytes;
	if (m->size < PREFIX_BYTES + 4 || memcmp(p, "\x93NUMPY", 6) != 0)
		return err_set(err, ERR_INVALID_DATA, param,
			"file %s is no .npy file: it does not begin with 93 4e 55 4d 50 59", m->label);
	int version = p[6], length_bytes = version == 1 ? 2 : 4;
	if (version < 1 || version > 3 || p[7] != 0)
		return err_set(err, ERR_INVALID_DATA, param,
			"file %s has .npy version %d.%d (offset 6); 1.0, 2.0 and 3.0 are read", m->label,
			version, p[7]);
	size_t length = 0;
	for (int i = length_bytes - 1; i >= 0; i--)
		length = length << 8 | p[PREFIX_BYTES + i];
	size_t begin = (size_t)(PREFIX_BYTES + length_bytes);
	if (length > m->size - begin)
		return err_set(err, ERR_INVALID_DATA, param,
			"file %s is truncated: its header of %zu bytes (offset 8) goes past the end at offset "
			"%zu",
			m->label, length, m->size);
	struct reader r = { .m = m, .param = param, .at = p + begin, .end = p + begin + length };
	struct data_array a = { .label = m->label,
		.shape_at = "offset 0",
		.bytes = p + begin + length,
		.offset = (int64_t)(begin + length) };
	int rc = read_dict(&r, &a, err);
	if (!rc)
		rc = check_size(m, param, &a, err);
	if (!rc)
		*ret = a;
	return rc;
}

int data_npy_open(struct data *d, const struct data_source *s, struct err *err)
{
	if (d->map_count != 2)
		return err_set(err, ERR_INVALID_DATA, s->param,
			"npy data needs two files, samples and labels; %d given", d->map_count);
	struct data_array x[2];
	for (int i = 0; i < 2; i++) {
		int rc = data_npy_read(&d->map[i], s->param, &x[i], err);
		if (rc)
			return rc;
	}
	return data_array_attach(d, &x[0], &x[1], s, err);
}

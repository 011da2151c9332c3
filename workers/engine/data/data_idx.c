/* SPDX-License-Identifier: Apache-2.0
 * IDX files (the format of MNIST): two zero bytes, an element type, the number of dimensions, each
 * dimension as a big-endian 32-bit number, then the elements, big-endian. Called by data.c. */
#include "workers/engine/data/data_private.h"

static int element_type(int type)
{
	switch (type) {
	case 0x08: return DATA_U8;
	case 0x09: return DATA_I8;
	case 0x0b: return DATA_I16;
	case 0x0c: return DATA_I32;
	case 0x0d: return DATA_F32;
	case 0x0e: return DATA_F64;
	default: return -1;
	}
}

static int64_t big_endian32(const unsigned char *p)
{
	return (int64_t)p[0] << 24 | (int64_t)p[1] << 16 | (int64_t)p[2] << 8 | p[3];
}

static int read_magic(
	const struct data_map *m, const char *param, struct data_array *ret, struct err *err)
{
	const unsigned char *p = m->bytes;
	if (m->size >= 2 && p[0] == 0x1f && p[1] == 0x8b)
		return err_set(err, ERR_INVALID_DATA, param,
			"file %s is gzip-compressed (magic 1f 8b at offset 0); upload the unpacked IDX file",
			m->label);
	if (m->size < 4)
		return err_set(err, ERR_INVALID_DATA, param,
			"file %s is truncated: %zu bytes, an IDX header starts with 4", m->label, m->size);
	int type = element_type(p[2]);
	if (p[0] || p[1] || type < 0 || p[3] < 1 || p[3] > DATA_RANK_MAX)
		return err_set(err, ERR_INVALID_DATA, param,
			"file %s is not IDX: magic %02x %02x %02x %02x at offset 0, expected 00 00, a type (08 "
			"09 0b 0c 0d 0e) and 1 to %d dimensions",
			m->label, p[0], p[1], p[2], p[3], DATA_RANK_MAX);
	*ret = (struct data_array){ .label = m->label,
		.shape_at = "offset 4",
		.type = (enum data_array_type)type,
		.big_endian = true,
		.rank = p[3],
		.offset = 4 + 4 * p[3] };
	if ((int64_t)m->size < ret->offset)
		return err_set(err, ERR_INVALID_DATA, param,
			"file %s is truncated: its header of %lld bytes ends at offset %zu", m->label,
			(long long)ret->offset, m->size);
	ret->bytes = p + ret->offset;
	return 0;
}

static int read_header(
	const struct data_map *m, const char *param, struct data_array *ret, struct err *err)
{
	int rc = read_magic(m, param, ret, err);
	if (rc)
		return rc;
	int64_t bytes = data_array_item_bytes(ret->type);
	for (int i = 0; i < ret->rank; i++) {
		ret->dim[i] = big_endian32(m->bytes + 4 + 4 * i);
		if (ret->dim[i] == 0)
			return err_set(err, ERR_INVALID_DATA, param,
				"file %s has no items: dimension %d (offset %d) is 0", m->label, i, 4 + 4 * i);
		if (__builtin_mul_overflow(bytes, ret->dim[i], &bytes))
			return err_set(err, ERR_INVALID_DATA, param,
				"file %s: the dimensions multiply to more than any file holds (offset %d)",
				m->label, 4 + 4 * i);
	}
	int64_t have = (int64_t)m->size - ret->offset;
	if (have < bytes)
		return err_set(err, ERR_INVALID_DATA, param,
			"file %s is truncated: the header promises %lld bytes after offset %lld, the file ends "
			"at offset %zu",
			m->label, (long long)bytes, (long long)ret->offset, m->size);
	if (have > bytes)
		return err_set(err, ERR_INVALID_DATA, param,
			"file %s has %lld bytes too many: the data ends at offset %lld", m->label,
			(long long)(have - bytes), (long long)(ret->offset + bytes));
	return 0;
}

int data_idx_open(struct data *d, const struct data_source *s, struct err *err)
{
	if (d->map_count != 2)
		return err_set(err, ERR_INVALID_DATA, s->param,
			"IDX data needs two files, samples and labels; %d given", d->map_count);
	struct data_array x[2];
	for (int i = 0; i < 2; i++) {
		int rc = read_header(&d->map[i], s->param, &x[i], err);
		if (rc)
			return rc;
	}
	int first = d->task != SPEC_REGRESSION && x[0].rank == 1 && x[1].rank > 1;
	return data_array_attach(d, &x[first], &x[1 - first], s, err);
}

/* SPDX-License-Identifier: Apache-2.0
 * IDX files (the format of MNIST): two zero bytes, an element type, the number of dimensions, each
 * dimension as a big-endian 32-bit number, then the elements. Samples are [n, width], [n, height,
 * width] or [n, height, width, channels]; 8-bit elements become value/255, floats stay. Called by
 * data.c. */
#include "workers/engine/data_private.h"

#include <math.h>
#include <string.h>

enum {
	IDX_U8 = 0x08,
	IDX_I8 = 0x09,
	IDX_I16 = 0x0b,
	IDX_I32 = 0x0c,
	IDX_F32 = 0x0d,
	IDX_F64 = 0x0e
};
enum { IDX_RANK_MAX = 4 };

struct idx {
	int type, rank;
	int64_t dim[IDX_RANK_MAX];
	int64_t header, item_bytes;
};

static uint64_t big_endian(const unsigned char *p, int bytes)
{
	uint64_t v = 0;
	for (int i = 0; i < bytes; i++)
		v = v << 8 | p[i];
	return v;
}

static int item_bytes(int type)
{
	switch (type) {
	case IDX_U8:
	case IDX_I8: return 1;
	case IDX_I16: return 2;
	case IDX_I32:
	case IDX_F32: return 4;
	case IDX_F64: return 8;
	default: return 0;
	}
}

static double item(const unsigned char *p, int type)
{
	uint64_t raw = big_endian(p, item_bytes(type));
	union {
		uint32_t i;
		float f;
	} f32 = { .i = (uint32_t)raw };
	union {
		uint64_t i;
		double f;
	} f64 = { .i = raw };
	switch (type) {
	case IDX_U8: return (double)raw;
	case IDX_I8: return (double)(int8_t)raw;
	case IDX_I16: return (double)(int16_t)raw;
	case IDX_I32: return (double)(int32_t)raw;
	case IDX_F32: return (double)f32.f;
	default: return f64.f;
	}
}

static int read_magic(const struct data_map *m, const char *param, struct idx *ret, struct err *err)
{
	const unsigned char *p = m->bytes;
	if (m->size >= 2 && p[0] == 0x1f && p[1] == 0x8b)
		return err_set(err, ERR_INVALID_DATA, param,
			"file %s is gzip-compressed (magic 1f 8b at offset 0); upload the unpacked IDX file",
			m->label);
	if (m->size < 4)
		return err_set(err, ERR_INVALID_DATA, param,
			"file %s is truncated: %zu bytes, an IDX header starts with 4", m->label, m->size);
	*ret = (struct idx){ .type = p[2], .rank = p[3] };
	ret->item_bytes = item_bytes(ret->type);
	if (p[0] || p[1] || !ret->item_bytes || ret->rank < 1 || ret->rank > IDX_RANK_MAX)
		return err_set(err, ERR_INVALID_DATA, param,
			"file %s is not IDX: magic %02x %02x %02x %02x at offset 0, expected 00 00, a type (08 "
			"09 0b 0c 0d 0e) and 1 to %d dimensions",
			m->label, p[0], p[1], p[2], p[3], IDX_RANK_MAX);
	ret->header = 4 + 4 * ret->rank;
	if ((int64_t)m->size < ret->header)
		return err_set(err, ERR_INVALID_DATA, param,
			"file %s is truncated: its header of %lld bytes ends at offset %zu", m->label,
			(long long)ret->header, m->size);
	return 0;
}

static int read_header(
	const struct data_map *m, const char *param, struct idx *ret, struct err *err)
{
	int rc = read_magic(m, param, ret, err);
	if (rc)
		return rc;
	int64_t bytes = ret->item_bytes;
	for (int i = 0; i < ret->rank; i++) {
		ret->dim[i] = (int64_t)big_endian(m->bytes + 4 + 4 * i, 4);
		if (ret->dim[i] == 0)
			return err_set(err, ERR_INVALID_DATA, param,
				"file %s has no items: dimension %d (offset %d) is 0", m->label, i, 4 + 4 * i);
		if (__builtin_mul_overflow(bytes, ret->dim[i], &bytes))
			return err_set(err, ERR_INVALID_DATA, param,
				"file %s: the dimensions multiply to more than any file holds (offset %d)",
				m->label, 4 + 4 * i);
	}
	int64_t have = (int64_t)m->size - ret->header;
	if (have < bytes)
		return err_set(err, ERR_INVALID_DATA, param,
			"file %s is truncated: the header promises %lld bytes after offset %lld, the file ends "
			"at offset %zu",
			m->label, (long long)bytes, (long long)ret->header, m->size);
	if (have > bytes)
		return err_set(err, ERR_INVALID_DATA, param,
			"file %s has %lld bytes too many: the data ends at offset %lld", m->label,
			(long long)(have - bytes), (long long)(ret->header + bytes));
	return 0;
}

static int check_finite(
	const struct data_map *m, const struct idx *x, const char *param, struct err *err)
{
	if (x->type != IDX_F32 && x->type != IDX_F64)
		return 0;
	for (int64_t at = x->header; at < (int64_t)m->size; at += x->item_bytes)
		if (!isfinite((float)item(m->bytes + at, x->type)))
			return err_set(err, ERR_INVALID_DATA, param,
				"file %s: the number at offset %lld is not finite in 32 bits", m->label,
				(long long)at);
	return 0;
}

static int check_shape(
	struct data *d, const struct job_spec *spec, const char *param, struct err *err)
{
	const struct spec_model *s = &spec->model;
	const struct data_info *i = &d->info;
	if ((s->in_channels > 0 && s->in_channels != i->channels) ||
		(s->in_height > 0 && s->in_height != i->height) ||
		(s->in_width > 0 && s->in_width != i->width))
		return err_set(err, ERR_INVALID_DATA, param,
			"file %s: samples are %lldx%lldx%lld (height, width, channels; header at offset 4), "
			"the model takes %lldx%lldx%lld",
			d->samples->label, (long long)i->height, (long long)i->width, (long long)i->channels,
			(long long)s->in_height, (long long)s->in_width, (long long)s->in_channels);
	return 0;
}

static int open_samples(struct data *d, const struct idx *x, const struct job_spec *spec,
	const char *param, struct err *err)
{
	if (x->rank < 2)
		return err_set(err, ERR_INVALID_DATA, param,
			"file %s has 1 dimension; samples need at least 2 (magic at offset 0)",
			d->samples->label);
	d->info.samples = x->dim[0];
	d->info.height = x->rank > 2 ? x->dim[1] : 1;
	d->info.width = x->rank > 2 ? x->dim[2] : x->dim[1];
	d->info.channels = x->rank > 3 ? x->dim[3] : 1;
	d->features = d->info.height * d->info.width * d->info.channels;
	d->sample_header = x->header;
	d->sample_type = x->type;
	int rc = check_finite(d->samples, x, param, err);
	return rc ? rc : check_shape(d, spec, param, err);
}

static int open_classes(struct data *d, const struct idx *y, const struct job_spec *spec,
	const char *param, struct err *err)
{
	if (y->rank != 1 || y->type == IDX_F32 || y->type == IDX_F64)
		return err_set(err, ERR_INVALID_DATA, param,
			"file %s: labels must be whole numbers in 1 dimension (magic at offset 0)",
			d->labels->label);
	int64_t limit = spec->model.n_classes > 0 ? spec->model.n_classes : INT32_MAX;
	int64_t largest = 0;
	for (int64_t i = 0; i < y->dim[0]; i++) {
		int64_t at = y->header + i * y->item_bytes;
		int64_t label = (int64_t)item(d->labels->bytes + at, y->type);
		if (label < 0 || label >= limit)
			return err_set(err, ERR_INVALID_DATA, param,
				"file %s: label %lld of item %lld (offset %lld) is out of range 0 to %lld",
				d->labels->label, (long long)label, (long long)i, (long long)at,
				(long long)limit - 1);
		largest = label > largest ? label : largest;
	}
	d->info.classes = largest + 1;
	return 0;
}

static int open_targets(struct data *d, const struct idx *y, const struct job_spec *spec,
	const char *param, struct err *err)
{
	if (y->rank > 2)
		return err_set(err, ERR_INVALID_DATA, param,
			"file %s: targets have 1 or 2 dimensions, not %d (magic at offset 0)", d->labels->label,
			y->rank);
	d->info.classes = y->rank == 2 ? y->dim[1] : 1;
	if (spec->model.n_classes > 0 && spec->model.n_classes != d->info.classes)
		return err_set(err, ERR_INVALID_DATA, param,
			"file %s has %lld values per target (header at offset 4), the model has %lld outputs",
			d->labels->label, (long long)d->info.classes, (long long)spec->model.n_classes);
	return check_finite(d->labels, y, param, err);
}

int data_idx_open(struct data *d, const struct job_spec *spec, const char *param, struct err *err)
{
	if (d->map_count != 2)
		return err_set(err, ERR_INVALID_DATA, param,
			"IDX data needs two files, samples and labels; %d given", d->map_count);
	struct idx x[2];
	for (int i = 0; i < 2; i++) {
		int rc = read_header(&d->map[i], param, &x[i], err);
		if (rc)
			return rc;
	}
	int s = 0;
	if (d->task != SPEC_REGRESSION && x[0].rank == 1 && x[1].rank > 1)
		s = 1;
	d->samples = &d->map[s];
	d->labels = &d->map[1 - s];
	int rc = open_samples(d, &x[s], spec, param, err);
	if (rc)
		return rc;
	const struct idx *y = &x[1 - s];
	d->label_header = y->header;
	d->label_type = y->type;
	rc = d->task == SPEC_REGRESSION ? open_targets(d, y, spec, param, err)
									: open_classes(d, y, spec, param, err);
	if (rc)
		return rc;
	if (y->dim[0] != d->info.samples)
		return err_set(err, ERR_INVALID_DATA, param,
			"file %s has %lld labels (offset 4), file %s has %lld samples (offset 4)",
			d->labels->label, (long long)y->dim[0], d->samples->label, (long long)d->info.samples);
	return 0;
}

static void read_items(const unsigned char *p, int type, int64_t count, double divisor, float *out)
{
	if (type == IDX_U8) {
		float scale = 1.0f / (float)divisor;
		for (int64_t i = 0; i < count; i++)
			out[i] = (float)p[i] * scale;
		return;
	}
	int bytes = item_bytes(type);
	for (int64_t i = 0; i < count; i++)
		out[i] = (float)item(p + i * bytes, type);
}

void data_idx_read(const struct data *d, int64_t index, int64_t slot, float *input, void *labels)
{
	int64_t sample_bytes = d->features * item_bytes(d->sample_type);
	read_items(d->samples->bytes + d->sample_header + index * sample_bytes, d->sample_type,
		d->features, 255.0, input + slot * d->features);
	const unsigned char *p = d->labels->bytes + d->label_header;
	int bytes = item_bytes(d->label_type);
	if (d->task != SPEC_REGRESSION) {
		((int32_t *)labels)[slot] = (int32_t)item(p + index * bytes, d->label_type);
		return;
	}
	int64_t n = d->info.classes;
	read_items(p + index * n * bytes, d->label_type, n, 1.0, (float *)labels + slot * n);
}

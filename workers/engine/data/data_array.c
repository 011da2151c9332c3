/* SPDX-License-Identifier: Apache-2.0
 * Samples and labels as arrays of numbers. Samples are [n, width], [n, height, width] or [n,
 * height, width, channels]; unsigned 8-bit elements become value/255, the others stay. Behind
 * data_read for IDX, npy and image tars. */
#include "workers/engine/data/data_private.h"

#include <math.h>
#include <string.h>

int data_array_item_bytes(enum data_array_type type)
{
	static const int bytes[] = { [DATA_U8] = 1,
		[DATA_I8] = 1,
		[DATA_I16] = 2,
		[DATA_I32] = 4,
		[DATA_I64] = 8,
		[DATA_U16] = 2,
		[DATA_U32] = 4,
		[DATA_F32] = 4,
		[DATA_F64] = 8 };
	return bytes[type];
}

static bool is_float(const struct data_array *a)
{
	return a->type == DATA_F32 || a->type == DATA_F64;
}

static uint64_t raw_item(const struct data_array *a, int64_t index)
{
	int bytes = data_array_item_bytes(a->type);
	const unsigned char *p = a->bytes + index * bytes;
	uint64_t v = 0;
	for (int i = 0; i < bytes; i++)
		v = v << 8 | p[a->big_endian ? i : bytes - 1 - i];
	return v;
}

/* Every type but I64 exactly; labels of I64 are read by whole_item. */
double data_array_item(const struct data_array *a, int64_t index)
{
	uint64_t raw = raw_item(a, index);
	union {
		uint32_t i;
		float f;
	} f32 = { .i = (uint32_t)raw };
	union {
		uint64_t i;
		double f;
	} f64 = { .i = raw };
	switch (a->type) {
	case DATA_U8:
	case DATA_U16:
	case DATA_U32: return (double)raw;
	case DATA_I8: return (double)(int8_t)raw;
	case DATA_I16: return (double)(int16_t)raw;
	case DATA_I32: return (double)(int32_t)raw;
	case DATA_I64: return (double)(int64_t)raw;
	case DATA_F32: return (double)f32.f;
	default: return f64.f;
	}
}

static int64_t whole_item(const struct data_array *a, int64_t index)
{
	return a->type == DATA_I64 ? (int64_t)raw_item(a, index) : (int64_t)data_array_item(a, index);
}

static int64_t elements(const struct data_array *a, int from)
{
	int64_t n = 1;
	for (int i = from; i < a->rank; i++)
		n *= a->dim[i];
	return n;
}

static int64_t offset_of(const struct data_array *a, int64_t index)
{
	return a->offset + index * data_array_item_bytes(a->type);
}

static int check_finite(const struct data_array *a, const char *param, struct err *err)
{
	if (!is_float(a))
		return 0;
	int64_t count = elements(a, 0);
	for (int64_t i = 0; i < count; i++)
		if (!isfinite((float)data_array_item(a, i)))
			return err_set(err, ERR_INVALID_DATA, param,
				"file %s: the number at offset %lld is not finite in 32 bits", a->label,
				(long long)offset_of(a, i));
	return 0;
}

static int check_shape(
	const struct data *d, const struct job_spec *spec, const char *param, struct err *err)
{
	const struct spec_model *s = &spec->model;
	const struct data_info *i = &d->info;
	if ((s->in_channels > 0 && s->in_channels != i->channels) ||
		(s->in_height > 0 && s->in_height != i->height) ||
		(s->in_width > 0 && s->in_width != i->width))
		return err_set(err, ERR_INVALID_DATA, param,
			"file %s: samples are %lldx%lldx%lld (height, width, channels; header at %s), "
			"the model takes %lldx%lldx%lld",
			d->samples.label, (long long)i->height, (long long)i->width, (long long)i->channels,
			d->samples.shape_at, (long long)s->in_height, (long long)s->in_width,
			(long long)s->in_channels);
	return 0;
}

static int attach_samples(struct data *d, const struct data_source *s, struct err *err)
{
	const struct data_array *x = &d->samples;
	if (x->rank < 2)
		return err_set(err, ERR_INVALID_DATA, s->param,
			"file %s has 1 dimension; samples need at least 2 (header at %s)", x->label,
			x->shape_at);
	d->info.samples = x->dim[0];
	d->info.height = x->rank > 2 ? x->dim[1] : 1;
	d->info.width = x->rank > 2 ? x->dim[2] : x->dim[1];
	d->info.channels = x->rank > 3 ? x->dim[3] : 1;
	d->features = elements(x, 1);
	if (d->features > DATA_FEATURES_MAX)
		return err_set(err, ERR_INVALID_DATA, s->param,
			"file %s: a sample has %lld numbers (header at %s), at most %d are allowed", x->label,
			(long long)d->features, x->shape_at, DATA_FEATURES_MAX);
	int rc = check_finite(x, s->param, err);
	return rc ? rc : check_shape(d, s->spec, s->param, err);
}

static int attach_classes(struct data *d, const struct data_source *s, struct err *err)
{
	const struct data_array *y = &d->labels;
	if (y->rank != 1 || is_float(y))
		return err_set(err, ERR_INVALID_DATA, s->param,
			"file %s: labels must be whole numbers in 1 dimension (header at %s)", y->label,
			y->shape_at);
	int64_t limit = s->spec->model.n_classes > 0 ? s->spec->model.n_classes : INT32_MAX;
	int64_t largest = 0;
	for (int64_t i = 0; i < y->dim[0]; i++) {
		int64_t label = whole_item(y, i);
		if (label < 0 || label >= limit)
			return err_set(err, ERR_INVALID_DATA, s->param,
				"file %s: label %lld of item %lld (offset %lld) is out of range 0 to %lld",
				y->label, (long long)label, (long long)i, (long long)offset_of(y, i),
				(long long)limit - 1);
		largest = label > largest ? label : largest;
	}
	d->info.classes = largest + 1;
	return 0;
}

static int attach_targets(struct data *d, const struct data_source *s, struct err *err)
{
	const struct data_array *y = &d->labels;
	int64_t outputs = s->spec->model.n_classes;
	if (y->rank > 2)
		return err_set(err, ERR_INVALID_DATA, s->param,
			"file %s: targets have 1 or 2 dimensions, not %d (header at %s)", y->label, y->rank,
			y->shape_at);
	d->info.classes = y->rank == 2 ? y->dim[1] : 1;
	if (outputs > 0 && outputs != d->info.classes)
		return err_set(err, ERR_INVALID_DATA, s->param,
			"file %s has %lld values per target (header at %s), the model has %lld outputs",
			y->label, (long long)d->info.classes, y->shape_at, (long long)outputs);
	return check_finite(y, s->param, err);
}

int data_array_attach(struct data *d, const struct data_array *samples,
	const struct data_array *labels, const struct data_source *s, struct err *err)
{
	d->samples = *samples;
	d->labels = *labels;
	int rc = attach_samples(d, s, err);
	if (rc)
		return rc;
	rc = d->task == SPEC_REGRESSION ? attach_targets(d, s, err) : attach_classes(d, s, err);
	if (rc)
		return rc;
	if (labels->dim[0] != d->info.samples)
		return err_set(err, ERR_INVALID_DATA, s->param,
			"file %s has %lld labels (%s), file %s has %lld samples (%s)", labels->label,
			(long long)labels->dim[0], labels->shape_at, samples->label, (long long)d->info.samples,
			samples->shape_at);
	d->reader = &data_array_reader;
	return 0;
}

static void read_items(
	const struct data_array *a, int64_t first, int64_t count, float divisor, float *out)
{
	if (a->type == DATA_U8) {
		const unsigned char *p = a->bytes + first;
		float scale = 1.0f / divisor;
		for (int64_t i = 0; i < count; i++)
			out[i] = (float)p[i] * scale;
	} else if (a->type == DATA_F32 && !a->big_endian) {
		memcpy(out, a->bytes + first * (int64_t)sizeof(float), (size_t)count * sizeof(float));
	} else {
		for (int64_t i = 0; i < count; i++)
			out[i] = (float)data_array_item(a, first + i);
	}
}

/* The columns [from, to) of a shifted row that lie inside the image. */
static void read_row(
	const struct data *d, int64_t row_first, const struct data_shift *s, float *out)
{
	int64_t width = d->info.width, channels = d->info.channels;
	int64_t left = s->columns < 0 ? -s->columns : 0;
	int64_t right = s->columns > 0 ? width - s->columns : width;
	memset(out, 0, (size_t)(width * channels) * sizeof(float));
	if (left < right)
		read_items(&d->samples, row_first + (left + s->columns) * channels,
			(right - left) * channels, 255.0f, out + left * channels);
	if (!s->mirror)
		return;
	for (int64_t x = 0; x < width / 2; x++)
		for (int64_t c = 0; c < channels; c++) {
			float *a = &out[x * channels + c], *b = &out[(width - 1 - x) * channels + c];
			float swapped = *a;
			*a = *b;
			*b = swapped;
		}
}

static void read_shifted(
	const struct data *d, int64_t index, const struct data_shift *s, float *out)
{
	int64_t row = d->info.width * d->info.channels;
	for (int64_t y = 0; y < d->info.height; y++) {
		int64_t from = y + s->rows;
		if (from < 0 || from >= d->info.height)
			memset(out + y * row, 0, (size_t)row * sizeof(float));
		else
			read_row(d, index * d->features + from * row, s, out + y * row);
	}
}

static void array_read(
	const struct data *d, int64_t index, int64_t slot, uint64_t draw, const struct data_batch *b)
{
	float *input = (float *)b->input + slot * d->features;
	struct data_shift s = data_augment_shift(d, draw);
	if (s.rows || s.columns || s.mirror)
		read_shifted(d, index, &s, input);
	else
		read_items(&d->samples, index * d->features, d->features, 255.0f, input);
	if (d->task != SPEC_REGRESSION) {
		((int32_t *)b->labels)[slot] = (int32_t)whole_item(&d->labels, index);
		return;
	}
	int64_t n = d->info.classes;
	read_items(&d->labels, index * n, n, 1.0f, (float *)b->labels + slot * n);
}

static void array_blank(const struct data *d, int64_t slot, const struct data_batch *b)
{
	memset((float *)b->input + slot * d->features, 0, (size_t)d->features * sizeof(float));
	if (d->task != SPEC_REGRESSION) {
		((int32_t *)b->labels)[slot] = -1;
		return;
	}
	for (int64_t i = 0; i < d->info.classes; i++)
		((float *)b->labels)[slot * d->info.classes + i] = NAN;
}

static int64_t array_valid(const struct data *d, int64_t index)
{
	return 1;
}

const struct data_reader data_array_reader = {
	.read = array_read, .blank = array_blank, .valid_rows = array_valid
};

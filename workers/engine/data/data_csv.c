/* SPDX-License-Identifier: Apache-2.0
 * Tables as CSV with a header. One column is the label; click_through names its categorical
 * columns, one for each embedding table; the others are numbers, the features in their order.
 * Called by data.c. */

/* A number is what strtod reads and a float holds, spaces around it allowed. A categorical field
 * has ids between '|', at most `lookups`: a whole number becomes the row number mod rows of the
 * table (never negative), any other text its 64-bit hash mod rows.
 * Missing (empty): click_through takes a number as 0 and a categorical field as no id; elsewhere a
 * missing number is refused, and a missing label always. */

#include "core/base/num.h"
#include "workers/engine/data/csv_scan.h"
#include "workers/engine/data/data_private.h"
#include "workers/engine/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum column_kind { COLUMN_NUMBER, COLUMN_LABEL, COLUMN_TABLE };

struct column {
	enum column_kind kind;
	int table; /* COLUMN_TABLE */
};

struct csv {
	struct data *d;
	const struct data_source *source;
	struct csv_scan scan;
	char *header; /* malloc'ed: names of the first file, each with a NUL behind it */
	size_t header_bytes;
	int count; /* columns */
	struct column column[CSV_COLUMNS_MAX];
	struct data_writer writer;
	/* The row at hand. */
	float *dense;
	int32_t *bags;
	float value;   /* label */
	int32_t class; /* label */
	int64_t largest;
};

static const char *name_of(const struct csv *x, int column)
{
	const char *p = x->header;
	while (column-- > 0)
		p += strlen(p) + 1;
	return p;
}

static int bad_field(const struct csv *x, int column, const char *what, struct err *err)
{
	return err_set(err, ERR_INVALID_DATA, x->source->param,
		"file %s, line %lld, column \"%.64s\": \"%.64s\" %s", x->scan.label,
		(long long)x->scan.record, name_of(x, column), csv_scan_field(&x->scan, column), what);
}

static int find_column(const struct csv *x, const char *name, int *ret, struct err *err)
{
	int found = -1;
	for (int i = 0; i < x->count; i++) {
		if (strcmp(name_of(x, i), name) != 0)
			continue;
		if (found >= 0)
			return err_set(err, ERR_INVALID_DATA, x->source->param,
				"file %s, line 1: two columns are called \"%.64s\"", x->scan.label, name);
		found = i;
	}
	if (found < 0)
		return err_set(err, ERR_INVALID_DATA, x->source->param,
			"file %s, line 1: no column is called \"%.64s\"", x->scan.label, name);
	*ret = found;
	return 0;
}

static int find_label(struct csv *x, struct err *err)
{
	const char *name = x->source->spec->data.label_column;
	int at = x->count - 1;
	int rc = 0;
	if (name[0])
		rc = find_column(x, name, &at, err);
	else if (x->d->task == SPEC_CLICK_THROUGH)
		rc = find_column(x, "label", &at, err);
	if (!rc)
		x->column[at].kind = COLUMN_LABEL;
	return rc;
}

static int find_tables(struct csv *x, struct err *err)
{
	const struct job_spec *spec = x->source->spec;
	int tables = spec->data.categorical_count;
	if (x->d->task != SPEC_CLICK_THROUGH)
		return tables == 0 ? 0
						   : err_set(err, ERR_INVALID_DATA, x->source->param,
								 "categorical columns are for click_through only");
	if (tables != spec->model.table_count || spec->model.lookups < 1)
		return err_set(err, ERR_INVALID_DATA, x->source->param,
			"the spec names %d categorical columns, the model has %d tables", tables,
			spec->model.table_count);
	for (int t = 0; t < tables; t++) {
		int at = 0;
		int rc = find_column(x, spec->data.categorical[t], &at, err);
		if (rc)
			return rc;
		if (x->column[at].kind != COLUMN_NUMBER)
			return err_set(err, ERR_INVALID_DATA, x->source->param,
				"file %s: column \"%.64s\" is named twice by the spec", x->scan.label,
				spec->data.categorical[t]);
		x->column[at] = (struct column){ .kind = COLUMN_TABLE, .table = t };
	}
	return 0;
}

/* The first file's header says what the columns are. */
static int read_header(struct csv *x, struct err *err)
{
	struct data *d = x->d;
	const struct spec_model *m = &x->source->spec->model;
	x->count = x->scan.count;
	x->header_bytes = x->scan.text.len;
	x->header = malloc(x->header_bytes);
	if (!x->header)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory to read a table");
	memcpy(x->header, x->scan.text.data, x->header_bytes);
	int rc = find_label(x, err);
	if (!rc)
		rc = find_tables(x, err);
	if (rc)
		return rc;
	int64_t dense = 0;
	for (int i = 0; i < x->count; i++)
		dense += x->column[i].kind == COLUMN_NUMBER;
	bool clicks = d->task == SPEC_CLICK_THROUGH;
	int64_t wanted = clicks ? m->dense_features : m->in_width;
	if ((wanted > 0 && wanted != dense) || dense == 0)
		return err_set(err, ERR_INVALID_DATA, x->source->param,
			"file %s, line 1: %lld columns are features (all but label and categorical ones), the "
			"model takes %lld",
			x->scan.label, (long long)dense, (long long)wanted);
	d->rows = (struct data_rows){ .dense = dense,
		.lookups = clicks ? m->lookups : 0,
		.table_count = clicks ? m->table_count : 0 };
	d->rows.row_bytes = (dense + 1 + d->rows.lookups * d->rows.table_count) * 4;
	x->dense = calloc((size_t)dense, sizeof(*x->dense));
	x->bags = calloc((size_t)(d->rows.lookups * d->rows.table_count) + 1, sizeof(*x->bags));
	if (!x->dense || !x->bags)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory to read a table");
	return 0;
}

static int check_header(struct csv *x, struct err *err)
{
	bool more;
	int rc = csv_scan_next(&x->scan, &more, err);
	if (rc)
		return rc;
	if (!more)
		return err_set(
			err, ERR_INVALID_DATA, x->source->param, "file %s has no header", x->scan.label);
	if (!x->header)
		return read_header(x, err);
	if (x->scan.text.len != x->header_bytes ||
		memcmp(x->scan.text.data, x->header, x->header_bytes) != 0)
		return err_set(err, ERR_INVALID_DATA, x->source->param,
			"file %s, line 1: the header is another than that of file %s", x->scan.label,
			x->d->map[0].label);
	return 0;
}

/* The field without the spaces around it, in `into`. */
static bool trim(const char *text, char into[static NUM_F64_MAX * 2])
{
	text += strspn(text, " \t");
	size_t n = strlen(text);
	while (n > 0 && (text[n - 1] == ' ' || text[n - 1] == '\t'))
		n--;
	if (n >= NUM_F64_MAX * 2)
		return false;
	memcpy(into, text, n);
	into[n] = 0;
	return true;
}

static int read_number(struct csv *x, int column, float *ret, struct err *err)
{
	char text[NUM_F64_MAX * 2];
	double value;
	if (!trim(csv_scan_field(&x->scan, column), text))
		return bad_field(x, column, "is no number", err);
	if (!text[0] && x->d->task == SPEC_CLICK_THROUGH && x->column[column].kind == COLUMN_NUMBER) {
		*ret = 0;
		return 0;
	}
	if (!text[0])
		return bad_field(x, column, "is missing; a number was expected", err);
	if (num_parse_f64(text, &value))
		return bad_field(x, column, "is no number", err);
	if (!isfinite((float)value))
		return bad_field(x, column, "is not finite in 32 bits", err);
	*ret = (float)value;
	return 0;
}

static int read_class(struct csv *x, int column, struct err *err)
{
	char text[NUM_F64_MAX * 2];
	int64_t limit = x->source->spec->model.n_classes, class;
	if (limit <= 0)
		limit = INT32_MAX;
	if (!trim(csv_scan_field(&x->scan, column), text) || !text[0] ||
		num_parse_i64(text, INT64_MIN, INT64_MAX, &class))
		return bad_field(x, column, "is no class (a whole number)", err);
	if (class < 0 || class >= limit)
		return bad_field(x, column, "is a class that the model does not have", err);
	x->class = (int32_t) class;
	x->largest = class > x->largest ? class : x->largest;
	return 0;
}

static int read_label(struct csv *x, int column, struct err *err)
{
	if (x->d->task == SPEC_CLASSIFICATION)
		return read_class(x, column, err);
	int rc = read_number(x, column, &x->value, err);
	if (!rc && x->d->task == SPEC_CLICK_THROUGH && x->value != 0 && x->value != 1)
		return bad_field(x, column, "is no label of clicks (0 or 1)", err);
	return rc;
}

/* FNV-1a, its bits spread: the same on every machine and in every version. */
static uint64_t hash(const char *p, size_t count)
{
	uint64_t h = UINT64_C(0xcbf29ce484222325);
	for (size_t i = 0; i < count; i++)
		h = (h ^ (unsigned char)p[i]) * UINT64_C(0x100000001b3);
	return rng_mix(h);
}

static int64_t row_of(const char *p, size_t count, int64_t rows)
{
	char text[NUM_F64_MAX];
	int64_t number;
	if (count < sizeof(text)) {
		memcpy(text, p, count);
		text[count] = 0;
		if (!num_parse_i64(text, INT64_MIN, INT64_MAX, &number))
			return (number % rows + rows) % rows;
	}
	return (int64_t)(hash(p, count) % (uint64_t)rows);
}

static int read_bag(struct csv *x, int column, struct err *err)
{
	int table = x->column[column].table;
	int64_t rows = x->source->spec->model.table_rows[table], lookups = x->d->rows.lookups;
	int32_t *bag = x->bags + table * lookups;
	const char *p = csv_scan_field(&x->scan, column);
	int64_t n = 0;
	while (*p) {
		size_t count = strcspn(p, "|");
		if (n == lookups)
			return bad_field(x, column, "has more ids than the model looks up", err);
		if (count == 0)
			return bad_field(x, column, "has an empty id", err);
		bag[n++] = (int32_t)row_of(p, count, rows);
		p += count;
		if (*p == '|' && !p[1])
			return bad_field(x, column, "has an empty id", err);
		p += *p == '|';
	}
	for (; n < lookups; n++)
		bag[n] = -1;
	return 0;
}

static int read_row(struct csv *x, struct err *err)
{
	int64_t dense = 0;
	if (x->scan.count != x->count)
		return err_set(err, ERR_INVALID_DATA, x->source->param,
			"file %s, line %lld has %d fields, the header %d", x->scan.label,
			(long long)x->scan.record, x->scan.count, x->count);
	for (int i = 0; i < x->count; i++) {
		int rc = 0;
		switch (x->column[i].kind) {
		case COLUMN_NUMBER: rc = read_number(x, i, &x->dense[dense++], err); break;
		case COLUMN_LABEL: rc = read_label(x, i, err); break;
		case COLUMN_TABLE: rc = read_bag(x, i, err); break;
		}
		if (rc)
			return rc;
	}
	const struct data_rows *r = &x->d->rows;
	int rc = data_writer_put(&x->writer, x->dense, (size_t)r->dense * sizeof(float), err);
	const void *label = x->d->task == SPEC_CLASSIFICATION ? (void *)&x->class : (void *)&x->value;
	if (!rc)
		rc = data_writer_put(&x->writer, label, sizeof(float), err);
	if (!rc)
		rc = data_writer_put(
			&x->writer, x->bags, (size_t)(r->lookups * r->table_count) * sizeof(int32_t), err);
	x->d->info.samples++;
	return rc;
}

static int read_file(struct csv *x, const struct data_map *m, struct err *err)
{
	int rc = data_check_utf8(m, x->source->param, err);
	if (rc)
		return rc;
	rc = csv_scan_init(&x->scan, (const char *)m->bytes, m->size, m->label, x->source->param, err);
	if (!rc)
		rc = check_header(x, err);
	while (!rc) {
		bool more;
		rc = csv_scan_next(&x->scan, &more, err);
		if (rc || !more)
			break;
		rc = read_row(x, err);
	}
	csv_scan_finish(&x->scan);
	return rc;
}

static int finish(struct csv *x, struct err *err)
{
	struct data *d = x->d;
	if (d->info.samples == 0)
		return err_set(
			err, ERR_INVALID_DATA, x->source->param, "file %s has no rows", d->map[0].label);
	int rc = data_writer_flush(&x->writer, err);
	if (!rc)
		rc = data_scratch_map(&d->scratch[0], data_writer_at(&x->writer), err);
	if (rc)
		return rc;
	d->rows.bytes = d->scratch[0].bytes;
	d->info.channels = d->info.height = 1;
	d->info.width = d->rows.dense;
	d->info.classes = d->task == SPEC_CLASSIFICATION ? x->largest + 1
		: d->task == SPEC_REGRESSION                 ? 1
													 : 0;
	d->header = take_ptr(x->header);
	d->header_bytes = x->header_bytes;
	d->reader = &data_rows_reader;
	return 0;
}

int data_csv_open(struct data *d, const struct data_source *s, struct err *err)
{
	struct csv *x = calloc(1, sizeof(*x));
	if (!x)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory to read a table");
	x->d = d;
	x->source = s;
	int rc = data_scratch_open(&d->scratch[0], s, err);
	if (!rc)
		rc = data_writer_open(&x->writer, &d->scratch[0], 0, err);
	for (int i = 0; i < d->map_count && !rc; i++)
		rc = read_file(x, &d->map[i], err);
	if (!rc)
		rc = finish(x, err);
	data_writer_close(&x->writer);
	free(x->header);
	free(x->dense);
	free(x->bags);
	free(x);
	return rc;
}

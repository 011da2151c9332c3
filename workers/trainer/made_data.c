/* SPDX-License-Identifier: Apache-2.0
 * Made-up training files. */
#include "workers/trainer/made_data.h"

#include "core/base/buf.h"
#include "workers/trainer/files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	BATCHES = 4,          /* as many different ones */
	VOCABULARY_MIN = 123, /* letters are below */
	IDX_U8 = 8,
	IDX_F32 = 13,
	DOCUMENT_LETTERS = 40,
};
static const size_t FILE_MAX = (size_t)1 << 32;

struct maker {
	const struct job_spec *spec;
	uint64_t random;
	int64_t samples;
};

static uint32_t draw(struct maker *m)
{
	m->random = m->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (uint32_t)(m->random >> 33);
}

static int write_out(const struct made_data *d, int which, struct buf *text, struct err *err)
{
	if (text->failed != 0)
		return err_set(err, text->failed, NULL, "no room for made-up data");
	return files_write(d->path[which], text->data, text->len, err);
}

static void put_letters(struct maker *m, struct buf *out, int64_t count)
{
	for (int64_t i = 0; i < count; i++)
		buf_char(out, (char)('a' + draw(m) % 26));
}

static int write_text(struct maker *m, const struct made_data *d, struct err *err)
{
	cleanup(buf_finish) struct buf out;
	buf_init(&out, FILE_MAX);
	if (m->spec->data.format == SPEC_FORMAT_TEXT)
		put_letters(m, &out, m->samples * m->spec->data.sequence_length + 1);
	int64_t letters = m->spec->data.sequence_length / 2;
	if (letters > DOCUMENT_LETTERS)
		letters = DOCUMENT_LETTERS;
	int64_t documents = m->spec->data.packing
		? m->samples * m->spec->data.sequence_length / (2 * letters > 1 ? 2 * letters : 1)
		: m->samples;
	for (int64_t i = 0; m->spec->data.format == SPEC_FORMAT_JSONL && i < documents; i++) {
		buf_str(&out, "{\"prompt\":\"");
		put_letters(m, &out, letters);
		buf_str(&out, "\",\"completion\":\"");
		put_letters(m, &out, letters);
		buf_str(&out, "\"}\n");
	}
	return write_out(d, 0, &out, err);
}

static void put_idx_head(struct buf *out, int type, const int64_t *dims, int count)
{
	buf_append(out, (char[]){ 0, 0, (char)type, (char)count }, 4);
	for (int i = 0; i < count; i++)
		buf_append(out,
			(char[]){
				(char)(dims[i] >> 24), (char)(dims[i] >> 16), (char)(dims[i] >> 8), (char)dims[i] },
			4);
}

static int write_arrays(struct maker *m, const struct made_data *d, struct err *err)
{
	const struct spec_model *s = &m->spec->model;
	cleanup(buf_finish) struct buf samples;
	cleanup(buf_finish) struct buf labels;
	int64_t dims[] = { m->samples, s->in_height, s->in_width, s->in_channels };
	int64_t values = m->samples * s->in_height * s->in_width * s->in_channels;
	bool regression = m->spec->task == SPEC_REGRESSION;
	buf_init(&samples, FILE_MAX);
	buf_init(&labels, FILE_MAX);
	put_idx_head(&samples, IDX_U8, dims, 4);
	for (int64_t i = 0; i < values; i++)
		buf_char(&samples, (char)draw(m));
	dims[1] = s->n_classes;
	put_idx_head(&labels, regression ? IDX_F32 : IDX_U8, dims, regression ? 2 : 1);
	for (int64_t i = 0; i < m->samples * (regression ? s->n_classes : 1); i++) {
		if (regression) /* 0.5 to 1, big-endian */
			buf_append(&labels, (char[]){ 0x3f, (char)(draw(m) % 128), 0, 0 }, 4);
		else
			buf_char(&labels, (char)(draw(m) % (s->n_classes < 256 ? s->n_classes : 256)));
	}
	int rc = write_out(d, 0, &samples, err);
	return rc < 0 ? rc : write_out(d, 1, &labels, err);
}

static int write_clicks(struct maker *m, const struct made_data *d, struct err *err)
{
	const struct spec_model *s = &m->spec->model;
	cleanup(buf_finish) struct buf out;
	buf_init(&out, FILE_MAX);
	buf_str(&out, "label");
	for (int64_t i = 0; i < s->dense_features; i++)
		buf_printf(&out, ",d%lld", (long long)i);
	for (int t = 0; t < s->table_count; t++)
		buf_printf(&out, ",c%d", t);
	buf_char(&out, '\n');
	for (int64_t n = 0; n < m->samples; n++) {
		buf_printf(&out, "%u", draw(m) % 2);
		for (int64_t i = 0; i < s->dense_features; i++)
			buf_printf(&out, ",0.%03u", draw(m) % 1000);
		for (int t = 0; t < s->table_count; t++)
			for (int64_t k = 0; k < s->lookups; k++)
				buf_printf(&out, "%c%lld", k == 0 ? ',' : '|',
					(long long)((int64_t)draw(m) % s->table_rows[t]));
		buf_char(&out, '\n');
	}
	return write_out(d, 0, &out, err);
}

static int adapt_language(struct job_spec *spec, struct err *err)
{
	if (spec->model.vocab_size < VOCABULARY_MIN)
		return err_set(err, ERR_INVALID_VALUE, "$.model.config.vocab_size",
			"made-up text needs a vocabulary of at least %d", VOCABULARY_MIN);
	if (spec->data.format != SPEC_FORMAT_JSONL)
		spec->data.format = SPEC_FORMAT_TEXT;
	spec->data.tokenizer = SPEC_TOKENIZER_BYTES;
	return 0;
}

static int adapt_arrays(struct job_spec *spec, struct err *err)
{
	const struct spec_model *s = &spec->model;
	if (s->in_channels == 0 || s->in_height == 0 || s->in_width == 0 || s->n_classes == 0)
		return err_set(err, ERR_INVALID_VALUE, "$.model.config",
			"made-up data need in_channels, in_height, in_width and n_classes in the config");
	spec->data.format = SPEC_FORMAT_IDX;
	return 0;
}

static void adapt_clicks(struct job_spec *spec)
{
	spec->data.format = SPEC_FORMAT_CSV;
	snprintf(spec->data.label_column, sizeof(spec->data.label_column), "label");
	spec->data.categorical_count = spec->model.table_count;
	for (int t = 0; t < spec->model.table_count; t++)
		snprintf(spec->data.categorical[t], sizeof(spec->data.categorical[t]), "c%d", t);
}

static int make_folder(struct made_data *d, struct err *err)
{
	const char *place = getenv("TMPDIR");
	int rc = file_join(
		d->dir, place != NULL && place[0] != '\0' ? place : "/tmp", "trainer-data-XXXXXX", err);
	if (rc == 0 && mkdtemp(d->dir) == NULL)
		rc = err_set(err, ERR_IO, NULL, "%s cannot be made", d->dir);
	if (rc < 0) {
		d->dir[0] = '\0';
		return rc;
	}
	rc = file_join(d->path[0], d->dir, "first", err);
	return rc < 0 ? rc : file_join(d->path[1], d->dir, "second", err);
}

int made_data_write(
	struct made_data *d, struct job_spec *spec, struct session_inputs *in, struct err *err)
{
	struct maker m = { .spec = spec, .random = 7, .samples = BATCHES * spec->hyper.batch_size };
	bool language = spec_is_language(spec), clicks = spec->model.family == SPEC_DLRM;
	int rc = 0;
	if (language)
		rc = adapt_language(spec, err);
	else if (clicks)
		adapt_clicks(spec);
	else
		rc = adapt_arrays(spec, err);
	if (rc == 0)
		rc = make_folder(d, err);
	if (rc == 0)
		rc = language ? write_text(&m, d, err)
					  : (clicks ? write_clicks(&m, d, err) : write_arrays(&m, d, err));
	in->training_count = language || clicks ? 1 : 2;
	for (int i = 0; i < in->training_count; i++)
		in->training[i] = (struct data_file){ .path = d->path[i], .label = "made-up data" };
	return rc;
}

void made_data_remove(struct made_data *d)
{
	struct err err = { 0 };
	if (d->dir[0] != '\0' && file_remove_tree(d->dir, &err) == 0)
		d->dir[0] = '\0';
}

/* SPDX-License-Identifier: Apache-2.0
 * Data sets: mapping files, choosing the format, comparing training with validation. Called by the
 * engine and the trainer; an open set is read-only. */
#include "workers/engine/data.h"

#include "workers/engine/data/data_private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static int map_file(
	struct data_map *m, const struct data_file *f, const char *param, struct err *err)
{
	snprintf(m->label, sizeof(m->label), "%s", f->label);
	cleanup(closep) int fd = open(f->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO: no wait */
	if (fd < 0)
		return err_errno(err, ERR_IO, errno, "file %s cannot be opened", m->label);
	struct stat st;
	if (fstat(fd, &st) < 0)
		return err_errno(err, ERR_IO, errno, "file %s cannot be read", m->label);
	if (!S_ISREG(st.st_mode))
		return err_set(err, ERR_IO, param, "file %s is not a regular file", m->label);
	if (st.st_size == 0)
		return err_set(err, ERR_INVALID_DATA, param, "file %s is empty (0 bytes)", m->label);
	void *mem = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	if (mem == MAP_FAILED)
		return err_errno(err, ERR_IO, errno, "file %s cannot be mapped", m->label);
	m->bytes = mem;
	m->size = (size_t)st.st_size;
	return 0;
}

/* Which tasks a format can serve. */
struct format {
	const char *word;
	data_format_fn open;
	unsigned tasks; /* bits 1 << enum spec_task */
};
enum {
	LANGUAGE = 1 << SPEC_LANGUAGE_MODEL | 1 << SPEC_FINE_TUNE,
	IMAGES = 1 << SPEC_IMAGE_CLASSIFICATION,
	TABLES = 1 << SPEC_REGRESSION | 1 << SPEC_CLASSIFICATION,
	CLICKS = 1 << SPEC_CLICK_THROUGH,
};
static const struct format formats[SPEC_FORMAT_COUNT] = {
	[SPEC_FORMAT_TEXT] = { "text", data_text_open, LANGUAGE },
	[SPEC_FORMAT_IDX] = { "idx", data_idx_open, IMAGES | TABLES },
	[SPEC_FORMAT_JSONL] = { "jsonl", data_jsonl_open, LANGUAGE },
	[SPEC_FORMAT_CSV] = { "csv", data_csv_open, TABLES | CLICKS },
	[SPEC_FORMAT_NPY] = { "npy", data_npy_open, IMAGES | TABLES },
	[SPEC_FORMAT_IMAGE_TAR] = { "image_tar", data_image_tar_open, IMAGES },
	[SPEC_FORMAT_TOKENS] = { "tokens", data_tokens_open, LANGUAGE },
};

static int open_format(struct data *d, const struct data_source *s, struct err *err)
{
	const struct format *f = &formats[d->format];
	if (!f->open || !(f->tasks >> d->task & 1))
		return err_set(err, ERR_INVALID_DATA, s->param,
			"files of format %s cannot be read for this task", f->word ? f->word : "unknown");
	if (spec_is_language(s->spec) && d->window < 1)
		return err_set(
			err, ERR_INVALID_DATA, s->param, "sequence_length is %lld", (long long)d->window);
	return f->open(d, s, err);
}

int data_open(const struct job_spec *spec, const struct data_file *files, int count,
	const char *param, const struct data_options *options, struct data **ret, struct err *err)
{
	if (count < 1 || count > SPEC_FILES_MAX)
		return err_set(err, ERR_INVALID_DATA, param, "a data set has 1 to %d files, not %d",
			SPEC_FILES_MAX, count);
	cleanup(data_closep) struct data *d = calloc(1, sizeof(*d));
	if (!d)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for the data set");
	d->task = spec->task;
	d->format = spec->data.format;
	d->window = spec->data.sequence_length;
	d->flip = spec->data.flip;
	d->crop_padding = spec->data.crop_padding;
	for (int i = 0; i < count; i++) {
		int rc = map_file(&d->map[i], &files[i], param, err);
		if (rc)
			return rc;
		d->map_count++;
		d->info.bytes += (int64_t)d->map[i].size;
	}
	struct data_source s = { .spec = spec, .param = param, .threads = 1 };
	if (options) {
		s.scratch_dir = options->scratch_dir;
		s.tokenizer_path = options->tokenizer_path;
		s.tokenizer_label =
			spec->data.tokenizer_file[0] ? spec->data.tokenizer_file : "tokenizer.json";
		s.threads = options->threads > 1 ? options->threads : 1;
	}
	int rc = open_format(d, &s, err);
	if (rc)
		return rc;
	*ret = take_ptr(d);
	return 0;
}

void data_close(struct data *d)
{
	if (!d)
		return;
	for (int i = 0; i < d->map_count; i++) {
		/* munmap takes no const; nothing is written. */
		union {
			const unsigned char *in;
			void *out;
		} p = { .in = d->map[i].bytes };
		munmap(p.out, d->map[i].size);
	}
	for (int i = 0; i < DATA_SCRATCHES; i++)
		data_scratch_close(&d->scratch[i]);
	free(d->stream.segment);
	free(d->header);
	free(d->class_names);
	free(d);
}

void data_closep(struct data **d)
{
	data_close(*d);
	*d = NULL;
}

const struct data_info *data_info(const struct data *d)
{
	return &d->info;
}

void data_dims(const struct data *training, const struct data *validation, struct plan_dataset *ret)
{
	const struct data_info *t = &training->info;
	*ret = (struct plan_dataset){ .training_samples = t->samples,
		.training_tokens = t->tokens,
		.vocabulary = t->vocabulary,
		.in_channels = t->channels,
		.in_height = t->height,
		.in_width = t->width,
		.n_classes = t->classes };
	if (!validation)
		return;
	const struct data_info *v = &validation->info;
	ret->validation_samples = v->samples;
	ret->validation_tokens = v->tokens;
	if (v->classes > ret->n_classes)
		ret->n_classes = v->classes;
	if (v->vocabulary > ret->vocabulary)
		ret->vocabulary = v->vocabulary;
}

static int agree_names(const struct data *t, const struct data *v, struct err *err)
{
	const char *a = t->class_names, *b = v->class_names;
	if (!a && !b)
		return 0;
	if (!a || !b)
		return err_set(err, ERR_INVALID_DATA, "validation_file",
			"the classes of the validation images are %s, those of the training images %s",
			b ? "names of folders" : "numbers in .cls files",
			a ? "names of folders" : "numbers in .cls files");
	while (*a && *b) {
		int la = (int)strcspn(a, "\n"), lb = (int)strcspn(b, "\n");
		if (la != lb || memcmp(a, b, (size_t)la) != 0)
			break;
		a += la + 1;
		b += lb + 1;
	}
	if (*a || *b)
		return err_set(err, ERR_INVALID_DATA, "validation_file",
			"the folders of the validation images are other classes than those of the training "
			"images, from \"%.*s\" (training: \"%.*s\") on",
			(int)strcspn(b, "\n"), b, (int)strcspn(a, "\n"), a);
	return 0;
}

/* The columns of tables, by name and order. */
static int agree_header(const struct data *t, const struct data *v, struct err *err)
{
	const char *a = t->header, *b = v->header;
	if (!a || !b)
		return 0;
	while (
		a < t->header + t->header_bytes && b < v->header + v->header_bytes && strcmp(a, b) == 0) {
		a += strlen(a) + 1;
		b += strlen(b) + 1;
	}
	bool a_more = a < t->header + t->header_bytes, b_more = b < v->header + v->header_bytes;
	if (a_more || b_more)
		return err_set(err, ERR_INVALID_DATA, "validation_file",
			"the header of the validation file is another than that of the training file, from "
			"\"%.64s\" (training: \"%.64s\") on",
			b_more ? b : "", a_more ? a : "");
	return 0;
}

int data_agree(const struct data *training, const struct data *validation, struct err *err)
{
	const struct data_info *t = &training->info, *v = &validation->info;
	if (v->channels != t->channels || v->height != t->height || v->width != t->width)
		return err_set(err, ERR_INVALID_DATA, "validation_file",
			"validation samples are %lldx%lldx%lld (height, width, channels), training samples "
			"%lldx%lldx%lld",
			(long long)v->height, (long long)v->width, (long long)v->channels, (long long)t->height,
			(long long)t->width, (long long)t->channels);
	if (training->task == SPEC_REGRESSION && v->classes != t->classes)
		return err_set(err, ERR_INVALID_DATA, "validation_file",
			"validation targets have %lld values, training targets %lld", (long long)v->classes,
			(long long)t->classes);
	int rc = agree_header(training, validation, err);
	return rc ? rc : agree_names(training, validation, err);
}

int data_validate(const struct job_spec *spec, const struct data_file *training, int training_count,
	const struct data_file *validation, int validation_count, const struct data_options *options,
	struct plan_dataset *ret, struct err *err)
{
	cleanup(data_closep) struct data *t = NULL;
	cleanup(data_closep) struct data *v = NULL;
	int rc = data_open(spec, training, training_count, "training_file", options, &t, err);
	if (!rc && validation_count > 0)
		rc = data_open(spec, validation, validation_count, "validation_file", options, &v, err);
	if (!rc && v)
		rc = data_agree(t, v, err);
	if (rc)
		return rc;
	data_dims(t, v, ret);
	return 0;
}

void data_read(
	const struct data *d, int64_t index, int64_t slot, uint64_t draw, const struct data_batch *b)
{
	d->reader->read(d, index, slot, draw, b);
}

void data_blank(const struct data *d, int64_t slot, const struct data_batch *b)
{
	d->reader->blank(d, slot, b);
}

int64_t data_valid_rows(const struct data *d, int64_t index)
{
	return d->reader->valid_rows(d, index);
}

int64_t data_evaluation_samples(const struct data *d)
{
	bool partial = d->reader == &data_stream_reader && d->info.tokens % d->window != 0;
	return d->info.samples + (partial ? 1 : 0);
}

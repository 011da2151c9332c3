/* SPDX-License-Identifier: Apache-2.0
 * Data sets: mapping files, choosing the format, the order of samples. Called by the engine and the
 * trainer; an open set is read-only. */
#include "workers/engine/data.h"

#include "workers/engine/data_private.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
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
	cleanup(closep) int fd = open(f->path, O_RDONLY | O_CLOEXEC);
	if (fd < 0) {
		int code = err_errno(err, ERR_IO, errno, "file %s cannot be opened", m->label);
		return code;
	}
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

int data_open(const struct job_spec *spec, const struct data_file *files, int count,
	const char *param, struct data **ret, struct err *err)
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
	for (int i = 0; i < count; i++) {
		int rc = map_file(&d->map[i], &files[i], param, err);
		if (rc)
			return rc;
		d->map_count++;
		d->info.bytes += (int64_t)d->map[i].size;
	}
	int rc = d->format == SPEC_FORMAT_TEXT ? data_text_open(d, param, err)
										   : data_idx_open(d, spec, param, err);
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
		.in_channels = t->channels,
		.in_height = t->height,
		.in_width = t->width,
		.n_classes = t->classes };
	if (!validation)
		return;
	ret->validation_samples = validation->info.samples;
	ret->validation_tokens = validation->info.tokens;
	if (validation->info.classes > ret->n_classes)
		ret->n_classes = validation->info.classes;
}

int data_validate(const struct job_spec *spec, const struct data_file *training, int training_count,
	const struct data_file *validation, int validation_count, struct plan_dataset *ret,
	struct err *err)
{
	cleanup(data_closep) struct data *t = NULL;
	cleanup(data_closep) struct data *v = NULL;
	int rc = data_open(spec, training, training_count, "training_file", &t, err);
	if (!rc && validation_count > 0)
		rc = data_open(spec, validation, validation_count, "validation_file", &v, err);
	if (rc)
		return rc;
	if (v &&
		(v->info.channels != t->info.channels || v->info.height != t->info.height ||
			v->info.width != t->info.width))
		return err_set(err, ERR_INVALID_DATA, "validation_file",
			"validation samples are %lldx%lldx%lld (height, width, channels), training samples "
			"%lldx%lldx%lld",
			(long long)v->info.height, (long long)v->info.width, (long long)v->info.channels,
			(long long)t->info.height, (long long)t->info.width, (long long)t->info.channels);
	if (v && spec->task == SPEC_REGRESSION && v->info.classes != t->info.classes)
		return err_set(err, ERR_INVALID_DATA, "validation_file",
			"validation targets have %lld values, training targets %lld",
			(long long)v->info.classes, (long long)t->info.classes);
	data_dims(t, v, ret);
	return 0;
}

void data_read(const struct data *d, int64_t index, int64_t slot, void *input, void *labels)
{
	if (d->format == SPEC_FORMAT_TEXT)
		data_text_read(
			d, index, (int32_t *)input + slot * d->window, (int32_t *)labels + slot * d->window);
	else
		data_idx_read(d, index, slot, input, labels);
}

void data_blank(const struct data *d, int64_t slot, void *input, void *labels)
{
	if (d->format == SPEC_FORMAT_TEXT) {
		memset((int32_t *)input + slot * d->window, 0, (size_t)d->window * sizeof(int32_t));
		for (int64_t i = 0; i < d->window; i++)
			((int32_t *)labels)[slot * d->window + i] = -1;
		return;
	}
	memset((float *)input + slot * d->features, 0, (size_t)d->features * sizeof(float));
	if (d->task != SPEC_REGRESSION)
		((int32_t *)labels)[slot] = -1;
	else
		((float *)labels)[slot * d->info.classes] = NAN;
}

int64_t data_evaluation_samples(const struct data *d)
{
	bool partial = d->format == SPEC_FORMAT_TEXT && d->info.tokens % d->window != 0;
	return d->info.samples + (partial ? 1 : 0);
}

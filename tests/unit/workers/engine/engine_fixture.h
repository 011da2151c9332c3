/* SPDX-License-Identifier: Apache-2.0
 * What the engine's tests share: comparison, and an engine ready to step on small data. */
#pragma once

#include "tests/support/backend.h"
#include "tests/unit/workers/engine/data_fixture.h"
#include "workers/engine/engine_private.h"

FIXTURE_FN float *fixture_floats(int64_t count, uint64_t seed)
{
	float *x = aligned_alloc(64, (size_t)(count + 16) / 16 * 64);
	assert_non_null(x);
	uint64_t state = seed * 977 + 12345;
	for (int64_t i = 0; i < count; i++)
		x[i] = (float)fixture_random(&state);
	return x;
}

/* Largest difference, relative to the largest magnitude of the reference. */
FIXTURE_FN double fixture_distance(const float *x, const double *ref, int64_t count)
{
	double diff = 0, size = 1e-30;
	for (int64_t i = 0; i < count; i++) {
		if (!isfinite((double)x[i]))
			return INFINITY;
		diff = fmax(diff, fabs((double)x[i] - ref[i]));
		size = fmax(size, fabs(ref[i]));
	}
	return diff / size;
}

#define assert_close(x, ref, count, tolerance)                                  \
	do {                                                                        \
		double fixture_d = fixture_distance(x, ref, count);                     \
		if (!(fixture_d <= (tolerance)))                                        \
			fail_msg("%s: distance %.3g exceeds %.3g (line %d)", #x, fixture_d, \
				(double)(tolerance), __LINE__);                                 \
	} while (0)

/* Prompts and completions of unequal lengths, so that micro-batches have unequal numbers of tokens
 * with a loss. */
FIXTURE_FN struct fixture_file fixture_prompts(int documents)
{
	char *text = NULL;
	size_t size = 0;
	FILE *f = open_memstream(&text, &size);
	uint64_t state = 9;
	for (int i = 0; i < documents; i++) {
		const char *const part[2] = { "{\"prompt\":\"", "\",\"completion\":\"" };
		for (int k = 0; k < 2; k++) {
			fputs(part[k], f);
			int length = 1 + (int)(3.9 * (1 + fixture_random(&state)));
			for (int c = 0; c < length; c++)
				fputc('a' + (int)(12.9 * (1 + fixture_random(&state))) % 26, f);
		}
		fputs("\"}\n", f);
	}
	fclose(f);
	struct fixture_file file = fixture_write(text, size);
	free(text);
	return file;
}

/* Columns: label, d0.., c0..: a click follows from the first categorical column. */
FIXTURE_FN struct fixture_file fixture_clicks(const struct job_spec *spec, int rows)
{
	char *text = NULL;
	size_t size = 0;
	FILE *f = open_memstream(&text, &size);
	uint64_t state = 13;
	fputs("label", f);
	for (int i = 0; i < spec->model.dense_features; i++)
		fprintf(f, ",d%d", i);
	for (int i = 0; i < spec->model.table_count; i++)
		fprintf(f, ",c%d", i);
	for (int r = 0; r < rows; r++) {
		int first = (int)(8 * (1 + fixture_random(&state)));
		fprintf(f, "\n%d", first % 3 == 0);
		for (int i = 0; i < spec->model.dense_features; i++)
			fprintf(f, ",%.4f", fixture_random(&state));
		for (int i = 0; i < spec->model.table_count; i++)
			fprintf(f, ",%d", i == 0 ? first : (int)(4 * (1 + fixture_random(&state))));
	}
	fputs("\n", f);
	fclose(f);
	struct fixture_file file = fixture_write(text, size);
	free(text);
	return file;
}

/* Data, plan and engine of one spec, ready to step. Data: 37 samples or so. */
struct fixture {
	struct job_spec spec;
	struct fixture_file file[2];
	int files;
	struct data *data;
	struct plan *plan;
	struct engine *engine;
};

FIXTURE_FN void fixture_files(struct fixture *f)
{
	const struct job_spec *s = &f->spec;
	f->files = 1;
	if (s->data.format == SPEC_FORMAT_TEXT) {
		f->file[0] = fixture_text(37 * 12 + 6);
	} else if (s->data.format == SPEC_FORMAT_JSONL) {
		f->file[0] = fixture_prompts(s->data.packing ? 60 : 37);
	} else if (s->data.format == SPEC_FORMAT_CSV) {
		f->file[0] = fixture_clicks(s, 37);
	} else if (s->task == SPEC_REGRESSION) {
		f->files = 2;
		fixture_regression(37, 9, 3, &f->file[0], &f->file[1]);
	} else {
		f->files = 2;
		fixture_images(
			37, (int)s->model.in_height, (int)s->model.in_width, 5, &f->file[0], &f->file[1]);
	}
}

FIXTURE_FN void fixture_engine(struct fixture *f, int threads)
{
	struct err err = { 0 };
	assert_ok(
		engine_create(&f->spec, f->plan, test_backend(f->plan->type), threads, &f->engine, &err));
	assert_ok(engine_init_params(f->engine, &err));
	assert_ok(engine_attach(f->engine, f->data, f->data, &err));
}

/* One micro-batch of training; the sum of its row losses. */
FIXTURE_FN double fixture_micro(struct engine *e, int64_t micro, float row_scale)
{
	engine_step_micro(e, micro, row_scale);
	engine_finish(e);
	return e->numbers[1 + micro];
}

/* With the files given, which the caller unlinks. */
FIXTURE_FN void fixture_open_files(struct fixture *f, struct job_spec spec, int threads,
	const struct fixture_file *file, int count)
{
	struct err err = { 0 };
	struct data_file files[2] = { { file[0].path, "first" }, { file[count - 1].path, "second" } };
	*f = (struct fixture){ .spec = spec };
	assert_ok(data_open(&f->spec, files, count, "training_file", NULL, &f->data, &err));
	struct plan_dataset dims;
	data_dims(f->data, NULL, &dims);
	assert_ok(plan_compile(&f->spec, &dims, &f->plan, &err));
	fixture_engine(f, threads);
}

FIXTURE_FN void fixture_open(struct fixture *f, struct job_spec spec, int threads)
{
	struct fixture files = { .spec = spec };
	fixture_files(&files);
	fixture_open_files(f, spec, threads, files.file, files.files);
	f->files = files.files;
	memcpy(f->file, files.file, sizeof(f->file));
}

FIXTURE_FN void fixture_close(struct fixture *f)
{
	engine_destroy(f->engine);
	plan_destroy(f->plan);
	data_close(f->data);
	for (int i = 0; i < f->files; i++)
		unlink(f->file[i].path);
}

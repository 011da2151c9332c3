/* SPDX-License-Identifier: Apache-2.0
 * What the engine's tests share: comparison, and an engine ready to step on small data. */
#pragma once

#include "tests/unit/workers/engine/data_fixture.h"
#include "workers/engine/engine.h"

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
	f->files = 2;
	if (f->spec.task == SPEC_LANGUAGE_MODEL) {
		f->file[0] = fixture_text(37 * 12 + 6);
		f->files = 1;
	} else if (f->spec.task == SPEC_REGRESSION) {
		fixture_regression(37, 9, 3, &f->file[0], &f->file[1]);
	} else {
		fixture_images(37, 10, 9, 5, &f->file[0], &f->file[1]);
	}
}

FIXTURE_FN void fixture_open(struct fixture *f, struct job_spec spec, int threads)
{
	struct err err = { 0 };
	*f = (struct fixture){ .spec = spec };
	fixture_files(f);
	struct data_file files[2] = { { f->file[0].path, "first" }, { f->file[1].path, "second" } };
	assert_ok(data_open(&f->spec, files, f->files, "training_file", &f->data, &err));
	struct plan_dataset dims;
	data_dims(f->data, NULL, &dims);
	assert_ok(plan_compile(&f->spec, &dims, &f->plan, &err));
	assert_ok(engine_create(&f->spec, f->plan, engine_backend_cpu(), threads, &f->engine, &err));
	engine_init_params(f->engine);
	assert_ok(engine_attach(f->engine, f->data, f->data, &err));
}

FIXTURE_FN void fixture_close(struct fixture *f)
{
	engine_destroy(f->engine);
	plan_destroy(f->plan);
	data_close(f->data);
	for (int i = 0; i < f->files; i++)
		unlink(f->file[i].path);
}

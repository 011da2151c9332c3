/* SPDX-License-Identifier: Apache-2.0
 * One job trained by any mesh of real processes, and what came out of it, so that a test can hold
 * it against one rank's. The reference runs in a process of its own too. */
#pragma once

#include "tests/support/backend.h"
#include "tests/unit/workers/comm/comm_fixture.h"
#include "tests/unit/workers/engine/engine_cases.h"
#include "workers/engine/engine_private.h"
#include "workers/engine/mesh.h"

#include <math.h>

enum {
	RUN_STEPS = 20,
	RUN_STEPS_DEVICE = 5,       /* kernels under emulation */
	RUN_ELEMENTS_MAX = 1 << 18, /* of a model */
	RUN_RANKS_MAX = FIXTURE_RANKS_MAX,
	RUN_PARAMS_MAX = 512,
};

struct run_step {
	double loss, norm, learning_rate;
	int64_t samples, tokens;
};

/* Lies in memory that all ranks share. */
struct run_result {
	struct run_step step[RUN_RANKS_MAX][RUN_STEPS];
	struct engine_evaluation evaluation[RUN_RANKS_MAX];
	int64_t plan_bytes[RUN_RANKS_MAX], memory_bytes[RUN_RANKS_MAX];
	int64_t owned; /* elements that somebody wrote to params, all in all */
	int64_t params_count;
	float params[RUN_ELEMENTS_MAX]; /* exact values, in the order of the whole model */
	/* What operations read, of each parameter that a rank has whole; 0 bytes: it does not. */
	uint8_t weights[RUN_RANKS_MAX][RUN_ELEMENTS_MAX * 4];
	struct run_weight {
		int64_t at, bytes, cut_first;
	} weight[RUN_RANKS_MAX][RUN_PARAMS_MAX];
};

/* What the ranks are told. */
struct run_job {
	struct job_spec spec;
	struct data_file files[2];
	int file_count;
};

static inline int run_steps(void)
{
	return engine_is_apart(test_backend(PLAN_F32)) ? RUN_STEPS_DEVICE : RUN_STEPS;
}

static inline struct run_result *run_of(struct rank *r)
{
	return r->all->shared;
}

/* Where each parameter of the whole model begins, by its number; returns the elements of all. */
static inline int64_t run_places(
	const struct run_job *job, const struct plan_dataset *dims, int64_t *ret_at)
{
	struct err err = { 0 };
	struct plan *whole = NULL;
	struct job_spec spec = job->spec;
	int64_t at = 0;
	spec.parallel = (struct spec_parallel){ 1, 1, 1, 0, 0, 0 };
	RANK_OK(plan_compile_rank(&spec, dims, 0, &whole, &err));
	RANK_CHECK(whole->param_count <= RUN_PARAMS_MAX);
	for (int i = 0; i < whole->param_count; i++) {
		RANK_CHECK(whole->params[i].number == i);
		ret_at[i] = at;
		at += whole->params[i].count;
	}
	RANK_CHECK(at <= RUN_ELEMENTS_MAX);
	plan_destroy(whole);
	return at;
}

/* Each element of each parameter belongs to one rank, or to several alike: then the first tells. */
static inline void run_collect(
	struct rank *r, struct engine *e, const struct plan *p, const int64_t *places)
{
	struct run_result *res = run_of(r);
	int64_t owned = 0;
	for (int i = 0; i < p->param_count; i++) {
		struct engine_tensor t;
		int64_t at = places[p->params[i].number];
		engine_tensor_at(e, i, &t);
		for (int64_t k = 0; k < t.count && t.copy == 0; k++) {
			float x = 0;
			if (t.type == PLAN_F32)
				x = ((float *)t.data)[k];
			else
				engine_backend_cpu(p->type)->to_f32(1, (uint16_t *)t.data + k, &x);
			res->params[at + plan_cut_at(&t.cut, t.begin + k)] = x;
			owned++;
		}
	}
	__atomic_add_fetch(&res->owned, owned, __ATOMIC_RELAXED);
}

/* The weights that a rank has whole. */
static inline void run_weights(struct rank *r, struct engine *e, const struct plan *p)
{
	struct run_result *res = run_of(r);
	int64_t at = 0;
	for (int i = 0; i < p->param_count; i++) {
		const struct plan_param *pr = &p->params[i];
		int buffer = pr->bucket < 0 ? pr->weight : p->buckets[pr->bucket].weights;
		if (buffer < 0)
			continue;
		int64_t size = plan_type_bytes(p->buffers[buffer].type), bytes = pr->count * size;
		const char *from = engine_buffer(e, buffer);
		from += pr->bucket < 0 ? 0 : pr->bucket_begin * size;
		RANK_CHECK(at + bytes <= RUN_ELEMENTS_MAX * 4);
		e->backend->get(e->ctx, &res->weights[r->rank][at], from, bytes);
		res->weight[r->rank][pr->number] = (struct run_weight){ at, bytes, pr->cut.first };
		at += bytes;
	}
}

/* A rank ready to step. */
struct run_open {
	struct plan_dataset dims;
	struct data *data;
	struct plan *plan;
	struct mesh *mesh;
	struct engine *engine;
};

static inline void run_open(
	struct rank *r, const struct run_job *job, int64_t deadline_ms, struct run_open *ret)
{
	struct err err = { 0 };
	RANK_OK(data_open(
		&job->spec, job->files, job->file_count, "training_file", NULL, &ret->data, &err));
	data_dims(ret->data, NULL, &ret->dims);
	RANK_OK(plan_compile_rank(&job->spec, &ret->dims, r->rank, &ret->plan, &err));
	RANK_CHECK(plan_mesh_size(&ret->plan->mesh) == r->size);
	const struct backend *backend = test_backend(ret->plan->type);
	struct mesh_options o = { .store = r->store,
		.open_ms = FIXTURE_DEADLINE_MS,
		.deadline_ms = deadline_ms,
		.check = true,
		.apart = engine_is_apart(backend) };
	RANK_OK(mesh_open(&ret->plan->mesh, &o, &ret->mesh, &err));
	RANK_OK(engine_create(&job->spec, ret->plan, backend, 1, &ret->engine, &err));
	RANK_OK(engine_join(ret->engine, ret->mesh, &err));
	RANK_OK(engine_init_params(ret->engine, &err));
	RANK_OK(engine_attach(ret->engine, ret->data, ret->data, &err));
}

static inline void run_rank(struct rank *r)
{
	struct run_result *res = run_of(r);
	struct err err = { 0 };
	struct run_open o;
	run_open(r, r->all->arg, FIXTURE_DEADLINE_MS, &o);
	for (int i = 0; i < run_steps(); i++) {
		struct engine_step s;
		RANK_OK(engine_step(o.engine, &s, &err));
		RANK_CHECK(!s.non_finite);
		res->step[r->rank][i] =
			(struct run_step){ s.loss, s.grad_norm, s.learning_rate, s.samples, s.tokens };
	}
	RANK_OK(engine_evaluate(o.engine, NULL, NULL, &res->evaluation[r->rank], &err));
	res->plan_bytes[r->rank] = o.plan->total_bytes;
	res->memory_bytes[r->rank] = engine_memory_bytes(o.engine);
	int64_t places[RUN_PARAMS_MAX];
	res->params_count = run_places(r->all->arg, &o.dims, places);
	run_collect(r, o.engine, o.plan, places);
	run_weights(r, o.engine, o.plan);
	engine_destroy(o.engine);
	mesh_close(o.mesh);
	plan_destroy(o.plan);
	data_close(o.data);
}

static inline void run_job_of(
	const struct fixture *f, struct spec_parallel parallel, struct run_job *ret)
{
	*ret = (struct run_job){ .spec = f->spec, .file_count = f->files };
	ret->spec.parallel = parallel;
	for (int i = 0; i < f->files; i++)
		ret->files[i] = (struct data_file){ f->file[i].path, i == 0 ? "first" : "second" };
}

/* The files are made once per case. */
static inline void run_mesh(
	struct fixture *f, struct spec_parallel parallel, struct run_result *ret)
{
	struct run_job job;
	run_job_of(f, parallel, &job);
	memset(ret, 0, sizeof(*ret));
	int64_t size = parallel.data * parallel.tensor * parallel.pipeline;
	fixture_run((int)size, run_rank, &job, ret);
}

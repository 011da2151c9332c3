/* SPDX-License-Identifier: Apache-2.0
 * A training of several ranks that saves, resumes and exports, each rank a process, and all of its
 * state put together in memory that the test sees. */
#pragma once

#include "tests/parallel/parallel_fixture.h"
#include "tests/support/check.h"
#include "workers/trainer/saver.h"
#include "workers/trainer/session.h"
#include "workers/trainer/shards.h"

enum {
	LIFE_TENSORS_MAX = 1024,
	LIFE_STATE_MAX = 1 << 22, /* bytes */
	LIFE_UNIT = 4,            /* bytes for an element of any type */
	LIFE_STEPS_MAX = 16,
};

/* All tensors of all ranks: the parameters of the whole model in its order, then as many of each
 * other kind, of which some may be none. */
struct life_state {
	int count;
	char name[LIFE_TENSORS_MAX][ENGINE_TENSOR_NAME_MAX]; /* "": there is none */
	int64_t at[LIFE_TENSORS_MAX + 1];
	int64_t written, total; /* elements: by all ranks together, and of all tensors */
	uint8_t bytes[LIFE_STATE_MAX];
	struct engine_state engine;
};

/* Lies in memory that all ranks share. */
struct life {
	struct life_state opened, saved;
	double loss[RUN_RANKS_MAX][LIFE_STEPS_MAX]; /* after the save, or from the beginning */
	int64_t memory_kib[RUN_RANKS_MAX][2];
	int code[RUN_RANKS_MAX];
	char message[RUN_RANKS_MAX][ERR_MESSAGE_MAX];
};

/* What the ranks are told. */
struct life_job {
	struct job_spec spec;
	struct session_inputs inputs;
	int64_t before, after;           /* steps until the checkpoint, and then */
	const char *checkpoints, *model; /* folders, or NULL: none is written */
	const char *elsewhere; /* that ranks beyond the first see in place of `checkpoints`, or NULL */
	bool may_fail;         /* opening: code and message are told */
};

static inline struct life *life_of(struct rank *r)
{
	return r->all->shared;
}

/* Where everything lies, on any mesh. */
static inline void life_lay_out(const struct session *x, struct life_state *s)
{
	cleanup(plan_destroyp) struct plan *whole = NULL;
	struct job_spec alone = x->spec;
	struct err err = { 0 };
	alone.device_count = 1;
	alone.parallel = (struct spec_parallel){ .data = 1, .tensor = 1, .pipeline = 1 };
	RANK_OK(plan_compile(&alone, &x->plan->dataset, &whole, &err));
	s->count = whole->param_count * ENGINE_PART_COUNT;
	RANK_CHECK(s->count <= LIFE_TENSORS_MAX);
	for (int i = 0; i < s->count; i++) {
		int64_t bytes = whole->params[i % whole->param_count].count * LIFE_UNIT;
		s->at[i + 1] = s->at[i] + bytes;
	}
	RANK_CHECK(s->at[s->count] <= LIFE_STATE_MAX);
}

/* Each rank has its part. */
static inline void life_collect(struct rank *r, const struct session *x, struct life_state *s)
{
	static struct life_state lies; /* the same on every rank: none waits for another */
	lies.count = 0;
	life_lay_out(x, &lies);
	const int params = lies.count / ENGINE_PART_COUNT;
	int64_t written = 0, total = 0;
	for (int i = 0; i < engine_tensor_count(x->engine); i++) {
		struct engine_tensor t;
		engine_tensor_at(x->engine, i, &t);
		int slot = t.number / PLAN_BUFFERS_MAX * params + t.number % PLAN_BUFFERS_MAX;
		int64_t unit = plan_type_bytes(t.type);
		for (int64_t k = 0; k < t.count && t.copy == 0; k++)
			memcpy(s->bytes + lies.at[slot] + plan_cut_at(&t.cut, t.begin + k) * LIFE_UNIT,
				(char *)t.data + k * unit, (size_t)unit);
		written += t.copy == 0 ? t.count : 0;
		if (t.copy == 0 && t.count > 0 && plan_cut_at(&t.cut, t.begin) == 0) {
			total += hf_weights_elements(&t);
			snprintf(s->name[slot], sizeof(s->name[slot]), "%s", t.name);
		}
	}
	__atomic_add_fetch(&s->written, written, __ATOMIC_RELAXED);
	__atomic_add_fetch(&s->total, total, __ATOMIC_RELAXED);
	if (r->rank != 0)
		return;
	s->count = lies.count;
	memcpy(s->at, lies.at, sizeof(s->at));
	engine_state_get(x->engine, &s->engine);
}

static inline struct mesh *life_join(struct rank *r, const struct job_spec *spec)
{
	struct err err = { 0 };
	struct plan_mesh place;
	struct mesh *mesh = NULL;
	const struct mesh_options o = { .store = r->store,
		.open_ms = FIXTURE_DEADLINE_MS,
		.deadline_ms = FIXTURE_DEADLINE_MS,
		.check = true };
	if (r->size == 1)
		return NULL;
	RANK_OK(plan_mesh_of(spec, r->rank, &place, &err));
	RANK_OK(mesh_open(&place, &o, &mesh, &err));
	return mesh;
}

struct life_watch {
	struct saver *saver;
	const struct plan *plan;
};

static inline void life_hold(
	void *ctx, const struct plan_op *op, int64_t micro, int64_t begin_ns, int64_t end_ns)
{
	struct life_watch *w = ctx;
	(void)begin_ns;
	(void)end_ns;
	if (micro == w->plan->micro_steps - 1 && op == &w->plan->ops[w->plan->optimize_begin - 1])
		saver_hold(w->saver, NULL, NULL);
}

static inline double life_step(struct session *s)
{
	struct engine_step now;
	struct err err = { 0 };
	RANK_OK(engine_step(s->engine, &now, &err));
	RANK_CHECK(!now.non_finite);
	s->metrics.has_loss = true;
	s->metrics.loss = now.loss;
	return now.loss;
}

/* The checkpoint is written while the next steps run. */
static inline void life_train(struct rank *r, struct session *s, struct mesh *mesh)
{
	const struct life_job *job = r->all->arg;
	struct life *l = life_of(r);
	struct hf_model model = session_model(s);
	struct life_watch watch = { .plan = s->plan };
	struct err err = { 0 };
	bool writes = job->checkpoints != NULL && (r->rank == 0 || shards_are_used(&s->plan->mesh));
	for (int i = 0; i < job->before; i++)
		(void)life_step(s);
	if (writes) {
		const char *seen =
			r->rank > 0 && job->elsewhere != NULL ? job->elsewhere : job->checkpoints;
		life_collect(r, s, &l->saved);
		if (shards_are_used(&s->plan->mesh))
			RANK_OK(shards_meet(mesh->save, seen, &model.apart, &err));
		RANK_CHECK(model.apart == (job->elsewhere != NULL));
		RANK_OK(saver_create(&model, &watch.saver, &err));
		RANK_OK(saver_begin(watch.saver, &s->metrics, seen, &err));
		engine_trace(s->engine, life_hold, &watch);
	}
	for (int i = 0; i < job->after; i++)
		l->loss[r->rank][i] = life_step(s);
	if (writes)
		RANK_OK(saver_finish(watch.saver, NULL, NULL, &err));
	saver_destroy(watch.saver);
	if (job->model != NULL)
		RANK_OK(session_write_model(s, job->model, &err));
}

static inline void life_rank(struct rank *r)
{
	const struct life_job *job = r->all->arg;
	struct life *l = life_of(r);
	struct err err = { 0 };
	struct session *s = NULL;
	struct mesh *mesh = life_join(r, &job->spec);
	struct session_inputs inputs = job->inputs;
	inputs.mesh = mesh;
	l->code[r->rank] = session_open(&job->spec, &inputs, &s, &err);
	snprintf(l->message[r->rank], sizeof(l->message[0]), "%s", err.message);
	if (!job->may_fail)
		RANK_OK(l->code[r->rank]);
	if (s != NULL) {
		life_collect(r, s, &l->opened);
		life_train(r, s, mesh);
	}
	session_close(s);
	mesh_close(mesh);
}

/* The job on a mesh. */
static inline void life_place(struct life_job *job, struct spec_parallel parallel)
{
	job->spec.device_count = (int)(parallel.data * parallel.tensor * parallel.pipeline);
	job->spec.parallel = parallel;
	job->spec.parallel.bucket_bytes = 4096;
}

static inline void life_run_on(
	struct life_job *job, struct spec_parallel parallel, struct life *ret)
{
	life_place(job, parallel);
	memset(ret, 0, sizeof(*ret));
	fixture_run(job->spec.device_count, life_rank, job, ret);
}

/* The job on so many ranks of the data axis; zero is of no account for one. */
static inline void life_mesh(struct life_job *job, int ranks, int zero)
{
	life_place(job, (struct spec_parallel){ ranks, 1, 1, ranks > 1 ? zero : 0, 0, 0 });
}

static inline void life_run(struct life_job *job, int ranks, int zero, struct life *ret)
{
	life_run_on(job, (struct spec_parallel){ ranks, 1, 1, ranks > 1 ? zero : 0, 0, 0 }, ret);
}

/* The job of a case, with its files. */
static inline struct life_job life_job_of(struct fixture *f, const struct job_spec *spec)
{
	struct life_job job = { .spec = *spec };
	job.spec.hyper.batch_size = 16;
	job.spec.hyper.micro_batch_size = 2;
	job.spec.hyper.learning_rate = spec->model.family == SPEC_CNN ? 1e-4 : 1e-3;
	*f = (struct fixture){ .spec = job.spec };
	fixture_files(f);
	for (int i = 0; i < f->files; i++)
		job.inputs.training[i] = (struct data_file){ f->file[i].path, i == 0 ? "first" : "second" };
	job.inputs.training_count = f->files;
	job.inputs.threads = 1;
	return job;
}

static inline void life_forget(struct fixture *f)
{
	for (int i = 0; i < f->files; i++)
		unlink(f->file[i].path);
}

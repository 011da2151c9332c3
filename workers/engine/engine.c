/* SPDX-License-Identifier: Apache-2.0
 * The engine's life: memory, parameters, state and tensors. Called by the trainer's loop, from the
 * one thread that owns the engine. */
#include "workers/engine/engine.h"

#include "workers/engine/engine_private.h"
#include "workers/engine/rng.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ENGINE_THREADS_MAX = 1024 };

/* Neighbouring parameters with the same decay become one range, padding included (it stays 0). */
static int make_segments(struct engine *e, struct err *err)
{
	const struct plan *p = e->plan;
	e->segments = calloc((size_t)p->param_count, sizeof(*e->segments));
	if (!e->segments)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for the parameters' table");
	int64_t base = p->buffers[p->params[0].weight].offset;
	for (int i = 0; i < p->param_count; i++) {
		int64_t begin = (p->buffers[p->params[i].weight].offset - base) / 4;
		int64_t end = i + 1 < p->param_count
			? (p->buffers[p->params[i + 1].weight].offset - base) / 4
			: p->flat_count;
		float decay = p->params[i].decay ? (float)e->spec->hyper.weight_decay : 0.0f;
		struct backend_segment *last = &e->segments[e->segment_count - (e->segment_count > 0)];
		if (e->segment_count > 0 && last->decay == decay)
			last->end = end;
		else
			e->segments[e->segment_count++] = (struct backend_segment){ begin, end, decay };
	}
	return 0;
}

int engine_create(const struct job_spec *spec, const struct plan *plan,
	const struct backend *backend, int threads, struct engine **ret, struct err *err)
{
	if (threads < 1 || threads > ENGINE_THREADS_MAX)
		return err_set(err, ERR_INVALID_VALUE, NULL, "threads must be 1 to %d, not %d",
			ENGINE_THREADS_MAX, threads);
	cleanup(engine_destroyp) struct engine *e = calloc(1, sizeof(*e));
	if (!e)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for the engine");
	e->spec = spec;
	e->plan = plan;
	e->backend = backend;
	e->state.seed = spec->seed;
	void *arena = NULL;
	int rc = backend->open(threads, &e->ctx, err);
	if (!rc)
		rc = backend->map(e->ctx, plan->total_bytes, &arena, err);
	e->arena = arena;
	if (!rc)
		rc = make_segments(e, err);
	if (!rc)
		rc = engine_exec_prepare(e, err);
	if (rc)
		return rc;
	*ret = take_ptr(e);
	return 0;
}

void engine_destroy(struct engine *e)
{
	if (!e)
		return;
	engine_exec_finish(e);
	free(e->segments);
	if (e->ctx)
		e->backend->close(e->ctx);
	free(e);
}

void engine_destroyp(struct engine **e)
{
	engine_destroy(*e);
	*e = NULL;
}

/* Two independent normal numbers from each pair of uniform ones. */
static void normal(uint64_t key, double deviation, int64_t count, float *out)
{
#pragma omp parallel for schedule(static) if (count > 4096)
	for (int64_t i = 0; i < count; i += 2) {
		double radius = deviation * sqrt(-2.0 * log(rng_uniform(key, (uint64_t)i)));
		double angle = 2.0 * M_PI * rng_uniform(key, (uint64_t)i + 1);
		out[i] = (float)(radius * cos(angle));
		if (i + 1 < count)
			out[i + 1] = (float)(radius * sin(angle));
	}
}

static void init_param(const struct engine *e, int i)
{
	const struct plan_param *p = &e->plan->params[i];
	float *w = engine_buffer(e, p->weight);
	uint64_t key = rng_key((uint64_t)e->state.seed, RNG_PARAMETERS, (uint64_t)i);
	switch (p->init) {
	case PLAN_INIT_ZERO: e->backend->fill(p->count, 0.0f, w); break;
	case PLAN_INIT_ONE: e->backend->fill(p->count, 1.0f, w); break;
	case PLAN_INIT_NORMAL: normal(key, p->init_scale, p->count, w); break;
	case PLAN_INIT_UNIFORM:
		for (int64_t k = 0; k < p->count; k++)
			w[k] = (float)((2.0 * rng_uniform(key, (uint64_t)k) - 1.0) * p->init_scale);
		break;
	}
}

void engine_init_params(struct engine *e)
{
	e->backend->enter(e->ctx);
	for (int i = 0; i < e->plan->param_count; i++) {
		const struct plan_param *p = &e->plan->params[i];
		init_param(e, i);
		if (p->moment1 >= 0)
			e->backend->fill(p->count, 0.0f, engine_buffer(e, p->moment1));
		if (p->moment2 >= 0)
			e->backend->fill(p->count, 0.0f, engine_buffer(e, p->moment2));
	}
	e->state = (struct engine_state){ .seed = e->spec->seed };
}

static int check_data(
	const struct engine *e, const struct data *d, const char *param, struct err *err)
{
	const struct plan *p = e->plan;
	const struct data_info *i = data_info(d);
	if (p->family == SPEC_GPT2)
		return 0;
	if (i->channels != p->in_channels || i->height != p->in_height || i->width != p->in_width)
		return err_set(err, ERR_INVALID_DATA, param,
			"the samples are %lldx%lldx%lld (height, width, channels), the model takes "
			"%lldx%lldx%lld",
			(long long)i->height, (long long)i->width, (long long)i->channels,
			(long long)p->in_height, (long long)p->in_width, (long long)p->in_channels);
	if (i->classes > p->n_classes || (p->task == SPEC_REGRESSION && i->classes != p->n_classes))
		return err_set(err, ERR_INVALID_DATA, param, "the data has %lld %s, the model %lld",
			(long long)i->classes, p->task == SPEC_REGRESSION ? "outputs" : "classes",
			(long long)p->n_classes);
	return 0;
}

int engine_attach(
	struct engine *e, const struct data *training, const struct data *validation, struct err *err)
{
	int rc = check_data(e, training, "training_file", err);
	if (!rc && validation)
		rc = check_data(e, validation, "validation_file", err);
	if (rc)
		return rc;
	e->training = training;
	e->validation = validation;
	return 0;
}

void engine_state_get(const struct engine *e, struct engine_state *ret)
{
	*ret = e->state;
}

int engine_state_set(struct engine *e, const struct engine_state *s, struct err *err)
{
	int64_t position = 0, tokens = 0;
	bool over = __builtin_mul_overflow(s->step, e->plan->batch, &position);
	if (e->plan->family == SPEC_GPT2)
		over |= __builtin_mul_overflow(position, e->plan->sequence_length, &tokens);
	if (over || s->step < 0 || s->position != position || s->tokens != tokens)
		return err_set(err, ERR_INVALID_DATA, NULL,
			"the saved state (step %lld, position %lld, tokens %lld) is not of a run with batch "
			"%lld",
			(long long)s->step, (long long)s->position, (long long)s->tokens,
			(long long)e->plan->batch);
	if (s->seed != e->spec->seed)
		return err_set(err, ERR_INVALID_DATA, NULL,
			"the saved state has seed %lld, the job has %lld", (long long)s->seed,
			(long long)e->spec->seed);
	e->state = *s;
	return 0;
}

/* The tensors of the optimizer that the plan has: none, one or two for each parameter. */
static int moments(const struct plan *p)
{
	return (p->params[0].moment1 >= 0) + (p->params[0].moment2 >= 0);
}

int engine_tensor_count(const struct engine *e)
{
	return e->plan->param_count * (1 + moments(e->plan));
}

void engine_tensor_at(struct engine *e, int i, struct engine_tensor *ret)
{
	const struct plan *p = e->plan;
	const struct plan_param *pr = &p->params[i % p->param_count];
	int group = i / p->param_count;
	*ret = (struct engine_tensor){ .kind = group ? ENGINE_OPTIMIZER : ENGINE_PARAMETER,
		.dtype = "F32",
		.rank = pr->rank,
		.bytes = pr->count * 4 };
	memcpy(ret->shape, pr->shape, sizeof(ret->shape));
	const char *prefix = "";
	if (group == 1)
		prefix = p->optimizer == SPEC_ADAMW ? "optimizer.exp_avg." : "optimizer.momentum_buffer.";
	if (group == 2)
		prefix = "optimizer.exp_avg_sq.";
	snprintf(ret->name, sizeof(ret->name), "%s%s", prefix, pr->name);
	int buffer = group == 0 ? pr->weight : group == 1 ? pr->moment1 : pr->moment2;
	ret->data = engine_buffer(e, buffer);
}

int64_t engine_memory_bytes(const struct engine *e)
{
	return e->backend->memory_bytes(e->ctx);
}

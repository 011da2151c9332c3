/* SPDX-License-Identifier: Apache-2.0
 * Asks the search, and the plan for each mesh that would lead: no list here of what is built. */
#include "workers/plan/scale_choose.h"

#include "workers/plan/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct question {
	const struct job_spec *spec;
	const struct scale_cluster *c;
};

static struct job_spec with_mesh(const struct job_spec *spec, const struct scale_mesh *mesh)
{
	struct job_spec s = *spec;
	s.parallel.data = mesh->data;
	s.parallel.tensor = mesh->tensor;
	s.parallel.pipeline = mesh->pipeline;
	s.parallel.interleave = mesh->interleave > 1 ? mesh->interleave : 0;
	s.parallel.zero_stage = mesh->zero;
	s.hyper.micro_batch_size = mesh->micro_batch;
	s.checkpointing = mesh->checkpointing;
	return s;
}

/* The first stage keeps most activations, the last has the head. */
static int measure(void *ctx, const struct scale_mesh *mesh, double *ret_bytes, struct err *err)
{
	const struct question *q = ctx;
	const struct job_spec s = with_mesh(q->spec, mesh);
	const int ranks[] = { 0, mesh->data * mesh->tensor * (mesh->pipeline - 1) };
	int64_t most = 0;
	for (size_t i = 0; i < ARRAY_LEN(ranks) && (i == 0 || ranks[i] > 0); i++) {
		cleanup(plan_destroyp) struct plan *p = NULL;
		int rc = plan_compile_rank(&s, NULL, ranks[i], &p, err);
		if (rc)
			return rc;
		if (p->total_bytes > most)
			most = p->total_bytes;
	}
	*ret_bytes = (double)most + q->c->device.context_bytes;
	return 0;
}

static void say(const struct scale_search *found, char *out)
{
	const struct scale_choice *best = &found->choice[0];
	int n = snprintf(out, SCALE_CHOOSE_REASON_MAX, "%s", best->reason);
	if (found->choice_count == 1 || n < 0 || n >= SCALE_CHOOSE_REASON_MAX)
		return;
	const struct scale_choice *next = &found->choice[1];
	snprintf(out + n, (size_t)(SCALE_CHOOSE_REASON_MAX - n),
		"; next best: data %d, tensor %d, pipeline %d (%s)", next->mesh.data, next->mesh.tensor,
		next->mesh.pipeline, next->reason);
}

/* Data parallel, as the spec stands, whatever the device holds. */
static int choose_data(
	struct job_spec *spec, const char *why, struct scale_chosen *ret, struct err *err)
{
	const struct spec_hyper *h = &spec->hyper;
	int64_t data = spec->device_count;
	if (h->batch_size % data != 0)
		return err_set(err, ERR_INVALID_VALUE, "$.hyperparameters.batch_size",
			"the %lld devices share the batch, so batch_size (%lld) must be a multiple of %lld",
			(long long)data, (long long)h->batch_size, (long long)data);
	if (h->batch_size / data % h->micro_batch_size != 0)
		return err_set(err, ERR_INVALID_VALUE, "$.hyperparameters.micro_batch_size",
			"micro_batch_size (%lld) must divide what each rank has of batch_size: %lld",
			(long long)h->micro_batch_size, (long long)(h->batch_size / data));
	spec->parallel = (struct spec_parallel){ .data = data, .tensor = 1, .pipeline = 1 };
	*ret = (struct scale_chosen){ .parallel = spec->parallel };
	snprintf(ret->reason, sizeof(ret->reason), "%s", why);
	return 0;
}

/* No mesh is accepted: the reason is that of the simplest, which nobody has asked for. */
static int explain(const struct job_spec *spec, const struct spec_open *open, struct err *err)
{
	struct job_spec s = *spec;
	struct err why = { 0 };
	cleanup(plan_destroyp) struct plan *p = NULL;
	s.parallel = (struct spec_parallel){ .data = spec->device_count, .tensor = 1, .pipeline = 1 };
	if (open->micro_batch)
		s.hyper.micro_batch_size = 0; /* nobody has asked for one */
	int rc = plan_compile(&s, NULL, &p, &why);
	if (rc == 0)
		return ERR_INVALID_VALUE; /* what the search says */
	return err_set(err, rc, why.param,
		"no mesh of %lld devices can share this job ($.parallelism is left open); by data alone "
		"(%lld): %s",
		(long long)spec->device_count, (long long)spec->device_count, why.message);
}

static int search(struct job_spec *spec, const struct spec_open *open, const struct scale_model *m,
	const struct scale_cluster *c, struct scale_chosen *ret, struct err *err)
{
	struct question q = { .spec = spec, .c = c };
	const struct scale_bounds bounds = {
		.micro_batch = open->micro_batch ? 0 : spec->hyper.micro_batch_size,
		.micro_batch_most = open->micro_batch ? open->micro_batch_most : 0,
		.checkpointing_given = !open->checkpointing,
		.checkpointing = spec->checkpointing,
		.measure = measure,
		.ctx = &q,
	};
	cleanup(freep) struct scale_search *found = calloc(1, sizeof(*found));
	if (!found)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for the search");
	int rc = scale_search_within(m, c, &bounds, found, err);
	if (rc == ERR_INVALID_VALUE)
		rc = explain(spec, open, err);
	if (rc < 0 && rc != ERR_PLAN_TOO_LARGE)
		return rc;
	if (found->choice_count == 0)
		return rc;
	*spec = with_mesh(spec, &found->choice[0].mesh);
	*ret = (struct scale_chosen){ .parallel = spec->parallel };
	say(found, ret->reason);
	return rc;
}

int scale_choose(struct job_spec *spec, const struct spec_open *open, const struct scale_cluster *c,
	struct scale_chosen *ret, struct err *err)
{
	cleanup(scale_model_destroyp) struct scale_model *m = NULL;
	struct err detail = { 0 };
	int rc = scale_model_create(spec, &m, &detail);
	if (rc == ERR_MISSING_FIELD)
		return choose_data(
			spec, "by data: the shape of a sample is known from the data only", ret, err);
	if (rc) {
		*err = detail;
		return rc;
	}
	return search(spec, open, m, c, ret, err);
}

/* SPDX-License-Identifier: Apache-2.0
 * Compiles a job spec into a plan. Called by the server's create handler and by the trainer; pure,
 * so any thread. */
#include "workers/plan/plan.h"

#include "workers/plan/plan_private.h"

#include <math.h>
#include <stdlib.h>

enum { CHANNELS_MAX = 4096, EDGE_MAX = 1 << 20, NAMES_BYTES_MAX = 32 * 1024 * 1024 };

/* The spec's number, or the data's where the spec leaves it open. */
static int resolve(
	int64_t spec, int64_t dims, int64_t max, const char *param, int64_t *ret, struct err *err)
{
	int64_t v = spec > 0 ? spec : dims;
	if (v <= 0)
		return err_set(err, ERR_MISSING_FIELD, param,
			"%s is not given and not known from the data yet", param);
	if (v > max)
		return err_set(
			err, ERR_INVALID_VALUE, param, "%s must be at most %lld", param, (long long)max);
	*ret = v;
	return 0;
}

static int resolve_shape(struct plan *p, const struct job_spec *s, struct err *err)
{
	const struct spec_model *m = &s->model;
	const struct plan_dataset *d = &p->dataset;
	if (spec_is_language(s))
		return resolve(m->vocab_size, d->vocabulary, INT32_MAX, "$.model.config.vocab_size",
			&p->n_classes, err);
	if (m->family == SPEC_DLRM) {
		p->n_classes = 1;
		return 0;
	}
	int rc = resolve(m->in_channels, d->in_channels, CHANNELS_MAX, "$.model.config.in_channels",
		&p->in_channels, err);
	if (!rc)
		rc = resolve(
			m->in_height, d->in_height, EDGE_MAX, "$.model.config.in_height", &p->in_height, err);
	if (!rc)
		rc = resolve(
			m->in_width, d->in_width, EDGE_MAX, "$.model.config.in_width", &p->in_width, err);
	if (!rc)
		rc = resolve(
			m->n_classes, d->n_classes, EDGE_MAX, "$.model.config.n_classes", &p->n_classes, err);
	return rc;
}

/* Labels and what is counted per row; every family has them. */
static void common_buffers(struct plan_build *b)
{
	struct plan *p = b->p;
	bool real = p->task == SPEC_REGRESSION || p->task == SPEC_CLICK_THROUGH;
	int64_t width = p->task == SPEC_REGRESSION ? p->n_classes : 1;
	plan_build_input(
		b, PLAN_LABELS, real ? PLAN_F32 : PLAN_I32, plan_build_count(b, p->rows, width, 1));
	p->row_loss = plan_build_persistent(b, PLAN_ACTIVATIONS, PLAN_F32, p->rows, "row_loss");
	p->row_hit = plan_build_persistent(b, PLAN_ACTIVATIONS, PLAN_F32, p->rows, "row_hit");
}

static void build(struct plan_build *b)
{
	common_buffers(b);
	switch (b->p->family) {
	case SPEC_MLP: plan_family_mlp(b); break;
	case SPEC_CNN: plan_family_cnn(b); break;
	case SPEC_GPT2: plan_family_gpt2(b); break;
	case SPEC_LLAMA: plan_family_llama(b); break;
	case SPEC_DLRM: plan_family_dlrm(b); break;
	case SPEC_FAMILY_COUNT: break;
	}
	plan_optimize(b);
}

static void totals(struct plan *p)
{
	for (int i = 0; i < p->buffer_count; i++)
		p->kind_bytes[p->buffers[i].kind] += p->buffers[i].bytes * p->buffers[i].slots;
	double once_bytes = 0, micro_flops = 0, micro_bytes = 0, again_flops = 0;
	for (int i = 0; i < p->op_count; i++) {
		struct plan_op *op = &p->ops[i];
		if (op->bytes == 0)
			plan_cost(p, op); /* before its operands became places in buckets, otherwise */
		*(op->recompute ? &again_flops : &micro_flops) += op->flops;
		*(op->phase == PLAN_OPTIMIZE ? &once_bytes : &micro_bytes) += op->bytes;
	}
	p->flops_per_step = micro_flops * (double)p->micro_steps;
	p->recompute_flops_per_step = again_flops * (double)p->micro_steps;
	p->bytes_per_step = micro_bytes * (double)p->micro_steps + once_bytes;
	p->flops_per_sample = micro_flops / (double)p->micro_batch;
	p->flops_per_token = micro_flops / (double)p->rows;
}

static void set_steps(struct plan *p, const struct job_spec *s)
{
	const struct plan_dataset *d = &p->dataset;
	p->steps_per_epoch = (double)d->training_samples / (double)p->batch;
	p->total_steps = s->hyper.max_steps;
	if (p->total_steps == 0 && d->training_samples > 0) {
		double steps = ceil(s->hyper.epochs * p->steps_per_epoch - 1e-9);
		p->total_steps = steps < 1 ? 1 : steps > 1e15 ? (int64_t)1e15 : (int64_t)steps;
	}
}

static void from_spec(struct plan *p, const struct job_spec *s)
{
	static const struct plan_inputs no_inputs = { -1, -1, -1, -1, -1 };
	p->task = s->task;
	p->family = s->model.family;
	p->optimizer = s->hyper.optimizer;
	p->type = s->precision == SPEC_BF16 ? PLAN_BF16
		: s->precision == SPEC_FP16     ? PLAN_F16
										: PLAN_F32;
	p->tf32 = s->precision == SPEC_TF32;
	p->batch = s->hyper.batch_size;
	p->sequence_length = spec_is_language(s) ? s->data.sequence_length : 1;
	p->inputs = p->arriving = no_inputs;
	for (int i = 0; i < PLAN_STAGING; i++)
		p->staging[i] = no_inputs;
	p->hidden = p->output = p->row_loss = p->row_hit = p->head = p->rope = -1;
}

/* Micro-batches are dealt out to the data ranks in turn. */
static int cut_batch(struct plan *p, const struct job_spec *s, struct err *err)
{
	int64_t data = p->mesh.data, given = s->hyper.micro_batch_size;
	if (given == 0 && p->batch % data != 0)
		return err_set(err, ERR_INVALID_VALUE, "$.hyperparameters.batch_size",
			"batch_size (%lld) must be a multiple of parallelism.data (%lld)", (long long)p->batch,
			(long long)data);
	p->micro_batch = given > 0 ? given : p->batch / data;
	if (p->batch % (p->micro_batch * data) != 0)
		return err_set(err, ERR_INVALID_VALUE, "$.hyperparameters.batch_size",
			"batch_size (%lld) must be a multiple of micro_batch_size (%lld) times "
			"parallelism.data (%lld)",
			(long long)p->batch, (long long)p->micro_batch, (long long)data);
	p->micro_steps = p->batch / (p->micro_batch * data);
	return 0;
}

/* Stages that a rank runs in turn come by groups of micro-batches. */
static int set_schedule(struct plan *p, struct err *err)
{
	const struct plan_mesh *m = &p->mesh;
	p->schedule = (struct plan_schedule){ .ranks = m->pipeline,
		.rank = m->pipeline_rank,
		.chunks = m->chunks,
		.micros = p->micro_steps };
	if (m->chunks > 1 && p->micro_steps % m->pipeline != 0)
		return err_set(err, ERR_INVALID_VALUE, "$.parallelism.interleave",
			"$.parallelism.interleave above 1 needs a multiple of parallelism.pipeline (%d) as the "
			"number of micro-batches of a step (batch_size / micro_batch_size / data), not %lld",
			m->pipeline, (long long)p->micro_steps);
	return 0;
}

static int place(struct plan *p, const struct job_spec *s, int rank, struct err *err)
{
	int rc = plan_mesh_of(s, rank, &p->mesh, err);
	if (!rc && p->mesh.tensor > 1 && !spec_is_language(s))
		rc = err_set(err, ERR_INVALID_VALUE, "$.parallelism.tensor",
			"$.parallelism.tensor: only layers of language models are cut, so it can only be 1");
	if (!rc && p->mesh.pipeline > 1 && !spec_is_language(s))
		rc = err_set(err, ERR_INVALID_VALUE, "$.parallelism.pipeline",
			"$.parallelism.pipeline: only models of the families gpt2 and llama have layers that a "
			"pipeline can share, so it can only be 1");
	if (!rc)
		rc = cut_batch(p, s, err);
	return rc ? rc : set_schedule(p, err);
}

/* Ranks of one stage need the same; stages differ in layers and in micro-batches under way. */
int plan_compile(const struct job_spec *spec, const struct plan_dataset *dims, struct plan **ret,
	struct err *err)
{
	cleanup(plan_destroyp) struct plan *most = NULL;
	int rc = plan_compile_rank(spec, dims, 0, &most, err);
	for (int stage = 1; rc == 0 && stage < most->mesh.pipeline; stage++) {
		cleanup(plan_destroyp) struct plan *p = NULL;
		struct plan_mesh there = most->mesh;
		there.pipeline_rank = stage;
		rc = plan_compile_rank(spec, dims, plan_mesh_rank(&there), &p, err);
		if (rc == 0 && p->total_bytes > most->total_bytes) {
			plan_destroy(most);
			most = take_ptr(p);
		}
	}
	if (rc == 0)
		*ret = take_ptr(most);
	return rc;
}

int plan_compile_rank(const struct job_spec *spec, const struct plan_dataset *dims, int rank,
	struct plan **ret, struct err *err)
{
	int rc = plan_check(spec, err);
	if (rc)
		return rc;
	cleanup(plan_destroyp) struct plan *p = calloc(1, sizeof(*p));
	if (!p)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for the plan");
	arena_init(&p->names, NAMES_BYTES_MAX);
	if (dims)
		p->dataset = *dims;
	from_spec(p, spec);
	rc = place(p, spec, rank, err);
	if (!rc)
		rc = resolve_shape(p, spec, err);
	if (rc)
		return rc;
	struct plan_build b = { .p = p, .spec = spec, .err = err };
	p->rows = plan_build_count(&b, p->micro_batch, p->sequence_length, 1);
	if (p->rows > INT32_MAX / 4)
		plan_build_fail(&b, ERR_PLAN_TOO_LARGE, "$.hyperparameters.micro_batch_size",
			"a micro-batch of %lld rows is too large", (long long)p->rows);
	if (!b.code)
		build(&b);
	rc = b.code ? b.code : plan_layout(p, err);
	if (rc)
		return rc;
	totals(p);
	set_steps(p, spec);
	*ret = take_ptr(p);
	return 0;
}

static int check_shape(const struct plan *p, const struct plan_dataset *dims, struct err *err)
{
	const struct {
		const char *what;
		int64_t plan, data;
	} same[] = {
		{ "channels", p->in_channels, dims->in_channels },
		{ "height", p->in_height, dims->in_height },
		{ "width", p->in_width, dims->in_width },
	};
	for (size_t i = 0; i < ARRAY_LEN(same); i++)
		if (same[i].data > 0 && same[i].data != same[i].plan)
			return err_set(err, ERR_INVALID_DATA, "training_file",
				"the samples have %s %lld; the model was planned for %lld", same[i].what,
				(long long)same[i].data, (long long)same[i].plan);
	bool regression = p->task == SPEC_REGRESSION;
	if (dims->n_classes > p->n_classes || (regression && dims->n_classes != p->n_classes))
		return err_set(err, ERR_INVALID_DATA, "training_file",
			"the data has %lld %s; the model was planned for %lld", (long long)dims->n_classes,
			regression ? "outputs" : "classes", (long long)p->n_classes);
	return 0;
}

int plan_set_dataset(
	struct plan *p, const struct job_spec *spec, const struct plan_dataset *dims, struct err *err)
{
	int rc = 0;
	if (spec_is_language(spec) && dims->vocabulary > p->n_classes)
		rc = err_set(err, ERR_INVALID_DATA, "training_file",
			"the data has tokens up to %lld; the model's vocabulary has %lld",
			(long long)dims->vocabulary - 1, (long long)p->n_classes);
	else if (p->family == SPEC_MLP || p->family == SPEC_CNN)
		rc = check_shape(p, dims, err);
	if (rc)
		return rc;
	p->dataset = *dims;
	set_steps(p, spec);
	return 0;
}

void plan_destroy(struct plan *p)
{
	if (!p)
		return;
	free(p->ops);
	free(p->buffers);
	free(p->params);
	free(p->buckets);
	free(p->bucket_params);
	free(p->pieces);
	arena_finish(&p->names);
	free(p);
}

void plan_destroyp(struct plan **p)
{
	plan_destroy(*p);
	*p = NULL;
}

int64_t plan_param_bytes(const struct plan *p, const struct plan_param *param)
{
	const int buffers[] = { param->weight, param->gradient, param->moment1, param->moment2,
		param->average, param->master == param->weight ? -1 : param->master };
	int64_t sum = 0;
	for (size_t i = 0; i < ARRAY_LEN(buffers); i++)
		if (buffers[i] >= 0)
			sum += p->buffers[buffers[i]].bytes;
	return sum;
}

enum plan_type plan_param_kept(const struct plan *p, const struct plan_param *param)
{
	if (param->bucket < 0)
		return p->buffers[param->master].type;
	const struct plan_bucket *k = &p->buckets[param->bucket];
	return k->own_master >= 0 ? PLAN_F32 : k->type;
}

double plan_learning_rate(const struct job_spec *spec, int64_t total_steps, int64_t step)
{
	const struct spec_hyper *h = &spec->hyper;
	if (step < h->warmup_steps)
		return h->learning_rate * (double)(step + 1) / (double)(h->warmup_steps + 1);
	int64_t span = total_steps - 1 - h->warmup_steps;
	double t = span > 0 ? (double)(step - h->warmup_steps) / (double)span : 1.0;
	if (t > 1)
		t = 1;
	double low = h->learning_rate * h->min_lr_ratio;
	switch (h->schedule) {
	case SPEC_CONSTANT: break;
	case SPEC_LINEAR: return low + (h->learning_rate - low) * (1 - t);
	case SPEC_COSINE: return low + (h->learning_rate - low) * 0.5 * (1 + cos(M_PI * t));
	}
	return h->learning_rate;
}

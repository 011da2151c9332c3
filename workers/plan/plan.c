/* SPDX-License-Identifier: Apache-2.0
 * Compiles a job spec into a plan. Called by the server's create handler and by the trainer; pure,
 * so any thread. */
#include "workers/plan/plan.h"

#include "workers/plan/plan_private.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int64_t batch_max = 1 << 20;

static int check_hyper(const struct job_spec *s, struct err *err)
{
	const struct spec_hyper *h = &s->hyper;
	if (h->batch_size < 1 || h->batch_size > batch_max)
		return err_set(err, ERR_INVALID_VALUE, "$.hyperparameters.batch_size",
			"batch_size must be 1 to %lld", (long long)batch_max);
	if (h->micro_batch_size < 0 ||
		(h->micro_batch_size > 0 && h->batch_size % h->micro_batch_size != 0))
		return err_set(err, ERR_INVALID_VALUE, "$.hyperparameters.micro_batch_size",
			"batch_size (%lld) must be a multiple of micro_batch_size (%lld)",
			(long long)h->batch_size, (long long)h->micro_batch_size);
	if (!(h->dropout >= 0 && h->dropout < 1))
		return err_set(err, ERR_INVALID_VALUE, "$.hyperparameters.dropout",
			"dropout must be at least 0 and below 1");
	if (!(h->label_smoothing >= 0 && h->label_smoothing < 1))
		return err_set(err, ERR_INVALID_VALUE, "$.hyperparameters.label_smoothing",
			"label_smoothing must be at least 0 and below 1");
	if (h->max_steps < 0 || h->warmup_steps < 0)
		return err_set(err, ERR_INVALID_VALUE, "$.hyperparameters.max_steps",
			"max_steps and warmup_steps must not be negative");
	if (h->max_steps == 0 && !(h->epochs > 0))
		return err_set(err, ERR_INVALID_VALUE, "$.hyperparameters.epochs",
			"epochs must be above 0 when max_steps is not given");
	return 0;
}

/* No dimension is so large that a product of three of them could overflow. */
static int check_dims(const struct spec_model *m, int64_t sequence_length, struct err *err)
{
	const int64_t max = 1 << 24;
	const struct {
		const char *param;
		int64_t value;
	} dims[] = { { "$.model.config.n_embd", m->n_embd }, { "$.model.config.n_head", m->n_head },
		{ "$.model.config.n_positions", m->n_positions },
		{ "$.model.config.vocab_size", m->vocab_size },
		{ "$.data.sequence_length", sequence_length } };
	for (size_t i = 0; i < ARRAY_LEN(dims); i++)
		if (dims[i].value > max)
			return err_set(err, ERR_INVALID_VALUE, dims[i].param, "%s must be at most %lld",
				dims[i].param, (long long)max);
	if (m->hidden_count < 0 || m->hidden_count > SPEC_LAYERS_MAX)
		return err_set(err, ERR_INVALID_VALUE, "$.model.config.hidden",
			"a model has at most %d hidden layers", SPEC_LAYERS_MAX);
	for (int i = 0; i < m->hidden_count; i++)
		if (m->hidden[i] < 1 || m->hidden[i] > max)
			return err_set(err, ERR_INVALID_VALUE, "$.model.config.hidden",
				"hidden[%d] must be 1 to %lld", i, (long long)max);
	if (m->channel_count < 0 || m->channel_count > (int)ARRAY_LEN(m->channels))
		return err_set(err, ERR_INVALID_VALUE, "$.model.config.channels",
			"a cnn has at most %d stages", (int)ARRAY_LEN(m->channels));
	for (int i = 0; i < m->channel_count; i++)
		if (m->channels[i] < 1 || m->channels[i] > max)
			return err_set(err, ERR_INVALID_VALUE, "$.model.config.channels",
				"channels[%d] must be 1 to %lld", i, (long long)max);
	return 0;
}

static int check_spec(const struct job_spec *s, struct err *err)
{
	bool lm = s->task == SPEC_LANGUAGE_MODEL;
	if ((s->model.family == SPEC_GPT2) != lm)
		return err_set(err, ERR_INVALID_VALUE, "$.model.config.family",
			"the gpt2 family and the language_model task need each other");
	if (s->model.family == SPEC_CNN && s->task != SPEC_IMAGE_CLASSIFICATION)
		return err_set(
			err, ERR_INVALID_VALUE, "$.task", "the cnn family is for image_classification");
	if (lm && s->data.format != SPEC_FORMAT_TEXT)
		return err_set(err, ERR_INVALID_VALUE, "$.data.format", "a language model needs text");
	if (!lm && s->data.format != SPEC_FORMAT_IDX)
		return err_set(err, ERR_INVALID_VALUE, "$.data.format", "this task needs IDX files");
	if (s->precision != SPEC_FP32)
		return err_set(err, ERR_INVALID_VALUE, "$.precision", "only fp32 is available");
	if (s->device_count > 1)
		return err_set(err, ERR_INVALID_VALUE, "$.resources.count",
			"a job runs on one device, not on %lld", (long long)s->device_count);
	int rc = check_dims(&s->model, s->data.sequence_length, err);
	return rc ? rc : check_hyper(s, err);
}

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
	int64_t edge_max = 1 << 20;
	if (p->family == SPEC_GPT2) {
		p->n_classes = m->vocab_size;
		return 0;
	}
	int rc = resolve(
		m->in_channels, d->in_channels, 4096, "$.model.config.in_channels", &p->in_channels, err);
	if (!rc)
		rc = resolve(
			m->in_height, d->in_height, edge_max, "$.model.config.in_height", &p->in_height, err);
	if (!rc)
		rc = resolve(
			m->in_width, d->in_width, edge_max, "$.model.config.in_width", &p->in_width, err);
	if (!rc)
		rc = resolve(
			m->n_classes, d->n_classes, edge_max, "$.model.config.n_classes", &p->n_classes, err);
	return rc;
}

static void common_buffers(struct plan_build *b)
{
	struct plan *p = b->p;
	int64_t label_width = p->task == SPEC_REGRESSION ? p->n_classes : 1;
	p->labels = plan_build_persistent(
		b, PLAN_DATA, plan_build_floats(b, p->rows, label_width, 1), "labels");
	p->row_loss =
		plan_build_persistent(b, PLAN_ACTIVATIONS, plan_build_floats(b, p->rows, 1, 1), "row_loss");
	p->row_hit =
		plan_build_persistent(b, PLAN_ACTIVATIONS, plan_build_floats(b, p->rows, 1, 1), "row_hit");
}

static void optimizer_ops(struct plan_build *b)
{
	struct plan *p = b->p;
	p->optimize_begin = p->op_count;
	b->phase = PLAN_OPTIMIZE;
	if (b->code)
		return;
	int64_t count = 0;
	for (int i = 0; i < p->param_count; i++) {
		int64_t bytes = p->params[i].count * 4;
		count += (bytes + PLAN_ALIGN_BYTES - 1) / PLAN_ALIGN_BYTES * (PLAN_ALIGN_BYTES / 4);
		p->parameter_count += p->params[i].count;
	}
	p->flat_count = count;
	const struct plan_param *first = &p->params[0];
	plan_build_op(b, PLAN_OP_GRADIENT_NORM, "gradient_norm", PLAN_OPERANDS(first->gradient),
		PLAN_DIMS(count), PLAN_ROW_BLOCKS * (int64_t)sizeof(double));
	if (p->optimizer == SPEC_ADAMW)
		plan_build_op(b, PLAN_OP_ADAMW, "adamw",
			PLAN_OPERANDS(first->weight, first->gradient, first->moment1, first->moment2),
			PLAN_DIMS(count), 0);
	else
		plan_build_op(b, PLAN_OP_SGD, "sgd",
			PLAN_OPERANDS(first->weight, first->gradient, first->moment1), PLAN_DIMS(count), 0);
}

static void totals(struct plan *p)
{
	for (int i = 0; i < p->buffer_count; i++)
		p->kind_bytes[p->buffers[i].kind] += p->buffers[i].bytes;
	double once_flops = 0, once_bytes = 0, micro_flops = 0, micro_bytes = 0;
	for (int i = 0; i < p->op_count; i++) {
		struct plan_op *op = &p->ops[i];
		plan_cost(p, op);
		bool once = op->phase == PLAN_OPTIMIZE;
		*(once ? &once_flops : &micro_flops) += op->flops;
		*(once ? &once_bytes : &micro_bytes) += op->bytes;
	}
	p->flops_per_step = micro_flops * (double)p->micro_steps + once_flops;
	p->bytes_per_step = micro_bytes * (double)p->micro_steps + once_bytes;
	p->flops_per_sample = micro_flops / (double)p->micro_batch;
	p->flops_per_token = micro_flops / (double)p->rows;
}

static int build(struct plan_build *b)
{
	struct plan *p = b->p;
	common_buffers(b);
	switch (p->family) {
	case SPEC_MLP: plan_family_mlp(b); break;
	case SPEC_CNN: plan_family_cnn(b); break;
	case SPEC_GPT2: plan_family_gpt2(b); break;
	}
	optimizer_ops(b);
	return b->code;
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

int plan_compile(const struct job_spec *spec, const struct plan_dataset *dims, struct plan **ret,
	struct err *err)
{
	int rc = check_spec(spec, err);
	if (rc)
		return rc;
	cleanup(plan_destroyp) struct plan *p = calloc(1, sizeof(*p));
	if (!p)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for the plan");
	if (dims)
		p->dataset = *dims;
	p->task = spec->task;
	p->family = spec->model.family;
	p->optimizer = spec->hyper.optimizer;
	p->batch = spec->hyper.batch_size;
	p->micro_batch = spec->hyper.micro_batch_size > 0 ? spec->hyper.micro_batch_size : p->batch;
	p->micro_steps = p->batch / p->micro_batch;
	p->sequence_length = p->family == SPEC_GPT2 ? spec->data.sequence_length : 1;
	p->input = p->labels = p->output = p->row_loss = p->row_hit = -1;
	rc = resolve_shape(p, spec, err);
	if (rc)
		return rc;
	struct plan_build b = { .p = p, .spec = spec, .err = err };
	p->rows = plan_build_floats(&b, p->micro_batch, p->sequence_length, 1) / 4;
	if (p->rows > INT32_MAX / 4)
		plan_build_fail(&b, ERR_PLAN_TOO_LARGE, "$.hyperparameters.micro_batch_size",
			"a micro-batch of %lld rows is too large", (long long)p->rows);
	rc = build(&b);
	if (!rc)
		rc = plan_layout(p, err);
	if (rc)
		return rc;
	totals(p);
	set_steps(p, spec);
	*ret = take_ptr(p);
	return 0;
}

int plan_set_dataset(
	struct plan *p, const struct job_spec *spec, const struct plan_dataset *dims, struct err *err)
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
	if (p->family != SPEC_GPT2 &&
		(dims->n_classes > p->n_classes || (regression && dims->n_classes != p->n_classes)))
		return err_set(err, ERR_INVALID_DATA, "training_file",
			"the data has %lld %s; the model was planned for %lld", (long long)dims->n_classes,
			regression ? "outputs" : "classes", (long long)p->n_classes);
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
	free(p);
}

void plan_destroyp(struct plan **p)
{
	plan_destroy(*p);
	*p = NULL;
}

const char *plan_kind_word(enum plan_buffer_kind kind)
{
	static const char *const word[PLAN_KIND_COUNT] = { "weights", "gradients", "optimizer",
		"activations", "workspace", "data" };
	return (unsigned)kind < PLAN_KIND_COUNT ? word[kind] : "unknown";
}

const char *plan_op_word(enum plan_op_kind kind)
{
	static const char *const word[PLAN_OP_COUNT] = { "embedding", "embedding_backward", "layernorm",
		"layernorm_backward", "linear", "linear_backward_data", "linear_backward_weight", "gelu",
		"gelu_backward", "relu_backward", "add", "attention", "attention_backward", "conv",
		"conv_backward_data", "conv_backward_weight", "maxpool", "maxpool_backward", "dropout",
		"dropout_backward", "softmax_xent", "mse", "gradient_norm", "adamw", "sgd" };
	return (unsigned)kind < PLAN_OP_COUNT ? word[kind] : "unknown";
}

const char *plan_phase_word(enum plan_phase phase)
{
	static const char *const word[] = { "forward", "backward", "optimize" };
	return (unsigned)phase < ARRAY_LEN(word) ? word[phase] : "unknown";
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

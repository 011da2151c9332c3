/* SPDX-License-Identifier: Apache-2.0
 * The model as the estimate needs it, read off the one-rank plan: the kernels of one layer and of
 * what is around the layers, bytes and elements of their parameters, activations of one sample.
 * Called by whoever estimates; the estimate itself never sees a plan. */
#include "workers/plan/plan.h"
#include "workers/plan/scale_private.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { NO_LAYER = -1 };

/* "transformer.h.3.attn.qkv" is of layer 3: the number between two dots. */
static int64_t layer_of(const struct scale_model *m, const char *name)
{
	if (m->layers == 0)
		return NO_LAYER;
	for (const char *dot = strchr(name, '.'); dot; dot = strchr(dot + 1, '.')) {
		char *end = NULL;
		if (!isdigit((unsigned char)dot[1]))
			continue;
		int64_t layer = strtoll(dot + 1, &end, 10);
		if (*end == '.')
			return layer;
	}
	return NO_LAYER;
}

static double bytes_of(const struct plan *p, int buffer)
{
	return buffer < 0 ? 0 : (double)p->buffers[buffer].bytes;
}

static void add_param(
	const struct plan *p, const struct plan_param *pr, double share, struct scale_state *s)
{
	s->weights += share * bytes_of(p, pr->weight);
	s->gradients += share * bytes_of(p, pr->gradient);
	s->optimizer +=
		share * (bytes_of(p, pr->moment1) + bytes_of(p, pr->moment2) + bytes_of(p, pr->average));
	if (pr->master != pr->weight)
		s->optimizer += share * bytes_of(p, pr->master);
	s->all += share * (double)pr->count;
	s->trained += pr->gradient < 0 ? 0 : share * (double)pr->count;
}

/* A layer is the mean of all: the adapters of LoRA are in each, and nothing else differs. */
static void read_state(struct scale_model *m, const struct plan *p)
{
	bool seen = m->layers == 0;
	for (int i = 0; i < p->param_count; i++) {
		const struct plan_param *pr = &p->params[i];
		if (layer_of(m, pr->name) != NO_LAYER) {
			add_param(p, pr, 1.0 / (double)m->layers, &m->state[SCALE_LAYER]);
			seen = true;
		} else {
			add_param(p, pr, 1, &m->state[seen ? SCALE_LAST : SCALE_FIRST]);
		}
	}
}

static double type_bytes(const struct plan *p, int buffer)
{
	return buffer < 0 ? 0 : (double)plan_type_bytes(p->buffers[buffer].type);
}

/* What of an operation's bytes does not grow with the micro-batch: the weights that a product
 * reads, or the gradients that it reads and writes. */
static double fixed_bytes(const struct plan *p, const struct plan_op *op)
{
	double elements = (double)op->dim[1] * (double)op->dim[2];
	switch (op->kind) {
	case PLAN_OP_LINEAR:
	case PLAN_OP_LINEAR_BACKWARD_DATA: return elements * type_bytes(p, op->operand[1]);
	case PLAN_OP_LINEAR_BACKWARD_WEIGHT: return 2 * elements * type_bytes(p, op->operand[2]);
	case PLAN_OP_CLASSIFIER:
		return elements * (type_bytes(p, op->operand[1]) + type_bytes(p, op->operand[6]));
	default: return 0;
	}
}

static enum scale_work work_of(const struct plan_op *op)
{
	if (op->kind == PLAN_OP_ATTENTION)
		return SCALE_ATTENTION;
	if (op->kind == PLAN_OP_ATTENTION_BACKWARD)
		return SCALE_ATTENTION_BACKWARD;
	return op->flops > 0 ? SCALE_PRODUCT : SCALE_STREAM;
}

static int add_kernel(struct scale_kernels *k, struct scale_kernel item, struct err *err)
{
	if (k->count == SCALE_KERNELS_MAX)
		return err_set(err, ERR_INTERNAL, NULL, "a layer of the plan has more than %d operations",
			SCALE_KERNELS_MAX);
	k->item[k->count++] = item;
	return 0;
}

/* The head makes the logits of a chunk of rows and consumes them: three products a chunk, and a
 * pass over the logits that reads and writes them. */
static int add_classifier(const struct plan *p, const struct plan_op *op, struct scale_kernel k,
	struct scale_kernels *to, struct err *err)
{
	k.sample_launches = 3 * (double)op->dim[0] / (double)op->dim[3];
	int rc = add_kernel(to, k, err);
	if (rc)
		return rc;
	double logits = (double)op->dim[0] * (double)op->dim[2];
	struct scale_kernel pass = { .work = SCALE_STREAM,
		.sample_bytes = 2 * logits * (double)plan_type_bytes(p->type),
		.sample_launches = k.sample_launches / 3 };
	return add_kernel(to, pass, err);
}

static bool is_embedding(const struct plan_op *op, const char *name)
{
	return op->kind == PLAN_OP_EMBEDDING || op->kind == PLAN_OP_EMBEDDING_BACKWARD ||
		strcmp(op->name, name) == 0;
}

/* LoRA's first layer stops early on its way back, so another one stands for all. */
static int read_kernels(
	const struct scale_model *m, const struct plan *p, struct scale_way *way, struct err *err)
{
	int64_t sample = m->layers > 1 ? 1 : 0;
	const char *embedding = p->op_count > 0 ? p->ops[0].name : "";
	for (int i = 0; i < p->optimize_begin; i++) {
		const struct plan_op *op = &p->ops[i];
		int64_t layer = layer_of(m, op->name);
		if (layer != NO_LAYER && layer != sample)
			continue;
		enum scale_part part = SCALE_LAYER;
		if (layer == NO_LAYER)
			part = m->layers > 0 && is_embedding(op, embedding) ? SCALE_FIRST : SCALE_LAST;
		struct scale_kernels *to =
			&way->kernels[part][i < p->backward_begin ? SCALE_FORWARD : SCALE_BACKWARD];
		struct scale_kernel k = { .work = work_of(op),
			.recompute = op->recompute,
			.flops = op->flops,
			.fixed_bytes = fixed_bytes(p, op) };
		k.sample_bytes = op->bytes > k.fixed_bytes ? op->bytes - k.fixed_bytes : 0;
		int rc = op->kind == PLAN_OP_CLASSIFIER ? add_classifier(p, op, k, to, err)
												: add_kernel(to, k, err);
		if (rc)
			return rc;
	}
	return 0;
}

/* Read in the backward pass, made before it, and not there for ever. */
static bool is_kept(const struct plan *p, const struct plan_buffer *b)
{
	bool persistent = b->first_op == 0 && b->last_op == p->op_count - 1;
	return b->kind == PLAN_ACTIVATIONS && !persistent && b->first_op < p->backward_begin &&
		b->last_op >= p->backward_begin;
}

/* Bytes of the peak that are neither parameters' nor kept activations'. */
static double read_activations(
	const struct scale_model *m, const struct plan *p, double *ret_layer, double *ret_rest)
{
	double layer = 0, rest = 0, state = 0;
	for (int i = 0; i < p->buffer_count; i++) {
		const struct plan_buffer *b = &p->buffers[i];
		if (b->kind == PLAN_WEIGHTS || b->kind == PLAN_GRADIENTS || b->kind == PLAN_OPTIMIZER)
			state += (double)b->bytes;
		else if (is_kept(p, b))
			*(layer_of(m, b->name) == NO_LAYER ? &rest : &layer) += (double)b->bytes;
	}
	*ret_layer = m->layers > 0 ? layer / (double)m->layers : 0;
	*ret_rest = rest;
	return (double)p->total_bytes - state - layer - rest;
}

static int compile(const struct job_spec *spec, enum spec_checkpointing checkpointing,
	int64_t samples, struct plan **ret, struct err *err)
{
	struct job_spec one = *spec;
	one.device_count = 1;
	one.parallel = (struct spec_parallel){ .data = 1, .tensor = 1, .pipeline = 1 };
	one.checkpointing = checkpointing;
	one.hyper.batch_size = one.hyper.micro_batch_size = samples;
	return plan_compile(&one, NULL, ret, err);
}

/* Memory is read at one and at two samples, so that what does not grow is told from what does. */
static int read_way(const struct job_spec *spec, struct scale_model *m,
	enum spec_checkpointing checkpointing, struct err *err)
{
	cleanup(plan_destroyp) struct plan *one = NULL, *two = NULL;
	struct scale_way *way = &m->way[checkpointing];
	int rc = compile(spec, checkpointing, 1, &one, err);
	if (!rc)
		rc = compile(spec, checkpointing, 2, &two, err);
	if (!rc)
		rc = read_kernels(m, one, way, err);
	if (rc)
		return rc;
	double layer = 0, rest = 0;
	double working = read_activations(m, two, &layer, &rest);
	double first = read_activations(m, one, &way->kept_layer, &way->kept_rest);
	way->working_sample = working > first ? working - first : 0;
	way->working_fixed = first > way->working_sample ? first - way->working_sample : 0;
	return 0;
}

/* Gradients of the rows that one sample looks up travel as rows, not as tables. */
static double sparse_bytes(const struct plan *p)
{
	double sum = 0;
	for (int i = 0; i < p->op_count; i++)
		if (p->ops[i].kind == PLAN_OP_SPARSE_STORE)
			sum += (double)(p->ops[i].dim[1] + p->ops[i].dim[2]) * 4 / (double)p->micro_batch;
	return sum;
}

static double update_bytes(const struct plan *p)
{
	double bytes = 0;
	for (int i = p->optimize_begin; i < p->op_count; i++)
		bytes += p->ops[i].bytes;
	return p->flat_count > 0 ? bytes / (double)p->flat_count : 0;
}

static enum scale_precision precision_of(enum spec_precision p)
{
	return p == SPEC_FP32 ? SCALE_FP32 : p == SPEC_TF32 ? SCALE_TF32 : SCALE_BF16;
}

static void read_shape(const struct job_spec *spec, struct scale_model *m)
{
	const struct spec_model *s = &spec->model;
	m->family = s->family;
	m->batch = spec->hyper.batch_size;
	m->precision = precision_of(spec->precision);
	m->weight_bytes = m->precision == SCALE_BF16 ? 2 : 4;
	m->tokens_sample = 1;
	if (!spec_is_language(spec))
		return;
	m->layers = s->n_layer;
	m->heads = s->n_head;
	m->kv_heads = s->family == SPEC_LLAMA && s->n_kv_head > 0 ? s->n_kv_head : s->n_head;
	m->width = s->n_embd;
	m->sequence = spec->data.sequence_length;
	m->tokens_sample = (double)m->sequence;
	m->tied = s->family == SPEC_GPT2 || s->tied;
}

static int read_totals(const struct job_spec *spec, struct scale_model *m, struct err *err)
{
	cleanup(plan_destroyp) struct plan *p = NULL;
	int rc = compile(spec, SPEC_KEEP_ALL, 1, &p, err);
	if (rc)
		return rc;
	read_state(m, p);
	m->parameters = p->parameter_count;
	m->sparse_bytes = sparse_bytes(p);
	m->update_bytes = update_bytes(p);
	m->flops_token = p->flops_per_token;
	/* A table that is only looked up multiplies nothing; tied, it is the head. */
	double counted = (double)m->parameters;
	if (m->layers > 0 && !m->tied)
		counted -= (double)p->n_classes * (double)m->width;
	m->source_flops_token = m->layers == 0
		? m->flops_token
		: 6 * counted + 12 * (double)m->layers * (double)m->width * (double)m->sequence;
	return 0;
}

int scale_model_create(const struct job_spec *spec, struct scale_model **ret, struct err *err)
{
	cleanup(scale_model_destroyp) struct scale_model *m = calloc(1, sizeof(*m));
	if (!m)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for the cost model");
	read_shape(spec, m);
	int rc = read_totals(spec, m, err);
	for (int way = 0; way < SCALE_CHECKPOINTINGS && !rc; way++)
		if (way == SPEC_KEEP_ALL || m->layers > 0)
			rc = read_way(spec, m, (enum spec_checkpointing)way, err);
	if (rc)
		return rc;
	*ret = take_ptr(m);
	return 0;
}

void scale_model_destroy(struct scale_model *m)
{
	free(m);
}

void scale_model_destroyp(struct scale_model **m)
{
	scale_model_destroy(*m);
	*m = NULL;
}

int64_t scale_model_parameters(const struct scale_model *m)
{
	return m->parameters;
}

/* SPDX-License-Identifier: Apache-2.0
 * The engine's loss and gradients against central differences of a second, plain implementation of
 * each family in double, which shares no code with the engine or the plan. */
#pragma once

#include "tests/unit/workers/engine/engine_cases.h"
#include "workers/engine/engine_private.h"

/* The engine's parameters in double, by name. */
struct model {
	struct engine *e;
	int count;
	double **value;
};
typedef double (*model_loss_fn)(const struct model *m);

FIXTURE_FN struct model model_copy(struct engine *e)
{
	struct model m = { .e = e, .count = e->plan->param_count };
	m.value = calloc((size_t)m.count, sizeof(double *));
	for (int i = 0; i < m.count; i++) {
		const struct plan_param *p = &e->plan->params[i];
		const float *w = engine_buffer(e, p->weight);
		m.value[i] = calloc((size_t)p->count, sizeof(double));
		for (int64_t k = 0; k < p->count; k++)
			m.value[i][k] = (double)w[k];
	}
	return m;
}

FIXTURE_FN void model_free(struct model *m)
{
	for (int i = 0; i < m->count; i++)
		free(m->value[i]);
	free(m->value);
}

static const double *model_find(const struct model *m, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
/* NULL when there is none. */
static const double *model_find(const struct model *m, const char *fmt, ...)
{
	char name[128];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(name, sizeof(name), fmt, ap);
	va_end(ap);
	for (int i = 0; i < m->count; i++)
		if (!strcmp(m->e->plan->params[i].name, name))
			return m->value[i];
	return NULL;
}

#define model_get(m, ...)                                     \
	({                                                        \
		const double *model_v = model_find(m, __VA_ARGS__);   \
		if (!model_v)                                         \
			fail_msg("a parameter is missing: " __VA_ARGS__); \
		model_v;                                              \
	})

FIXTURE_FN double model_cross_entropy(const double *x, int n, int label, double smoothing)
{
	double sum = 0, all = 0;
	for (int i = 0; i < n; i++) {
		sum += exp(x[i]);
		all += x[i];
	}
	return log(sum) - (1 - smoothing) * x[label] - smoothing * all / n;
}

/* The gradient of a parameter; a table's rows are spread out into memory that the caller frees. */
FIXTURE_FN float *model_gradient(struct engine *e, const struct plan_param *p)
{
	float *g = calloc((size_t)p->count, sizeof(float));
	if (p->gradient >= 0) {
		memcpy(g, engine_buffer(e, p->gradient), (size_t)p->count * sizeof(float));
		return g;
	}
	for (int i = e->plan->optimize_begin; i < e->plan->op_count; i++) {
		const struct plan_op *op = &e->plan->ops[i];
		if (op->kind != PLAN_OP_SPARSE_REDUCE || strcmp(op->name, p->name) != 0)
			continue;
		const int32_t *rows = engine_exec_operand(e, op, 2), *n = engine_exec_operand(e, op, 4);
		const float *sums = engine_exec_operand(e, op, 3);
		for (int32_t r = 0; r < *n; r++)
			memcpy(g + rows[r] * op->dim[2], sums + r * op->dim[2], (size_t)op->dim[2] * 4);
		return g;
	}
	fail_msg("%s has no gradient", p->name);
	return NULL;
}

/* Some elements of every trained parameter; relative to the largest gradient of its tensor. */
FIXTURE_FN void model_check_gradients(struct model *m, model_loss_fn loss, double tolerance)
{
	const double step = 1e-5;
	for (int i = 0; i < m->count; i++) {
		const struct plan_param *p = &m->e->plan->params[i];
		if (p->role != PLAN_TRAINED)
			continue;
		float *g = model_gradient(m->e, p);
		double size = 0, worst = 0;
		for (int64_t k = 0; k < p->count; k++)
			size = fmax(size, fabs((double)g[k]));
		for (int64_t k = 0; k < p->count; k += 1 + p->count / 8) {
			double *v = &m->value[i][k], keep = *v;
			*v = keep + step;
			double high = loss(m);
			*v = keep - step;
			double low = loss(m);
			*v = keep;
			worst = fmax(worst, fabs((double)g[k] - (high - low) / (2 * step)));
		}
		if (!(worst <= tolerance * size) || size == 0)
			fail_msg("%s: gradient differs by %.3g of %.3g", p->name, worst, size);
		free(g);
	}
}

/* Along the gradient's own direction, all trained parameters at once: the slope is its length. */
FIXTURE_FN void model_check_direction(struct model *m, model_loss_fn loss, double tolerance)
{
	double square = 0, side[2];
	for (int turn = 0; turn < 3; turn++) {
		double step = turn == 0 ? 0 : (turn == 1 ? 1e-5 : -2e-5) / sqrt(square);
		for (int i = 0; i < m->count; i++) {
			const struct plan_param *p = &m->e->plan->params[i];
			if (p->role != PLAN_TRAINED)
				continue;
			float *g = model_gradient(m->e, p);
			for (int64_t k = 0; k < p->count; k++) {
				square += turn == 0 ? pow((double)g[k], 2) : 0;
				m->value[i][k] += step * (double)g[k];
			}
			free(g);
		}
		if (turn > 0)
			side[turn - 1] = loss(m);
	}
	double slope = (side[0] - side[1]) / 2e-5;
	if (!(fabs(slope / sqrt(square) - 1) < tolerance))
		fail_msg("the slope along the gradient is %.9g, its length %.9g", slope, sqrt(square));
}

/* The micro-batch that the operations saw is what the data says is there: the second
 * implementation reads the same buffers. */
FIXTURE_FN void model_check_inputs(const struct fixture *f, int64_t position)
{
	const struct plan *p = f->plan;
	const int buffer[] = { p->inputs.input, p->inputs.labels, p->inputs.positions, p->inputs.starts,
		p->inputs.bags };
	void *own[ARRAY_LEN(buffer)] = { 0 };
	for (size_t k = 0; k < ARRAY_LEN(buffer); k++)
		if (buffer[k] >= 0)
			own[k] = calloc(1, (size_t)p->buffers[buffer[k]].bytes);
	const struct data_batch b = { .samples = p->micro_batch,
		.input = own[0],
		.labels = own[1],
		.positions = own[2],
		.starts = own[3],
		.bags = own[4] };
	for (int64_t i = 0; i < p->micro_batch; i++)
		data_read(f->data,
			data_sample_at(data_info(f->data)->samples, (uint64_t)f->spec.seed,
				f->spec.data.shuffle, position + i),
			i, 0, &b);
	for (size_t k = 0; k < ARRAY_LEN(buffer); k++) {
		if (own[k])
			assert_memory_equal(
				own[k], engine_buffer(f->engine, buffer[k]), (size_t)p->buffers[buffer[k]].bytes);
		free(own[k]);
	}
}

/* The first micro-batch of three samples, from larger, unequal parameters than a fresh model's, so
 * that every path carries weight. */
FIXTURE_FN void model_check(struct job_spec spec, model_loss_fn loss)
{
	struct fixture f;
	spec.hyper.micro_batch_size = spec.hyper.batch_size = 3;
	fixture_open(&f, spec, 2);
	uint64_t state = 3;
	for (int i = 0; i < f.plan->param_count; i++) {
		const struct plan_param *p = &f.plan->params[i];
		float *w = engine_buffer(f.engine, p->weight);
		for (int64_t k = 0; k < p->count && p->role != PLAN_STATE; k++)
			w[k] += (float)(0.2 * fixture_random(&state));
	}
	f.engine->backend->enter(f.engine->ctx);
	int64_t samples = data_info(f.data)->samples, valid = 0;
	f.engine->state.position = 5;
	for (int i = 0; i < 3; i++)
		valid += data_valid_rows(
			f.data, data_sample_at(samples, (uint64_t)spec.seed, spec.data.shuffle, 5 + i));
	double sum = fixture_micro(f.engine, 0, 1.0f / (float)valid);
	engine_exec(f.engine, f.plan->optimize_begin, f.engine->update_begin);
	engine_finish(f.engine);
	model_check_inputs(&f, 5);
	struct model m = model_copy(f.engine);
	double expected = loss(&m);
	if (!(fabs(sum / (double)valid - expected) < 2e-6 * expected))
		fail_msg("loss %.9g, not %.9g", sum / (double)valid, expected);
	model_check_gradients(&m, loss, 1e-4);
	model_check_direction(&m, loss, 2e-5);
	model_free(&m);
	fixture_close(&f);
}

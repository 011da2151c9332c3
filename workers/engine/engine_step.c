/* SPDX-License-Identifier: Apache-2.0
 * One optimizer step, and evaluation. Called by the trainer's loop; allocates nothing. */
#include "workers/engine/engine_private.h"

#include <math.h>

static double row_sum(const struct engine *e, int buffer)
{
	double partial[PLAN_ROW_BLOCKS];
	return e->backend->sum(e->plan->rows, engine_buffer(e, buffer), partial);
}

int engine_step_micro(
	struct engine *e, int64_t position, float scale, double *ret_loss, struct err *err)
{
	const struct plan *p = e->plan;
	void *input = engine_buffer(e, p->input), *labels = engine_buffer(e, p->labels);
	int64_t samples = data_info(e->training)->samples;
	for (int64_t i = 0; i < p->micro_batch; i++)
		data_read(e->training,
			data_sample_at(samples, (uint64_t)e->state.seed, e->spec->data.shuffle, position + i),
			i, input, labels);
	e->train = true;
	e->loss_scale = scale;
	e->micro_position = position;
	int rc = engine_exec(e, 0, p->backward_begin, err);
	if (rc)
		return rc;
	*ret_loss = row_sum(e, p->row_loss);
	return engine_exec(e, p->backward_begin, p->optimize_begin, err);
}

/* The norm is the optimizer phase's first operation; the update follows unless it is not finite. */
static int update(struct engine *e, struct engine_step *s, struct err *err)
{
	const struct plan *p = e->plan;
	int rc = engine_exec(e, p->optimize_begin, p->optimize_begin + 1, err);
	if (rc)
		return rc;
	s->grad_norm = sqrt(e->grad_square);
	s->non_finite = !isfinite(s->loss) || !isfinite(s->grad_norm);
	if (s->non_finite)
		return 0;
	double clip = e->spec->hyper.grad_clip;
	e->grad_scale = clip > 0 && s->grad_norm > clip ? (float)(clip / s->grad_norm) : 1.0f;
	e->learning_rate = (float)s->learning_rate;
	return engine_exec(e, p->optimize_begin + 1, p->op_count, err);
}

int engine_step(struct engine *e, struct engine_step *ret, struct err *err)
{
	const struct plan *p = e->plan;
	if (!e->training)
		return err_set(err, ERR_CONFLICT, NULL, "no training data is attached");
	e->backend->enter(e->ctx);
	bool lm = p->family == SPEC_GPT2;
	/* Every training row counts: the mean is over all rows of the global batch. */
	int64_t valid = p->rows * p->micro_steps;
	struct engine_step s = { .step = e->state.step,
		.learning_rate = plan_learning_rate(e->spec, p->total_steps, e->state.step) };
	e->backend->fill(p->flat_count, 0.0f, engine_buffer(e, p->params[0].gradient));
	double total = 0;
	for (int64_t i = 0; i < p->micro_steps; i++) {
		double loss = 0;
		int rc = engine_step_micro(
			e, e->state.position + i * p->micro_batch, 1.0f / (float)valid, &loss, err);
		if (rc)
			return rc;
		total += loss;
	}
	s.loss = total / (double)valid;
	int rc = update(e, &s, err);
	if (rc)
		return rc;
	if (!s.non_finite) {
		e->state.step++;
		e->state.position += p->batch;
		e->state.tokens += lm ? valid : 0;
		s.step = e->state.step;
		s.samples = p->batch;
		s.tokens = lm ? valid : 0;
	}
	s.epoch = (double)e->state.position / (double)data_info(e->training)->samples;
	*ret = s;
	return 0;
}

static int evaluate_batch(
	struct engine *e, int64_t first, int64_t total, double *loss, double *hits, struct err *err)
{
	const struct plan *p = e->plan;
	void *input = engine_buffer(e, p->input), *labels = engine_buffer(e, p->labels);
	for (int64_t i = 0; i < p->micro_batch; i++) {
		if (first + i < total)
			data_read(e->validation, first + i, i, input, labels);
		else
			data_blank(e->validation, i, input, labels);
	}
	int rc = engine_exec(e, 0, p->backward_begin, err);
	if (rc)
		return rc;
	*loss += row_sum(e, p->row_loss);
	if (p->task != SPEC_REGRESSION)
		*hits += row_sum(e, p->row_hit);
	return 0;
}

int engine_evaluate(struct engine *e, engine_progress_fn on_progress, void *ctx,
	struct engine_evaluation *ret, struct err *err)
{
	if (!e->validation)
		return err_set(err, ERR_CONFLICT, NULL, "no validation data is attached");
	e->backend->enter(e->ctx);
	e->train = false;
	e->loss_scale = 0;
	const struct data_info *info = data_info(e->validation);
	int64_t total = data_evaluation_samples(e->validation);
	double loss = 0, hits = 0;
	for (int64_t i = 0; i < total; i += e->plan->micro_batch) {
		if (on_progress && !on_progress(ctx, i, total))
			return err_set(err, ERR_CANCELLED, NULL, "the evaluation was stopped");
		int rc = evaluate_batch(e, i, total, &loss, &hits, err);
		if (rc)
			return rc;
	}
	bool lm = e->plan->family == SPEC_GPT2;
	double count = (double)(lm ? info->tokens : info->samples);
	*ret = (struct engine_evaluation){ .loss = loss / count,
		.accuracy = e->plan->task == SPEC_REGRESSION ? 0 : hits / count,
		.samples = total,
		.tokens = info->tokens };
	if (lm) {
		ret->bits_per_byte = ret->loss / M_LN2;
		ret->order0_bits_per_byte = info->entropy_bits_per_byte;
	}
	return 0;
}

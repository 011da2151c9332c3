/* SPDX-License-Identifier: Apache-2.0
 * One optimizer step. Called by the trainer's loop; allocates nothing. */
#include "workers/engine/engine_private.h"

#include <math.h>

void engine_step_settle(struct engine *e)
{
	engine_finish(e);
	/* A call that failed lets the device go on, with anything: it must not count. */
	if (e->backend->apart)
		engine_exec_settle(e);
	e->grad_square = 0;
	for (int i = 0; i < e->square_count; i++)
		e->grad_square += e->squares[i];
}

void engine_step_row_sum(const struct engine *e, int buffer, double *ret)
{
	e->backend->sum(e->plan->rows, engine_buffer(e, buffer), ret);
}

static const struct data_batch *take(struct engine *e, int64_t position)
{
	int64_t wait_us = 0;
	e->backend->put_wait(e->ctx); /* the loader may fill again what it has given before */
	const struct data_batch *b = loader_take(e->loader, position, &wait_us);
	e->wait_us += wait_us;
	return b;
}

/* What the loader lets the host wait here counts as if the device had waited, which may still work.
 */
void engine_step_foresee(struct engine *e, int64_t position)
{
	if (!e->backend->apart || e->ahead_position == position)
		return;
	engine_host_put_ahead(e, take(e, position));
	e->ahead_position = position;
}

/* After a restore, or when a batch is tried again, another one has set off. */
void engine_step_take(struct engine *e, int64_t position)
{
	if (!e->backend->apart) {
		engine_host_put_batch(e, take(e, position));
		return;
	}
	engine_step_foresee(e, position);
	engine_host_take_ahead(e);
	e->ahead_position = ENGINE_NOTHING;
}

void engine_step_micro(struct engine *e, int64_t micro, float row_scale)
{
	const struct plan *p = e->plan;
	e->train = true;
	e->row_scale = row_scale;
	e->micro = micro;
	e->micro_position = engine_micro_position(e, micro);
	engine_step_take(e, e->micro_position);
	engine_replay(e, 0, p->backward_begin);
	engine_step_row_sum(e, p->row_loss, &e->numbers[1 + micro]);
	engine_replay(e, p->backward_begin, p->optimize_begin);
	engine_step_foresee(e, engine_micro_position(e, micro + 1));
}

/* Rows with a loss in the whole batch: what its mean is over, however it is cut. */
static int64_t valid_rows(const struct engine *e)
{
	int64_t samples = data_info(e->training)->samples, valid = 0;
	for (int64_t i = 0; i < e->plan->batch; i++)
		valid += data_valid_rows(e->training,
			data_sample_at(
				samples, (uint64_t)e->state.seed, e->spec->data.shuffle, e->state.position + i));
	return valid;
}

void engine_running_copy(struct engine *e, float *kept, bool back)
{
	for (int i = 0; i < e->plan->param_count; i++) {
		const struct plan_param *p = &e->plan->params[i];
		if (p->role != PLAN_STATE)
			continue;
		float *now = engine_buffer(e, p->weight);
		int64_t bytes = p->count * (int64_t)sizeof(float);
		if (back)
			e->backend->put(e->ctx, now, kept, bytes);
		else
			e->backend->get(e->ctx, kept, now, bytes);
		kept += p->count;
	}
}

/* What operations of the step add to. */
static void clear_gradients(struct engine *e)
{
	for (int i = 0; i < e->plan->param_count; i++) {
		const struct plan_param *p = &e->plan->params[i];
		if (p->flat >= 0 && !p->overwritten)
			e->backend->fill(p->count, 0.0f, engine_buffer(e, p->gradient));
	}
}

/* What a step adds to begins at zero. Several data ranks count their running statistics apart. */
static void begin_batch(struct engine *e)
{
	const struct plan *p = e->plan;
	clear_gradients(e);
	for (int i = 0; i < p->bucket_count; i++) {
		const struct plan_bucket *k = &p->buckets[i];
		if (p->mesh.zero == 1 && k->trained)
			e->backend->fill(k->count, 0.0f, engine_buffer(e, k->gradient));
		else if (k->own_part >= 0)
			e->backend->fill(k->shard, 0.0f, engine_buffer(e, k->own_gradient));
	}
	for (int i = 0; i < p->param_count; i++)
		if (p->params[i].role == PLAN_STATE && p->mesh.data > 1)
			e->backend->fill(p->params[i].count, 0.0f, engine_buffer(e, p->params[i].weight));
}

static void own_numbers(struct engine *e)
{
	engine_step_settle(e);
	e->loss_sum = 0;
	for (int64_t i = 0; i < e->plan->micro_steps; i++)
		e->loss_sum += e->numbers[1 + i];
}

/* Forward and backward of the whole batch, and the norm of its gradients. */
static void try_batch(struct engine *e, int64_t valid, struct engine_step *s)
{
	const struct plan *p = e->plan;
	begin_batch(e);
	e->square_count = 0;
	float row_scale = (float)(e->state.loss_scale / (double)valid);
	if (p->mesh.pipeline > 1)
		engine_pipeline_step(e, row_scale);
	for (int64_t i = 0; i < p->micro_steps && p->mesh.pipeline == 1; i++)
		engine_step_micro(e, i, row_scale);
	engine_exec(e, p->optimize_begin, e->update_begin);
	if (plan_mesh_size(&p->mesh) == 1) /* otherwise EXCHANGE has had the others' too */
		own_numbers(e);
	s->loss = e->loss_sum / (double)valid;
	s->grad_norm = sqrt(e->grad_square) / e->state.loss_scale;
}

static void update(struct engine *e, const struct engine_step *s)
{
	double clip = e->spec->hyper.grad_clip;
	double shorter = clip > 0 && s->grad_norm > clip ? clip / s->grad_norm : 1.0;
	e->grad_scale = (float)(shorter / e->state.loss_scale);
	e->learning_rate = (float)s->learning_rate;
	e->reading_step = e->state.step + 1;
	engine_exec(e, e->update_begin, e->plan->op_count);
	if (e->plan->type != PLAN_F16 || ++e->state.scale_steps < ENGINE_SCALE_STEPS)
		return;
	e->state.scale_steps = 0;
	if (e->state.loss_scale < ENGINE_SCALE_MAX)
		e->state.loss_scale *= 2;
}

/* Tries until the gradients are finite. Only their size depends on the scale, not the loss: with a
 * loss that is not finite, or at the scale's floor, another try cannot help. */
static void train_batch(struct engine *e, int64_t valid, struct engine_step *s)
{
	engine_running_copy(e, e->running, false);
	for (;;) {
		try_batch(e, valid, s);
		if (e->failure.code < 0)
			return;
		if (isfinite(s->loss) && isfinite(s->grad_norm)) {
			update(e, s);
			return;
		}
		engine_running_copy(e, e->running, true);
		bool last = e->plan->type != PLAN_F16 || e->state.loss_scale <= ENGINE_SCALE_MIN;
		if (last || !isfinite(s->loss)) {
			s->non_finite = true;
			return;
		}
		e->state.loss_scale /= 2;
		e->state.scale_steps = 0;
		s->overflows++;
	}
}

/* A batch without one valid row teaches nothing: the step counts, so that the schedule and the data
 * go on, its loss and norm are 0, and weights, moments and averages stay; those that are rounded by
 * chance are rounded as each step does. */
int engine_step(struct engine *e, struct engine_step *ret, struct err *err)
{
	const struct plan *p = e->plan;
	if (!e->training)
		return err_set(err, ERR_CONFLICT, NULL, "no training data is attached");
	int rc = engine_check_joined(e, err);
	if (rc)
		return rc;
	e->backend->enter(e->ctx);
	engine_host_forget(e);
	e->wait_us = 0;
	int64_t valid = valid_rows(e);
	struct engine_step s = { .step = e->state.step,
		.learning_rate = plan_learning_rate(e->spec, p->total_steps, e->state.step) };
	if (e->state.step == 0)
		engine_average_begin(e);
	if (valid > 0)
		train_batch(e, valid, &s);
	else if (e->spec->hyper.stochastic_rounding)
		engine_round_weights(e, e->state.step + 1);
	rc = engine_exec_failed(e, err);
	if (rc)
		return rc;
	if (!s.non_finite) {
		s.samples = p->batch;
		s.tokens = engine_is_language(e) ? valid : 0;
		s.step = ++e->state.step;
		e->state.position += s.samples;
		e->state.tokens += s.tokens;
	}
	s.epoch = (double)e->state.position / (double)data_info(e->training)->samples;
	s.loss_scale = e->state.loss_scale;
	s.wait_us = e->wait_us;
	*ret = s;
	return 0;
}

/* SPDX-License-Identifier: Apache-2.0
 * Evaluation over the whole validation set, with the trained weights, not their average. Called by
 * the engine's owner; leaves the training state untouched. */
#include "workers/engine/engine_private.h"

#include <math.h>

struct totals {
	double loss, hits;
	int64_t keys;
};

/* The scores of the samples that have a label. */
static void keep_scores(struct engine *e, int64_t count, struct totals *t)
{
	const float *labels = engine_buffer(e, e->plan->inputs.labels);
	e->backend->to_f32(count, engine_buffer(e, e->plan->output), e->scratch);
	for (int64_t i = 0; i < count; i++)
		if (!isnan(labels[i]))
			e->keys[t->keys++] = engine_auc_key(e->scratch[i], labels[i] > 0.5f);
}

static void evaluate_batch(struct engine *e, int64_t first, int64_t total, struct totals *t)
{
	const struct plan *p = e->plan;
	struct data_batch b = engine_batch(e, &p->inputs);
	int64_t count = total - first < p->micro_batch ? total - first : p->micro_batch;
	for (int64_t i = 0; i < count; i++)
		data_read(e->validation, first + i, i, 0, &b);
	for (int64_t i = count; i < p->micro_batch; i++)
		data_blank(e->validation, i, &b);
	engine_exec(e, 0, p->backward_begin);
	engine_exec_settle(e); /* weights that the backward pass would have read */
	t->loss += engine_step_row_sum(e, p->row_loss);
	if (p->task != SPEC_REGRESSION)
		t->hits += engine_step_row_sum(e, p->row_hit);
	if (p->task == SPEC_CLICK_THROUGH)
		keep_scores(e, count, t);
}

void engine_evaluate_begin(struct engine *e)
{
	e->backend->enter(e->ctx);
	e->train = false;
	e->row_scale = 0;
	e->micro = 0;
}

int engine_evaluate(struct engine *e, engine_progress_fn on_progress, void *ctx,
	struct engine_evaluation *ret, struct err *err)
{
	if (!e->validation)
		return err_set(err, ERR_CONFLICT, NULL, "no validation data is attached");
	int rc = engine_check_joined(e, err);
	if (rc)
		return rc;
	engine_evaluate_begin(e);
	const struct data_info *info = data_info(e->validation);
	int64_t total = data_evaluation_samples(e->validation);
	struct totals t = { 0 };
	for (int64_t i = 0; i < total; i += e->plan->micro_batch) {
		if (on_progress && !on_progress(ctx, i, total))
			return err_set(err, ERR_CANCELLED, NULL, "the evaluation was stopped");
		evaluate_batch(e, i, total, &t);
		rc = engine_exec_failed(e, err);
		if (rc)
			return rc;
	}
	bool language = engine_is_language(e);
	int64_t rows = language ? info->tokens : info->samples;
	double count = rows > 0 ? (double)rows : 1;
	*ret = (struct engine_evaluation){
		.loss = t.loss / count, .accuracy = t.hits / count, .samples = total, .tokens = info->tokens
	};
	if (language && info->bytes_per_token > 0) {
		ret->bits_per_byte = ret->loss / M_LN2 / info->bytes_per_token;
		ret->order0_bits_per_byte = info->entropy_bits_per_byte;
	}
	if (e->plan->task == SPEC_CLICK_THROUGH)
		ret->auc = engine_auc(e->keys, t.keys);
	return 0;
}

/* SPDX-License-Identifier: Apache-2.0
 * Evaluation over the whole validation set, with the trained weights, not their average. Called by
 * the engine's owner; leaves the training state untouched. */
#include "workers/engine/engine_private.h"

#include <math.h>

struct totals {
	struct engine *e;
	double loss, hits;
	int64_t keys;
	int64_t first, total; /* samples: of micro-batch 0 of the round, and of all */
};

static int64_t sample_of(const struct totals *t, int64_t index)
{
	return t->first + index * t->e->plan->micro_batch;
}

static int64_t batch_count(const struct totals *t, int64_t first)
{
	int64_t micro = t->e->plan->micro_batch;
	return t->total - first < micro ? t->total - first : micro;
}

/* The scores of the samples that have a label. */
static void keep_scores(struct engine *e, int64_t count, struct totals *t)
{
	const struct plan *p = e->plan;
	float *scores = e->scratch, *labels = scores + p->micro_batch, *raw = labels + p->micro_batch;
	e->backend->get(
		e->ctx, labels, engine_buffer(e, p->inputs.labels), count * (int64_t)sizeof(*labels));
	e->backend->get(e->ctx, raw, engine_buffer(e, p->output), count * plan_type_bytes(p->type));
	e->backend->to_f32(count, raw, scores);
	for (int64_t i = 0; i < count; i++)
		if (!isnan(labels[i]))
			e->keys[t->keys++] = engine_auc_key(scores[i], labels[i] > 0.5f);
}

/* A micro-batch into the inputs. */
static void read_batch(void *ctx, int64_t index)
{
	struct totals *t = ctx;
	struct engine *e = t->e;
	struct data_batch b = engine_host_batch(e);
	int64_t first = sample_of(t, index), count = batch_count(t, first);
	for (int64_t i = 0; i < count; i++)
		data_read(e->validation, first + i, i, 0, &b);
	for (int64_t i = count; i < e->plan->micro_batch; i++)
		data_blank(e->validation, i, &b);
	engine_host_put_batch(e, &b);
}

/* What its forward pass has said. */
static void count_batch(void *ctx, int64_t index)
{
	struct totals *t = ctx;
	struct engine *e = t->e;
	const struct plan *p = e->plan;
	double loss = 0, hits = 0;
	engine_step_row_sum(e, p->row_loss, &loss);
	if (p->task != SPEC_REGRESSION)
		engine_step_row_sum(e, p->row_hit, &hits);
	engine_finish(e);
	t->loss += loss;
	t->hits += hits;
	if (p->task == SPEC_CLICK_THROUGH)
		keep_scores(e, batch_count(t, sample_of(t, index)), t);
}

/* The micro-batches of a round, of which a pipeline has several under way. */
static void evaluate_round(struct totals *t, int64_t count)
{
	struct engine *e = t->e;
	if (e->plan->mesh.pipeline > 1) {
		const struct engine_pass pass = { read_batch, count_batch, t };
		engine_pipeline_pass(e, count, &pass);
		return;
	}
	read_batch(t, 0);
	engine_exec(e, 0, e->plan->backward_begin);
	engine_exec_settle(e); /* weights that the backward pass would have read */
	count_batch(t, 0);
}

static int64_t round_samples(const struct engine *e)
{
	return e->plan->micro_batch * (e->plan->mesh.pipeline > 1 ? engine_pipeline_round(e) : 1);
}

/* The last stage of a pipeline has counted for all. */
static int tell_totals(struct totals *t, struct err *err)
{
	double numbers[] = { t->loss, t->hits };
	engine_pipeline_tell(t->e, numbers, ARRAY_LEN(numbers));
	t->loss = numbers[0];
	t->hits = numbers[1];
	return engine_exec_failed(t->e, err);
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
	struct totals t = { .e = e, .total = total };
	const int64_t micro = e->plan->micro_batch, each = round_samples(e);
	for (; t.first < total; t.first += each) {
		if (on_progress && !on_progress(ctx, t.first, total))
			return err_set(err, ERR_CANCELLED, NULL, "the evaluation was stopped");
		int64_t left = total - t.first < each ? total - t.first : each;
		evaluate_round(&t, (left + micro - 1) / micro);
		rc = engine_exec_failed(e, err);
		if (rc)
			return rc;
	}
	rc = tell_totals(&t, err);
	if (rc)
		return rc;
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

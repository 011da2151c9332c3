/* SPDX-License-Identifier: Apache-2.0
 * Report messages as JSON. */
#include "workers/trainer/message.h"

#include "core/json/writer.h"
#include "workers/trainer/summary.h"

static void begin(struct json_writer *w, struct buf *out, const char *t)
{
	json_writer_init(w, out);
	json_begin_object(w);
	json_field_str(w, "t", t);
}

static void write_plan(struct json_writer *w, const struct plan *p, const struct plan_job *job)
{
	json_begin_object(w);
	json_field_i64(w, "total_bytes", p->total_bytes);
	json_key(w, "bytes");
	json_begin_object(w);
	for (int k = 0; k < PLAN_KIND_COUNT; k++)
		json_field_i64(w, plan_kind_word((enum plan_buffer_kind)k), p->kind_bytes[k]);
	json_end_object(w);
	json_field_i64(w, "parameters", p->parameter_count);
	json_field_i64(w, "operations", p->op_count);
	json_field_f64(w, "flops_per_step", job->flops_per_step);
	json_field_f64(w, "bytes_per_step", p->bytes_per_step);
	json_field_f64(w, "flops_per_sample", job->flops_per_sample);
	if (p->sequence_length > 0)
		json_field_f64(w, "flops_per_token", job->flops_per_token);
	json_field_str(w, "flop_convention", PLAN_FLOP_CONVENTION);
	json_field_i64(w, "micro_batch", p->micro_batch);
	json_field_i64(w, "micro_steps", p->micro_steps);
	json_field_i64(w, "steps", p->total_steps);
	json_field_f64(w, "steps_per_epoch", p->steps_per_epoch);
	json_field_i64(w, "training_samples", p->dataset.training_samples);
	json_field_i64(w, "validation_samples", p->dataset.validation_samples);
	json_end_object(w);
}

void message_plan(const struct plan *p, const struct plan_job *job, struct buf *out)
{
	struct json_writer w;
	json_writer_init(&w, out);
	write_plan(&w, p, job);
}

void message_training(const struct session *s, struct buf *out)
{
	struct json_writer w;
	begin(&w, out, "training");
	json_field_i64(&w, "steps", s->plan->total_steps);
	json_key(&w, "plan");
	write_plan(&w, s->plan, &s->job);
	json_field_i64(&w, "memory_bytes", engine_memory_bytes(s->engine));
	json_end_object(&w);
}

/* The samples of the step that ended at the state's position, in the order they were read. */
static void put_sample_ids(
	struct json_writer *w, const struct session *s, const struct engine_step *step, int64_t end)
{
	int64_t samples = data_info(s->training)->samples;
	json_key(w, "sample_ids");
	json_begin_array(w);
	for (int64_t i = end - step->samples; i < end; i++)
		json_put_i64(w, data_sample_at(samples, (uint64_t)s->spec.seed, s->spec.data.shuffle, i));
	json_end_array(w);
}

void message_step(const struct session *s, const struct engine_step *step,
	const struct message_rates *rates, struct buf *out)
{
	struct json_writer w;
	struct engine_state state;
	engine_state_get(s->engine, &state);
	begin(&w, out, "step");
	json_field_i64(&w, "step", step->step);
	json_field_i64(&w, "steps", s->plan->total_steps);
	json_field_f64(&w, "data_epoch", step->epoch);
	json_field_f64(&w, "loss", step->loss);
	json_field_f64(&w, "learning_rate", step->learning_rate);
	json_field_f64(&w, "grad_norm", step->grad_norm);
	json_field_i64(&w, "samples", state.position);
	json_field_f64(&w, "samples_per_second", rates->samples_per_second);
	if (spec_is_language(&s->spec)) {
		json_field_i64(&w, "tokens", state.tokens);
		json_field_f64(&w, "tokens_per_second", rates->tokens_per_second);
	}
	if (rates->mfu > 0)
		json_field_f64(&w, "mfu", rates->mfu);
	else
		json_field_null(&w, "mfu");
	json_field_f64(&w, "data_wait_share", rates->data_wait_share);
	json_field_i64(&w, "memory_bytes", engine_memory_bytes(s->engine));
	if (s->plan->type == PLAN_F16) {
		json_field_f64(&w, "loss_scale", step->loss_scale);
		json_field_i64(&w, "overflows", step->overflows);
	}
	json_field_f64(&w, "eta_s", rates->eta_s);
	if (rates->sample_ids)
		put_sample_ids(&w, s, step, state.position);
	json_end_object(&w);
}

void message_evaluation(const struct session *s, struct buf *out)
{
	struct json_writer w;
	struct summary_metrics only = s->metrics;
	only.has_loss = false;
	begin(&w, out, "evaluation");
	json_field_i64(&w, "step", s->metrics.evaluated_step);
	summary_write_metrics(&w, &s->spec, &only);
	json_end_object(&w);
}

void message_checkpoint(const struct session *s, int64_t step, const char *dir,
	const struct summary_metrics *metrics, struct buf *out)
{
	struct json_writer w;
	begin(&w, out, "checkpoint");
	json_field_i64(&w, "step", step);
	json_field_str(&w, "dir", dir);
	json_key(&w, "metrics");
	json_begin_object(&w);
	summary_write_metrics(&w, &s->spec, metrics);
	json_end_object(&w);
	json_end_object(&w);
}

void message_log(const char *line, struct buf *out)
{
	struct json_writer w;
	begin(&w, out, "log");
	json_key(&w, "lines");
	json_begin_array(&w);
	json_put_str(&w, line);
	json_end_array(&w);
	json_end_object(&w);
}

void message_end(const struct session *s, const struct message_end *end, struct buf *out)
{
	struct json_writer w;
	begin(&w, out, "end");
	json_field_str(&w, "outcome", end->outcome);
	if (end->reason != NULL)
		json_field_str(&w, "reason", end->reason);
	if (end->message[0] != '\0')
		json_field_str(&w, "message", end->message);
	json_field_i64(&w, "step", end->step);
	if (end->dir != NULL)
		json_field_str(&w, "dir", end->dir);
	if (end->lost_rank)
		json_field_bool(&w, "lost_rank", true);
	if (s != NULL) {
		json_key(&w, "metrics");
		json_begin_object(&w);
		summary_write_metrics(&w, &s->spec, &s->metrics);
		json_end_object(&w);
	}
	json_end_object(&w);
}

/* SPDX-License-Identifier: Apache-2.0
 * Writes a resolved spec in the form that spec_json_read reads, nothing left out: what is not set
 * is null. Pure; thread-safe. */
#include "core/base/num.h"
#include "core/json/writer.h"
#include "core/spec/spec_json.h"
#include "core/spec/spec_json_private.h"

/* 0 means "not set" in the struct and null in the JSON. */
static void field_i64_or_null(struct json_writer *w, const char *key, int64_t v)
{
	if (v)
		json_field_i64(w, key, v);
	else
		json_field_null(w, key);
}

static void field_str_or_null(struct json_writer *w, const char *key, const char *text)
{
	json_field_str(w, key, text[0] ? text : NULL);
}

static void write_model(struct json_writer *w, const struct job_spec *spec)
{
	json_key(w, "model");
	json_begin_object(w);
	json_key(w, "config");
	spec_json_write_config(w, &spec->model);
	if (spec->base[0])
		json_field_str(w, "base", spec->base);
	json_end_object(w);
}

static void write_files(
	struct json_writer *w, const char *key, const char files[][SPEC_ID_MAX], int count)
{
	json_key(w, key);
	json_begin_array(w);
	for (int i = 0; i < count; i++)
		json_put_str(w, files[i]);
	json_end_array(w);
}

static void write_tokens(struct json_writer *w, const struct spec_data *d)
{
	static const char *const words[SPEC_TOKENIZER_COUNT] = {
		[SPEC_TOKENIZER_BYTES] = "bytes",
		[SPEC_TOKENIZER_GPT2] = "gpt2",
	};
	if (d->tokenizer == SPEC_TOKENIZER_FILE)
		json_field_str(w, "tokenizer", d->tokenizer_file);
	else
		json_field_str(w, "tokenizer", words[d->tokenizer]);
	field_i64_or_null(w, "sequence_length", d->sequence_length);
	if (d->sequence_length)
		json_field_bool(w, "packing", d->packing);
	else
		json_field_null(w, "packing");
}

static void write_columns(struct json_writer *w, const struct spec_data *d)
{
	field_str_or_null(w, "label_column", d->label_column);
	json_key(w, "categorical");
	if (d->categorical_count == 0) {
		json_put_null(w);
		return;
	}
	json_begin_array(w);
	for (int i = 0; i < d->categorical_count; i++)
		json_put_str(w, d->categorical[i]);
	json_end_array(w);
}

static void write_data(struct json_writer *w, const struct job_spec *spec)
{
	const struct spec_data *d = &spec->data;
	json_key(w, "data");
	json_begin_object(w);
	json_field_str(w, "format", spec_json_format_words[d->format]);
	write_tokens(w, d);
	json_field_bool(w, "shuffle", d->shuffle);
	write_columns(w, d);
	if (spec->task == SPEC_IMAGE_CLASSIFICATION) {
		json_field_bool(w, "flip", d->flip);
		json_field_i64(w, "crop_padding", d->crop_padding);
	} else {
		json_field_null(w, "flip");
		json_field_null(w, "crop_padding");
	}
	json_end_object(w);
}

static void write_lora(struct json_writer *w, const struct spec_lora *l)
{
	json_key(w, "lora");
	if (l->rank == 0) {
		json_put_null(w);
		return;
	}
	json_begin_object(w);
	json_field_i64(w, "rank", l->rank);
	json_field_f64(w, "alpha", l->alpha);
	json_field_f64(w, "dropout", l->dropout);
	json_key(w, "target_modules");
	json_begin_array(w);
	for (int i = 0; i < l->target_count; i++)
		json_put_str(w, l->target[i]);
	json_end_array(w);
	json_end_object(w);
}

static void write_hyper(struct json_writer *w, const struct spec_hyper *h)
{
	json_key(w, "hyperparameters");
	json_begin_object(w);
	json_field_f64(w, "epochs", h->epochs);
	field_i64_or_null(w, "max_steps", h->max_steps);
	json_field_i64(w, "batch_size", h->batch_size);
	json_field_i64(w, "micro_batch_size", h->micro_batch_size);
	json_field_str(w, "optimizer", spec_json_optimizer_words[h->optimizer]);
	json_field_f64(w, "learning_rate", h->learning_rate);
	json_field_str(w, "schedule", spec_json_schedule_words[h->schedule]);
	json_field_i64(w, "warmup_steps", h->warmup_steps);
	json_field_f64(w, "min_lr_ratio", h->min_lr_ratio);
	json_field_f64(w, "weight_decay", h->weight_decay);
	json_field_f64(w, "beta1", h->beta1);
	json_field_f64(w, "beta2", h->beta2);
	json_field_f64(w, "eps", h->eps);
	json_field_f64(w, "momentum", h->momentum);
	json_field_f64(w, "grad_clip", h->grad_clip);
	json_field_f64(w, "dropout", h->dropout);
	json_field_f64(w, "label_smoothing", h->label_smoothing);
	json_field_f64(w, "ema_decay", h->ema_decay);
	json_field_bool(w, "stochastic_rounding", h->stochastic_rounding);
	json_end_object(w);
}

/* A spec that was not read from JSON may leave an axis at 0. */
static int64_t ways(int64_t axis)
{
	return axis > 1 ? axis : 1;
}

static void write_placement(struct json_writer *w, const struct job_spec *spec)
{
	json_field_str(w, "precision", spec_json_precision_words[spec->precision]);
	json_field_str(
		w, "activation_checkpointing", spec_json_checkpointing_words[spec->checkpointing]);
	json_key(w, "parallelism");
	json_begin_object(w);
	json_field_i64(w, "data", ways(spec->parallel.data));
	json_field_i64(w, "tensor", ways(spec->parallel.tensor));
	json_field_i64(w, "pipeline", ways(spec->parallel.pipeline));
	json_field_i64(w, "zero_stage", spec->parallel.zero_stage);
	json_field_i64(w, "interleave", ways(spec->parallel.interleave));
	if (spec->parallel.min_data > 0)
		json_field_i64(w, "min_data", spec->parallel.min_data);
	json_end_object(w);
	json_key(w, "resources");
	json_begin_object(w);
	json_field_str(w, "instance_type", spec->instance_type);
	json_field_i64(w, "count", spec->device_count);
	json_field_bool(w, "preemptible", false);
	json_end_object(w);
	json_field_str(w, "priority", spec_json_priority_words[spec->priority + 1]);
	json_key(w, "residency");
	json_begin_array(w);
	for (int i = 0; i < spec->residency_count; i++)
		json_put_str(w, spec->residency[i]);
	json_end_array(w);
}

static void write_limits(struct json_writer *w, const struct spec_limits *limits)
{
	char cost[NUM_F64_MAX];
	num_format_micros(limits->max_cost_micros, cost);
	json_key(w, "limits");
	json_begin_object(w);
	field_i64_or_null(w, "max_runtime_s", limits->max_runtime_s);
	json_field_str(w, "max_cost", limits->max_cost_micros ? cost : NULL);
	json_end_object(w);
}

static void write_intervals(struct json_writer *w, const struct job_spec *spec)
{
	json_key(w, "checkpoint");
	json_begin_object(w);
	json_field_i64(w, "every_steps", spec->checkpoint_every_steps);
	json_field_i64(w, "keep", spec->checkpoint_keep);
	json_end_object(w);
	json_key(w, "evaluation");
	json_begin_object(w);
	json_field_i64(w, "every_steps", spec->evaluation_every_steps);
	json_end_object(w);
}

int spec_json_write(const struct job_spec *spec, struct buf *out)
{
	struct json_writer w;
	json_writer_init(&w, out);
	json_begin_object(&w);
	json_field_str(&w, "name", spec->name[0] ? spec->name : NULL);
	json_field_str(&w, "task", spec_json_task_words[spec->task]);
	write_model(&w, spec);
	write_files(&w, "training_file", spec->training_file, spec->training_file_count);
	write_files(&w, "validation_file", spec->validation_file, spec->validation_file_count);
	write_data(&w, spec);
	write_hyper(&w, &spec->hyper);
	write_lora(&w, &spec->lora);
	write_placement(&w, spec);
	write_limits(&w, &spec->limits);
	write_intervals(&w, spec);
	json_field_i64(&w, "seed", spec->seed);
	json_end_object(&w);
	return out->failed;
}

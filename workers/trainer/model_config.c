/* SPDX-License-Identifier: Apache-2.0
 * config.json (Hugging Face) and trainyard.json. */
#include "workers/trainer/model_config.h"

#include "core/spec/spec_json.h"

static void write_gpt2(struct json_writer *w, const struct job_spec *spec)
{
	const struct spec_model *m = &spec->model;
	json_key(w, "architectures");
	json_begin_array(w);
	json_put_str(w, "GPT2LMHeadModel");
	json_end_array(w);
	json_field_str(w, "model_type", "gpt2");
	json_field_str(w, "activation_function", "gelu_new");
	json_field_i64(w, "vocab_size", m->vocab_size);
	json_field_i64(w, "n_positions", m->n_positions);
	json_field_i64(w, "n_embd", m->n_embd);
	json_field_i64(w, "n_layer", m->n_layer);
	json_field_i64(w, "n_head", m->n_head);
	json_field_f64(w, "layer_norm_epsilon", 1e-5);
	json_field_f64(w, "attn_pdrop", spec->hyper.dropout);
	json_field_f64(w, "embd_pdrop", spec->hyper.dropout);
	json_field_f64(w, "resid_pdrop", spec->hyper.dropout);
	json_field_bool(w, "tie_word_embeddings", true);
}

static void write_sizes(struct json_writer *w, const char *key, const int64_t *sizes, int count)
{
	json_key(w, key);
	json_begin_array(w);
	for (int i = 0; i < count; i++)
		json_put_i64(w, sizes[i]);
	json_end_array(w);
}

static void write_vision(
	struct json_writer *w, const struct job_spec *spec, const struct plan *plan)
{
	const struct spec_model *m = &spec->model;
	json_field_str(w, "model_type", m->family == SPEC_CNN ? "trainyard-cnn" : "trainyard-mlp");
	if (m->family == SPEC_CNN) {
		write_sizes(w, "channels", m->channels, m->channel_count);
		json_field_i64(w, "blocks_per_stage", m->blocks_per_stage);
	}
	write_sizes(w, "hidden", m->hidden, m->hidden_count);
	json_field_i64(w, "in_channels", plan->in_channels);
	json_field_i64(w, "in_height", plan->in_height);
	json_field_i64(w, "in_width", plan->in_width);
	json_field_i64(w, "n_classes", plan->n_classes);
}

void model_config_write(const struct job_spec *spec, const struct plan *plan, struct buf *out)
{
	struct json_writer w;
	json_writer_init(&w, out);
	json_begin_object(&w);
	if (spec->model.family == SPEC_GPT2)
		write_gpt2(&w, spec);
	else
		write_vision(&w, spec, plan);
	json_field_str(&w, "torch_dtype", "float32");
	json_end_object(&w);
	buf_char(out, '\n');
}

void model_config_metrics(
	struct json_writer *w, const struct job_spec *spec, const struct checkpoint_metrics *m)
{
	if (m->has_loss)
		json_field_f64(w, "loss", m->loss);
	if (m->evaluated_step == 0)
		return;
	json_field_f64(w, "validation_loss", m->validation_loss);
	if (spec->task == SPEC_LANGUAGE_MODEL) {
		json_field_f64(w, "bits_per_byte", m->bits_per_byte);
		json_field_f64(w, "order0_bits_per_byte", m->order0_bits_per_byte);
	}
	if (spec->task != SPEC_REGRESSION)
		json_field_f64(w, "accuracy", m->accuracy);
}

void model_config_summary(const struct job_spec *spec, const struct plan *plan, int64_t step,
	const struct checkpoint_metrics *m, struct buf *out)
{
	struct json_writer w;
	json_writer_init(&w, out);
	json_begin_object(&w);
	json_field_i64(&w, "format", 1);
	json_field_str(&w, "task", spec_task_word(spec->task));
	json_field_str(&w, "family", spec_family_word(spec->model.family));
	json_field_i64(&w, "step", step);
	json_field_i64(&w, "steps", plan->total_steps);
	json_field_i64(&w, "parameters", plan->parameter_count);
	json_field_i64(&w, "seed", spec->seed);
	json_key(&w, "metrics");
	json_begin_object(&w);
	model_config_metrics(&w, spec, m);
	json_end_object(&w);
	json_end_object(&w);
	buf_char(out, '\n');
}

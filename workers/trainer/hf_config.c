/* SPDX-License-Identifier: Apache-2.0
 * Writing config.json. Fields are in the order of their names, as transformers writes them. */
#include "workers/trainer/hf_config.h"

#include "core/json/writer.h"
#include "core/spec/spec_json.h"

#include <stdio.h>

enum { BOTTLENECK_TIMES = 4, CLASS_NAME_MAX = 32 };

static void put_word_list(struct json_writer *w, const char *key, const char *word)
{
	json_key(w, key);
	json_begin_array(w);
	json_put_str(w, word);
	json_end_array(w);
}

static void put_sizes(
	struct json_writer *w, const char *key, const int64_t *sizes, int count, int64_t times)
{
	json_key(w, key);
	json_begin_array(w);
	for (int i = 0; i < count; i++)
		json_put_i64(w, sizes[i] * times);
	json_end_array(w);
}

static void put_token(struct json_writer *w, const char *key, int64_t id)
{
	if (id >= 0)
		json_field_i64(w, key, id);
	else
		json_field_null(w, key);
}

static void put_dtype(struct json_writer *w)
{
	json_field_str(w, "torch_dtype", "float32"); /* what is trained is kept and written in fp32 */
}

static void write_gpt2(
	struct json_writer *w, const struct job_spec *spec, const struct hf_tokens *tokens)
{
	const struct spec_model *m = &spec->model;
	json_field_str(w, "activation_function", "gelu_new");
	put_word_list(w, "architectures", "GPT2LMHeadModel");
	json_field_f64(w, "attn_pdrop", spec->hyper.dropout);
	put_token(w, "bos_token_id", tokens->bos);
	json_field_f64(w, "embd_pdrop", spec->hyper.dropout);
	put_token(w, "eos_token_id", tokens->eos);
	json_field_f64(w, "initializer_range", 0.02);
	json_field_f64(w, "layer_norm_epsilon", m->norm_eps);
	json_field_str(w, "model_type", "gpt2");
	json_field_i64(w, "n_ctx", m->n_positions);
	json_field_i64(w, "n_embd", m->n_embd);
	json_field_i64(w, "n_head", m->n_head);
	put_token(w, "n_inner", m->n_inner == 4 * m->n_embd ? -1 : m->n_inner);
	json_field_i64(w, "n_layer", m->n_layer);
	json_field_i64(w, "n_positions", m->n_positions);
	put_token(w, "pad_token_id", tokens->pad);
	json_field_bool(w, "reorder_and_upcast_attn", false);
	json_field_f64(w, "resid_pdrop", spec->hyper.dropout);
	json_field_bool(w, "scale_attn_by_inverse_layer_idx", false);
	json_field_bool(w, "scale_attn_weights", true);
	json_field_bool(w, "tie_word_embeddings", true);
	put_dtype(w);
	json_field_bool(w, "use_cache", true);
	json_field_i64(w, "vocab_size", m->vocab_size);
}

static void write_llama(
	struct json_writer *w, const struct job_spec *spec, const struct hf_tokens *tokens)
{
	const struct spec_model *m = &spec->model;
	put_word_list(w, "architectures", "LlamaForCausalLM");
	json_field_bool(w, "attention_bias", false);
	json_field_f64(w, "attention_dropout", 0);
	put_token(w, "bos_token_id", tokens->bos);
	put_token(w, "eos_token_id", tokens->eos);
	json_field_i64(w, "head_dim", m->n_embd / m->n_head);
	json_field_str(w, "hidden_act", "silu");
	json_field_i64(w, "hidden_size", m->n_embd);
	json_field_f64(w, "initializer_range", 0.02);
	json_field_i64(w, "intermediate_size", m->n_inner);
	json_field_i64(w, "max_position_embeddings", m->n_positions);
	json_field_bool(w, "mlp_bias", false);
	json_field_str(w, "model_type", "llama");
	json_field_i64(w, "num_attention_heads", m->n_head);
	json_field_i64(w, "num_hidden_layers", m->n_layer);
	json_field_i64(w, "num_key_value_heads", m->n_kv_head);
	put_token(w, "pad_token_id", tokens->pad);
	json_field_i64(w, "pretraining_tp", 1);
	json_field_f64(w, "rms_norm_eps", m->norm_eps);
	json_field_null(w, "rope_scaling");
	json_field_f64(w, "rope_theta", m->rope_theta);
	json_field_bool(w, "tie_word_embeddings", m->tied);
	put_dtype(w);
	json_field_bool(w, "use_cache", true);
	json_field_i64(w, "vocab_size", m->vocab_size);
}

static void put_class_names(struct json_writer *w, int64_t classes)
{
	char name[CLASS_NAME_MAX], number[CLASS_NAME_MAX];
	json_key(w, "id2label");
	json_begin_object(w);
	for (int64_t i = 0; i < classes; i++) {
		snprintf(number, sizeof(number), "%lld", (long long)i);
		snprintf(name, sizeof(name), "LABEL_%lld", (long long)i);
		json_field_str(w, number, name);
	}
	json_end_object(w);
	json_key(w, "label2id");
	json_begin_object(w);
	for (int64_t i = 0; i < classes; i++) {
		snprintf(name, sizeof(name), "LABEL_%lld", (long long)i);
		json_field_i64(w, name, i);
	}
	json_end_object(w);
}

/* Our own description, which hf_config_read prefers: it says all that the spec's config does. */
static void put_own(struct json_writer *w, const struct spec_model *m)
{
	json_key(w, "trainyard_config");
	spec_json_write_config(w, m);
}

static void write_resnet(struct json_writer *w, const struct spec_model *m)
{
	bool bottleneck = m->block == SPEC_BLOCK_BOTTLENECK;
	put_word_list(w, "architectures", "ResNetForImageClassification");
	put_sizes(w, "depths", m->blocks, m->channel_count, 1);
	json_field_bool(w, "downsample_in_bottleneck", false);
	json_field_bool(w, "downsample_in_first_stage", false);
	json_field_i64(w, "embedding_size", m->channels[0]);
	json_field_str(w, "hidden_act", "relu");
	put_sizes(w, "hidden_sizes", m->channels, m->channel_count, bottleneck ? BOTTLENECK_TIMES : 1);
	put_class_names(w, m->n_classes);
	json_field_str(w, "layer_type", bottleneck ? "bottleneck" : "basic");
	json_field_str(w, "model_type", "resnet");
	json_field_i64(w, "num_channels", m->in_channels);
	json_field_str(w, "problem_type", "single_label_classification");
	put_dtype(w);
	put_own(w, m);
}

static void write_other(struct json_writer *w, const struct spec_model *m)
{
	char type[CLASS_NAME_MAX];
	snprintf(type, sizeof(type), "trainyard-%s", spec_family_word(m->family));
	json_field_str(w, "model_type", type);
	put_dtype(w);
	put_own(w, m);
}

void hf_config_write(const struct job_spec *spec, const struct plan *plan,
	const struct hf_tokens *tokens, struct buf *out)
{
	struct json_writer w;
	struct spec_model m = spec->model;
	if (!spec_is_language(spec) && m.family != SPEC_DLRM) {
		m.in_channels = plan->in_channels;
		m.in_height = plan->in_height;
		m.in_width = plan->in_width;
		m.n_classes = plan->n_classes;
	}
	json_writer_init(&w, out);
	json_begin_object(&w);
	if (m.family == SPEC_GPT2)
		write_gpt2(&w, spec, tokens);
	else if (m.family == SPEC_LLAMA)
		write_llama(&w, spec, tokens);
	else if (m.family == SPEC_CNN && m.block != SPEC_BLOCK_PLAIN && m.stem == SPEC_STEM_7)
		write_resnet(&w, &m);
	else
		write_other(&w, &m);
	json_end_object(&w);
	buf_char(out, '\n');
}

void hf_config_write_generation(const struct hf_tokens *tokens, struct buf *out)
{
	struct json_writer w;
	json_writer_init(&w, out);
	json_begin_object(&w);
	json_field_bool(&w, "_from_model_config", true);
	if (tokens->bos >= 0)
		json_field_i64(&w, "bos_token_id", tokens->bos);
	if (tokens->eos >= 0)
		json_field_i64(&w, "eos_token_id", tokens->eos);
	if (tokens->pad >= 0)
		json_field_i64(&w, "pad_token_id", tokens->pad);
	json_end_object(&w);
	buf_char(out, '\n');
}

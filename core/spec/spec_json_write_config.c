/* SPDX-License-Identifier: Apache-2.0
 * Writes a model's config as spec_json_model.c reads it, nothing left out: what is not set is null.
 * Called by spec_json_write.c and for the catalogue of presets. */
#include "core/json/writer.h"
#include "core/spec/spec_json.h"
#include "core/spec/spec_json_private.h"

static void write_widths(struct json_writer *w, const char *key, const int64_t *widths, int count)
{
	json_key(w, key);
	json_begin_array(w);
	for (int i = 0; i < count; i++)
		json_put_i64(w, widths[i]);
	json_end_array(w);
}

static void write_gpt2(struct json_writer *w, const struct spec_model *m)
{
	json_field_i64(w, "n_layer", m->n_layer);
	json_field_i64(w, "n_head", m->n_head);
	json_field_i64(w, "n_embd", m->n_embd);
	json_field_i64(w, "n_inner", m->n_inner);
	json_field_i64(w, "n_positions", m->n_positions);
	json_field_i64(w, "vocab_size", m->vocab_size);
	json_field_f64(w, "layer_norm_epsilon", m->norm_eps);
}

static void write_llama(struct json_writer *w, const struct spec_model *m)
{
	json_field_i64(w, "num_hidden_layers", m->n_layer);
	json_field_i64(w, "num_attention_heads", m->n_head);
	json_field_i64(w, "num_key_value_heads", m->n_kv_head);
	json_field_i64(w, "hidden_size", m->n_embd);
	json_field_i64(w, "intermediate_size", m->n_inner);
	json_field_i64(w, "max_position_embeddings", m->n_positions);
	json_field_i64(w, "vocab_size", m->vocab_size);
	json_field_f64(w, "rms_norm_eps", m->norm_eps);
	json_field_f64(w, "rope_theta", m->rope_theta);
	json_field_bool(w, "tie_word_embeddings", m->tied);
}

static void write_dlrm(struct json_writer *w, const struct spec_model *m)
{
	json_field_i64(w, "dense_features", m->dense_features);
	json_field_i64(w, "embedding_dim", m->embedding_dim);
	json_field_i64(w, "lookups", m->lookups);
	write_widths(w, "table_rows", m->table_rows, m->table_count);
	write_widths(w, "bottom", m->hidden, m->hidden_count);
	write_widths(w, "top", m->top, m->top_count);
}

static void write_shape_field(struct json_writer *w, const char *key, int64_t v)
{
	if (v)
		json_field_i64(w, key, v);
	else
		json_field_null(w, key);
}

static void write_image(struct json_writer *w, const struct spec_model *m)
{
	if (m->family == SPEC_CNN) {
		json_field_str(w, "block", spec_json_block_words[m->block]);
		write_widths(w, "channels", m->channels, m->channel_count);
	}
	if (m->family == SPEC_CNN && m->block != SPEC_BLOCK_PLAIN) {
		json_field_str(w, "stem", spec_json_stem_words[m->stem]);
		write_widths(w, "blocks", m->blocks, m->channel_count);
	} else {
		if (m->family == SPEC_CNN)
			json_field_i64(w, "blocks_per_stage", m->blocks_per_stage);
		write_widths(w, "hidden", m->hidden, m->hidden_count);
	}
	write_shape_field(w, "in_channels", m->in_channels);
	write_shape_field(w, "in_height", m->in_height);
	write_shape_field(w, "in_width", m->in_width);
	write_shape_field(w, "n_classes", m->n_classes);
}

void spec_json_write_config(struct json_writer *w, const struct spec_model *m)
{
	json_begin_object(w);
	json_field_str(w, "family", spec_json_family_words[m->family]);
	switch (m->family) {
	case SPEC_GPT2: write_gpt2(w, m); break;
	case SPEC_LLAMA: write_llama(w, m); break;
	case SPEC_DLRM: write_dlrm(w, m); break;
	case SPEC_MLP:
	case SPEC_CNN: write_image(w, m); break;
	case SPEC_FAMILY_COUNT: break;
	}
	json_end_object(w);
}

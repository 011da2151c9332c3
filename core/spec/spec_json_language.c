/* SPDX-License-Identifier: Apache-2.0
 * The configs of gpt2 and llama, under Hugging Face's names. A vocab_size that is left out follows
 * from the tokenizer (spec_json_data.c). Called by spec_json_model.c. */
#include "core/spec/spec_json_private.h"

enum {
	HEADS_MAX = 256,
	EMBD_MAX = 32 * 1024,
	INNER_MAX = 128 * 1024,
	POSITIONS_MAX = 128 * 1024,
	VOCAB_MIN = 2,
	VOCAB_MAX = 1024 * 1024,
	GPT2_INNER_TIMES = 4,
};

static const double EPS_DEFAULT = 1e-5, EPS_MAX = 0.1;
static const double THETA_DEFAULT = 10000, THETA_MAX = 1e12;

static void check_heads(
	struct json_obj *o, const struct spec_model *m, const char *heads, const char *width)
{
	if (!o->code && m->n_embd % m->n_head != 0)
		json_obj_fail(o, ERR_INVALID_VALUE, heads, "%s.%s (%lld) must divide %s (%lld)", o->path,
			heads, (long long)m->n_head, width, (long long)m->n_embd);
}

void spec_json_gpt2_read(struct json_obj *o, struct spec_model *m)
{
	spec_json_need_i64(o, "n_layer", 1, SPEC_LAYERS_MAX, &m->n_layer);
	spec_json_need_i64(o, "n_head", 1, HEADS_MAX, &m->n_head);
	spec_json_need_i64(o, "n_embd", 1, EMBD_MAX, &m->n_embd);
	spec_json_need_i64(o, "n_positions", 1, POSITIONS_MAX, &m->n_positions);
	json_obj_i64(o, "vocab_size", VOCAB_MIN, VOCAB_MAX, &m->vocab_size);
	m->n_inner = GPT2_INNER_TIMES * m->n_embd;
	json_obj_i64(o, "n_inner", 1, INNER_MAX, &m->n_inner);
	m->norm_eps = EPS_DEFAULT;
	json_obj_f64(o, "layer_norm_epsilon", 0, EPS_MAX, &m->norm_eps);
	m->n_kv_head = m->n_head;
	m->tied = true;
	check_heads(o, m, "n_head", "n_embd");
}

static void check_kv_heads(struct json_obj *o, const struct spec_model *m)
{
	if (o->code)
		return;
	if (m->n_head % m->n_kv_head != 0)
		json_obj_fail(o, ERR_INVALID_VALUE, "num_key_value_heads",
			"%s.num_key_value_heads (%lld) must divide num_attention_heads (%lld)", o->path,
			(long long)m->n_kv_head, (long long)m->n_head);
	else if (m->n_embd / m->n_head % 2 != 0)
		json_obj_fail(o, ERR_INVALID_VALUE, "hidden_size",
			"%s.hidden_size (%lld) over num_attention_heads (%lld) is a head of %lld: rotary "
			"positions turn pairs, so it must be even",
			o->path, (long long)m->n_embd, (long long)m->n_head,
			(long long)(m->n_embd / m->n_head));
}

void spec_json_llama_read(struct json_obj *o, struct spec_model *m)
{
	spec_json_need_i64(o, "num_hidden_layers", 1, SPEC_LAYERS_MAX, &m->n_layer);
	spec_json_need_i64(o, "num_attention_heads", 1, HEADS_MAX, &m->n_head);
	m->n_kv_head = m->n_head;
	json_obj_i64(o, "num_key_value_heads", 1, HEADS_MAX, &m->n_kv_head);
	spec_json_need_i64(o, "hidden_size", 1, EMBD_MAX, &m->n_embd);
	spec_json_need_i64(o, "intermediate_size", 1, INNER_MAX, &m->n_inner);
	spec_json_need_i64(o, "max_position_embeddings", 1, POSITIONS_MAX, &m->n_positions);
	json_obj_i64(o, "vocab_size", VOCAB_MIN, VOCAB_MAX, &m->vocab_size);
	m->norm_eps = EPS_DEFAULT;
	json_obj_f64(o, "rms_norm_eps", 0, EPS_MAX, &m->norm_eps);
	m->rope_theta = THETA_DEFAULT;
	json_obj_f64(o, "rope_theta", 1, THETA_MAX, &m->rope_theta);
	json_obj_bool(o, "tie_word_embeddings", &m->tied);
	check_heads(o, m, "num_attention_heads", "hidden_size");
	check_kv_heads(o, m);
}

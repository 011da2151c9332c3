/* SPDX-License-Identifier: Apache-2.0
 * Reading config.json. The fields that matter are copied into the spec's form of a config and read
 * by the spec's reader, so that one place has the bounds. Part of hf_config.h. */
#include "workers/trainer/hf_config.h"

#include "core/base/file.h"
#include "core/json/reader.h"
#include "core/json/writer.h"
#include "core/spec/spec_json.h"

#include <stdio.h>
#include <string.h>

enum {
	CONFIG_BYTES_MAX = 8 * 1024 * 1024, /* names of 64 Ki classes */
	OWN_TEXT_MAX = 64 * 1024,
	STAGES_MAX = SPEC_CHANNELS_MAX,
	BOTTLENECK_TIMES = 4
};

/* What transformers takes where the file says nothing; the spec's own default is another. */
static const double LLAMA_EPS = 1e-6;

/* A field whose value decides whether the model is one of ours. */
struct rule {
	const char *key;
	enum { IS_NULL_OR_FALSE, IS_NULL_OR_TRUE, IS_WORD } kind;
	const char *words[3]; /* IS_WORD: also when it is absent */
	const char *why;
};

static const struct rule gpt2_rules[] = {
	{ "activation_function", IS_WORD, { "gelu_new", "gelu_pytorch_tanh" },
		"the tanh form of GELU is what this engine has" },
	{ "add_cross_attention", IS_NULL_OR_FALSE, { 0 }, "cross attention is not built" },
	{ "scale_attn_by_inverse_layer_idx", IS_NULL_OR_FALSE, { 0 }, "that scaling is not built" },
	{ "scale_attn_weights", IS_NULL_OR_TRUE, { 0 }, "scores are scaled by 1/sqrt(head size)" },
	{ "tie_word_embeddings", IS_NULL_OR_TRUE, { 0 }, "the head of gpt2 is tied" },
};
static const struct rule llama_rules[] = {
	{ "hidden_act", IS_WORD, { "silu", "swish" }, "the gate is a SiLU here" },
	{ "attention_bias", IS_NULL_OR_FALSE, { 0 }, "projections have no bias here" },
	{ "mlp_bias", IS_NULL_OR_FALSE, { 0 }, "projections have no bias here" },
};

static const char *const gpt2_fields[] = { "n_layer", "n_head", "n_embd", "n_positions",
	"vocab_size", "n_inner", "layer_norm_epsilon", NULL };
static const char *const llama_fields[] = { "num_hidden_layers", "num_attention_heads",
	"num_key_value_heads", "hidden_size", "intermediate_size", "max_position_embeddings",
	"vocab_size", "rms_norm_eps", "tie_word_embeddings", NULL };

static int refuse(struct err *err, const char *key, const char *why)
{
	return err_set(err, ERR_INVALID_DATA, key, "config.json: %s: %s", key, why);
}

static bool word_fits(const struct rule *r, const struct json_val *v)
{
	const char *word = json_str_or(v, "");
	for (size_t i = 0; i < ARRAY_LEN(r->words) && r->words[i] != NULL; i++)
		if (strcmp(word, r->words[i]) == 0)
			return true;
	return false;
}

static int check(
	const struct json_val *root, const struct rule *rules, size_t count, struct err *err)
{
	for (size_t i = 0; i < count; i++) {
		const struct rule *r = &rules[i];
		const struct json_val *v = json_get(root, r->key);
		bool fits = v == NULL ||
			(r->kind == IS_WORD ? word_fits(r, v)
								: json_kind(v) == JSON_BOOL &&
						json_bool_or(v, false) == (r->kind == IS_NULL_OR_TRUE));
		if (!fits)
			return refuse(err, r->key, r->why);
	}
	return 0;
}

/* Newer files keep the rotation's numbers in "rope_parameters". */
static int check_rope(const struct json_val *root, double *ret_theta, struct err *err)
{
	static const char *const keys[] = { "rope_scaling", "rope_parameters" };
	*ret_theta = json_f64_or(json_get(root, "rope_theta"), 10000);
	for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
		const struct json_val *v = json_get(root, keys[i]);
		const char *type =
			json_str_or(json_get(v, "rope_type"), json_str_or(json_get(v, "type"), "default"));
		if (v != NULL && (json_kind(v) != JSON_OBJECT || strcmp(type, "default") != 0))
			return refuse(err, keys[i], "only unscaled rotary positions are built");
		*ret_theta = json_f64_or(json_get(v, "rope_theta"), *ret_theta);
	}
	int64_t heads = json_i64_or(json_get(root, "num_attention_heads"), 0);
	int64_t width = json_i64_or(json_get(root, "hidden_size"), 0);
	int64_t head = json_i64_or(json_get(root, "head_dim"), 0);
	if (head != 0 && (heads <= 0 || head > INT64_MAX / heads || head * heads != width))
		return refuse(err, "head_dim", "it must be hidden_size / num_attention_heads");
	return 0;
}

static void copy_fields(
	struct json_writer *w, const struct json_val *root, const char *const *fields)
{
	for (; *fields != NULL; fields++) {
		const struct json_val *v = json_get(root, *fields);
		cleanup(freep) char *text = v != NULL ? json_dump(v) : NULL;
		if (text != NULL)
			json_field_raw(w, *fields, text);
	}
}

/* Stages as the spec has them: the width inside a bottleneck, not behind it. */
static int copy_resnet(struct json_writer *w, const struct json_val *root, struct err *err)
{
	const char *type = json_str_or(json_get(root, "layer_type"), "bottleneck");
	const struct json_val *sizes = json_get(root, "hidden_sizes");
	bool bottleneck = strcmp(type, "bottleneck") == 0;
	int64_t times = bottleneck ? BOTTLENECK_TIMES : 1;
	if (json_bool_or(json_get(root, "downsample_in_bottleneck"), false))
		return refuse(err, "downsample_in_bottleneck", "strides are in the 3x3 convolution here");
	if (json_bool_or(json_get(root, "downsample_in_first_stage"), false))
		return refuse(err, "downsample_in_first_stage", "the first stage keeps the image's size");
	if (strcmp(json_str_or(json_get(root, "hidden_act"), "relu"), "relu") != 0)
		return refuse(err, "hidden_act", "blocks end in a ReLU here");
	json_field_str(w, "block", bottleneck ? "bottleneck" : "basic");
	json_field_str(w, "stem", "7x7");
	json_key(w, "channels");
	json_begin_array(w);
	for (size_t i = 0; i < json_array_len(sizes); i++) {
		int64_t size = json_i64_or(json_array_at(sizes, i), 0);
		if (size <= 0 || size % times != 0)
			return refuse(err, "hidden_sizes", "a bottleneck's width is four times its inside");
		json_put_i64(w, size / times);
	}
	json_end_array(w);
	int64_t first = json_i64_or(json_array_at(sizes, 0), 0) / times;
	if (json_i64_or(json_get(root, "embedding_size"), 64) != first)
		return refuse(err, "embedding_size", "it is the first stage's width here");
	cleanup(freep) char *depths = json_dump(json_get(root, "depths"));
	json_field_raw(w, "blocks", depths);
	json_field_i64(w, "in_channels", json_i64_or(json_get(root, "num_channels"), 3));
	if (json_get(root, "id2label") != NULL) {
		int64_t classes = 0;
		void *iter = NULL;
		const char *key;
		const struct json_val *v;
		while (json_object_next(json_get(root, "id2label"), &iter, &key, &v))
			classes++;
		json_field_i64(w, "n_classes", classes);
	}
	return 0;
}

/* The spec's form of what root says. */
static int translate(const struct json_val *root, struct buf *out, struct err *err)
{
	struct json_writer w;
	const char *type = json_str_or(json_get(root, "model_type"), "");
	double theta = 0;
	int rc = 0;
	json_writer_init(&w, out);
	if (json_get(root, "trainyard_config") != NULL) {
		cleanup(freep) char *text = json_dump(json_get(root, "trainyard_config"));
		json_put_raw(&w, text);
		return 0;
	}
	json_begin_object(&w);
	if (strcmp(type, "gpt2") == 0) {
		json_field_str(&w, "family", "gpt2");
		copy_fields(&w, root, gpt2_fields);
		rc = check(root, gpt2_rules, ARRAY_LEN(gpt2_rules), err);
	} else if (strcmp(type, "llama") == 0) {
		rc = check_rope(root, &theta, err);
		json_field_str(&w, "family", "llama");
		copy_fields(&w, root, llama_fields);
		if (json_get(root, "rms_norm_eps") == NULL)
			json_field_f64(&w, "rms_norm_eps", LLAMA_EPS);
		json_field_f64(&w, "rope_theta", theta);
		if (rc == 0)
			rc = check(root, llama_rules, ARRAY_LEN(llama_rules), err);
	} else if (strcmp(type, "resnet") == 0) {
		json_field_str(&w, "family", "cnn");
		rc = copy_resnet(&w, root, err);
	} else {
		rc = err_set(err, ERR_INVALID_DATA, "model_type",
			"config.json: the model_type \"%.40s\" is not built; there are gpt2, llama, resnet and "
			"this engine's own",
			type);
	}
	if (rc == 0)
		json_end_object(&w);
	return rc;
}

int hf_config_read(const char *dir, struct spec_model *ret, struct err *err)
{
	char path[FILE_PATH_MAX];
	cleanup(freep) char *text = NULL;
	cleanup(json_doc_freep) struct json_doc *doc = NULL, *own = NULL;
	cleanup(buf_finish) struct buf form;
	struct spec_model model = { 0 };
	struct err why = { 0 };
	size_t bytes = 0;
	buf_init(&form, OWN_TEXT_MAX);
	int rc = file_join(path, dir, "config.json", err);
	if (rc == 0 && !file_exists(path))
		rc = err_set(err, ERR_INVALID_DATA, NULL, "%s has no config.json", dir);
	if (rc == 0)
		rc = file_read(path, CONFIG_BYTES_MAX, &text, &bytes, err);
	if (rc < 0)
		return rc;
	rc = json_doc_parse(text, bytes, CONFIG_BYTES_MAX, &doc, &why);
	if (rc == 0)
		rc = translate(json_doc_root(doc), &form, &why);
	if (rc == 0 && form.failed != 0)
		rc = err_set(&why, ERR_INVALID_DATA, NULL, "config.json is too large");
	if (rc == 0)
		rc = json_doc_parse(buf_cstr(&form), form.len, OWN_TEXT_MAX, &own, &why);
	if (rc == 0)
		rc = spec_json_read_config(json_doc_root(own), "config.json", &model, &why);
	if (rc < 0)
		return err_set(err, rc == ERR_NO_MEMORY ? rc : ERR_INVALID_DATA, why.param,
			"%.200s: %.500s", path, why.message);
	*ret = model;
	return 0;
}

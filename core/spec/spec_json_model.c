/* SPDX-License-Identifier: Apache-2.0
 * Reads `model`: a preset or a config, whose fields depend on its family. Called by spec_json.c. */
#include "core/spec/preset.h"
#include "core/spec/spec_json_private.h"

#include <stdio.h>
#include <string.h>

enum {
	HEADS_MAX = 256,
	EMBD_MAX = 32 * 1024,
	POSITIONS_MAX = 128 * 1024,
	VOCAB_MIN = 256, /* the byte tokenizer */
	VOCAB_MAX = 1024 * 1024,
	CHANNELS_IN_MAX = 1024,
	SIDE_MAX = 8192,
	CLASSES_MAX = 64 * 1024,
	PRESET_LIST_MAX = 256,
};

static void need_i64(struct json_obj *o, const char *key, int64_t min, int64_t max, int64_t *ret)
{
	json_obj_need(o, key);
	json_obj_i64(o, key, min, max, ret);
}

/* null or "auto" stays 0: known once the data has been read. */
static void data_i64(struct json_obj *o, const char *key, int64_t max, int64_t *ret)
{
	if (!spec_json_is_auto(o, key))
		json_obj_i64(o, key, 1, max, ret);
}

static void read_widths(struct json_obj *o, const char *key, size_t max_count, int64_t max,
	int64_t *ret, int *ret_count)
{
	const struct json_val *list = NULL;
	json_obj_array(o, key, max_count, &list);
	for (size_t i = 0; i < json_array_len(list); i++) {
		const struct json_val *item = json_array_at(list, i);
		int64_t width = json_i64_or(item, 0);
		if (json_kind(item) != JSON_INT || width < 1 || width > max) {
			json_obj_fail(o, json_kind(item) == JSON_INT ? ERR_INVALID_VALUE : ERR_INVALID_TYPE,
				key, "%s.%s[%zu] must be a whole number from 1 to %lld", o->path, key, i,
				(long long)max);
			return;
		}
		ret[i] = width;
	}
	*ret_count = (int)json_array_len(list);
}

static void read_gpt2(struct json_obj *o, struct spec_model *m)
{
	m->vocab_size = VOCAB_MIN;
	need_i64(o, "n_layer", 1, SPEC_LAYERS_MAX, &m->n_layer);
	need_i64(o, "n_head", 1, HEADS_MAX, &m->n_head);
	need_i64(o, "n_embd", 1, EMBD_MAX, &m->n_embd);
	need_i64(o, "n_positions", 1, POSITIONS_MAX, &m->n_positions);
	json_obj_i64(o, "vocab_size", VOCAB_MIN, VOCAB_MAX, &m->vocab_size);
	if (!o->code && m->n_embd % m->n_head != 0)
		json_obj_fail(o, ERR_INVALID_VALUE, "n_head", "%s.n_head (%lld) must divide n_embd (%lld)",
			o->path, (long long)m->n_head, (long long)m->n_embd);
}

static void read_sample_shape(struct json_obj *o, struct spec_model *m)
{
	data_i64(o, "in_channels", CHANNELS_IN_MAX, &m->in_channels);
	data_i64(o, "in_height", SIDE_MAX, &m->in_height);
	data_i64(o, "in_width", SIDE_MAX, &m->in_width);
	data_i64(o, "n_classes", CLASSES_MAX, &m->n_classes);
	if (!o->code && m->in_channels * m->in_height * m->in_width > SPEC_SAMPLE_VALUES_MAX)
		json_obj_fail(o, ERR_INVALID_VALUE, "in_height",
			"%s: a sample of %lld x %lld x %lld has more than %d values", o->path,
			(long long)m->in_channels, (long long)m->in_height, (long long)m->in_width,
			SPEC_SAMPLE_VALUES_MAX);
}

static void read_mlp(struct json_obj *o, struct spec_model *m)
{
	json_obj_need(o, "hidden");
	read_widths(o, "hidden", SPEC_LAYERS_MAX, SPEC_HIDDEN_UNITS_MAX, m->hidden, &m->hidden_count);
	read_sample_shape(o, m);
}

static void read_cnn(struct json_obj *o, struct spec_model *m)
{
	m->blocks_per_stage = 2;
	json_obj_need(o, "channels");
	read_widths(o, "channels", SPEC_CHANNELS_MAX, SPEC_CHANNEL_MAX, m->channels, &m->channel_count);
	if (!o->code && m->channel_count == 0)
		json_obj_fail(
			o, ERR_INVALID_VALUE, "channels", "%s.channels needs at least one stage", o->path);
	json_obj_i64(o, "blocks_per_stage", 1, SPEC_BLOCKS_MAX, &m->blocks_per_stage);
	read_widths(o, "hidden", SPEC_LAYERS_MAX, SPEC_HIDDEN_UNITS_MAX, m->hidden, &m->hidden_count);
	read_sample_shape(o, m);
}

static int read_config(
	const struct json_val *v, const char *path, struct spec_model *m, struct err *err)
{
	struct json_obj o;
	int family = SPEC_MLP;
	json_obj_open(&o, v, path, err);
	json_obj_need(&o, "family");
	json_obj_word(&o, "family", spec_json_family_words, &family);
	m->family = (enum spec_family)family;
	if (!o.code) {
		switch (m->family) {
		case SPEC_GPT2: read_gpt2(&o, m); break;
		case SPEC_MLP: read_mlp(&o, m); break;
		case SPEC_CNN: read_cnn(&o, m); break;
		}
	}
	return json_obj_close(&o);
}

static void read_preset(struct json_obj *o, const char *name, struct spec_model *m)
{
	const struct preset *p = preset_find(name);
	if (p) {
		*m = p->model;
		return;
	}
	char list[PRESET_LIST_MAX] = "";
	size_t count;
	const struct preset *all = preset_all(&count);
	for (size_t i = 0, used = 0; i < count && used < sizeof(list); i++) {
		int n = snprintf(list + used, sizeof(list) - used, "%s%s", i ? ", " : "", all[i].name);
		used += n > 0 ? (size_t)n : 0;
	}
	json_obj_fail(o, ERR_INVALID_VALUE, "preset", "%s.preset: there is no \"%.64s\"; there are %s",
		o->path, name, list);
}

static int read_model(
	const struct json_val *v, const char *path, struct spec_model *m, struct err *err)
{
	struct json_obj o;
	const char *preset = NULL;
	const struct json_val *config = NULL;
	json_obj_open(&o, v, path, err);
	json_obj_str(&o, "preset", 1, SPEC_ID_MAX - 1, &preset);
	json_obj_object(&o, "config", &config);
	spec_json_refuse(&o, "base", "this version trains from scratch: give preset or config");
	if (!o.code && !preset == !config)
		json_obj_fail(&o, preset ? ERR_INVALID_VALUE : ERR_MISSING_FIELD, NULL,
			"%s must have exactly one of preset and config", path);
	if (!o.code && preset)
		read_preset(&o, preset, m);
	if (!o.code && config) {
		char config_path[JSON_PATH_MAX];
		json_obj_path(&o, "config", config_path);
		json_obj_adopt(&o, read_config(config, config_path, m, err));
	}
	return json_obj_close(&o);
}

void spec_json_model_read(struct json_obj *o, struct job_spec *spec)
{
	const struct json_val *v = NULL;
	json_obj_need(o, "model");
	json_obj_object(o, "model", &v);
	if (!v)
		return;
	char path[JSON_PATH_MAX];
	json_obj_path(o, "model", path);
	json_obj_adopt(o, read_model(v, path, &spec->model, o->err));
}

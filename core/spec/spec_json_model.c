/* SPDX-License-Identifier: Apache-2.0
 * Reads `model`: a preset, a config, whose fields depend on its family, or a base, which brings its
 * config along. Called by spec_json.c. */
#include "core/spec/preset.h"
#include "core/spec/spec_json_private.h"

#include <stdio.h>
#include <string.h>

enum { PRESET_LIST_MAX = 512 };

int spec_json_read_config(
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
		case SPEC_GPT2: spec_json_gpt2_read(&o, m); break;
		case SPEC_LLAMA: spec_json_llama_read(&o, m); break;
		case SPEC_MLP: spec_json_mlp_read(&o, m); break;
		case SPEC_CNN: spec_json_cnn_read(&o, m); break;
		case SPEC_DLRM: spec_json_dlrm_read(&o, m); break;
		case SPEC_FAMILY_COUNT: break;
		}
	}
	return json_obj_close(&o);
}

static void read_preset(struct json_obj *o, const char *name, struct spec_model *m)
{
	const struct preset *p = preset_find(name);
	if (p) {
		memcpy(m, &p->model, sizeof(*m));
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

static bool base_ok(const char *id)
{
	static const char *const prefixes[] = { "ckpt_", "job_", "model_" };
	for (size_t i = 0; i < ARRAY_LEN(prefixes); i++) {
		if (strncmp(id, prefixes[i], strlen(prefixes[i])) == 0)
			return spec_json_id_ok(id);
	}
	return false;
}

static void read_given_config(struct json_obj *o, const struct json_val *v,
	const struct spec_base *base, struct spec_model *m)
{
	char path[JSON_PATH_MAX];
	json_obj_path(o, "config", path);
	json_obj_adopt(o, spec_json_read_config(v, path, m, o->err));
	if (!base || o->code)
		return;
	if (m->vocab_size == 0)
		m->vocab_size = base->model.vocab_size;
	if (memcmp(m, &base->model, sizeof(*m)) != 0)
		json_obj_fail(o, ERR_INVALID_VALUE, "config",
			"%s.config is not the config of %s.base: leave it out", o->path, o->path);
}

static void read_base(struct json_obj *o, const char *id, const struct json_val *config,
	const struct spec_base *base, struct job_spec *spec)
{
	if (!base_ok(id)) {
		json_obj_fail(o, ERR_INVALID_VALUE, "base",
			"%s.base must be the id of a checkpoint, of a job that has succeeded or of its model, "
			"like \"ckpt_01J…\"",
			o->path);
		return;
	}
	memcpy(spec->base, id, strlen(id) + 1);
	if (config)
		read_given_config(o, config, base, &spec->model);
	else if (base)
		memcpy(&spec->model, &base->model, sizeof(spec->model));
	else
		json_obj_fail(o, ERR_INVALID_VALUE, "base",
			"%s.base: what %s is made of is not known here; give its %s.config too", o->path, id,
			o->path);
}

void spec_json_model_read(struct json_obj *up, struct job_spec *spec, const struct spec_base *base)
{
	struct json_obj o;
	const char *preset = NULL, *id = NULL;
	const struct json_val *config = NULL;
	json_obj_need(up, "model");
	if (!spec_json_open_part(up, "model", &o))
		return;
	json_obj_str(&o, "preset", 1, SPEC_ID_MAX - 1, &preset);
	json_obj_object(&o, "config", &config);
	json_obj_str(&o, "base", 1, SPEC_ID_MAX - 1, &id);
	if (!o.code && (preset ? config || id : !config && !id))
		json_obj_fail(&o, preset ? ERR_INVALID_VALUE : ERR_MISSING_FIELD, NULL,
			"%s must have exactly one of preset, config and base", o.path);
	if (!o.code && preset)
		read_preset(&o, preset, &spec->model);
	else if (!o.code && id)
		read_base(&o, id, config, base, spec);
	else if (!o.code)
		read_given_config(&o, config, NULL, &spec->model);
	spec_json_close_part(up, &o);
}

const char *spec_json_base(const struct json_val *v)
{
	const struct json_val *model = json_get(v, "model");
	const char *id = json_str_or(json_get(model, "base"), NULL);
	/* Beside a preset it is one choice too many, which the reader tells. */
	return id && base_ok(id) && !json_get(model, "preset") ? id : NULL;
}

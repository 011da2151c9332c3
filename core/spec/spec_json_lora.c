/* SPDX-License-Identifier: Apache-2.0
 * Reads `lora`. Module names are the last component of Hugging Face's, as in PEFT. Called by
 * spec_json.c after the model. */
#include "core/spec/spec_json_private.h"

#include <stdio.h>
#include <string.h>

enum { RANK_DEFAULT = 16, ALPHA_DEFAULT = 32, NAMES_MAX = 160 };
static const double ALPHA_MAX = 1e6, DROPOUT_MAX = 0.95;

/* NULL-terminated; the first ones, up to `defaults`, are what is adapted unless the spec says. */
struct modules {
	const char *const *names;
	int defaults;
};

static struct modules modules_of(enum spec_family family)
{
	static const char *const gpt2[] = { "c_attn", "c_proj", "c_fc", NULL };
	static const char *const llama[] = { "q_proj", "v_proj", "k_proj", "o_proj", "gate_proj",
		"up_proj", "down_proj", NULL };
	if (family == SPEC_GPT2)
		return (struct modules){ gpt2, 1 };
	return (struct modules){ llama, 2 };
}

static bool is_target(const struct spec_lora *l, const char *name)
{
	for (int i = 0; i < l->target_count; i++) {
		if (strcmp(l->target[i], name) == 0)
			return true;
	}
	return false;
}

static void add_target(struct spec_lora *l, const char *name)
{
	(void)snprintf(l->target[l->target_count++], SPEC_TARGET_MAX, "%s", name);
}

static bool is_module(const struct modules *known, const char *name)
{
	for (int i = 0; known->names[i]; i++) {
		if (strcmp(known->names[i], name) == 0)
			return true;
	}
	return false;
}

static void read_targets(struct json_obj *o, const struct modules *known, struct spec_lora *l)
{
	const struct json_val *list = NULL;
	json_obj_array(o, "target_modules", SPEC_TARGETS_MAX, &list);
	if (!list) {
		for (int i = 0; i < known->defaults; i++)
			add_target(l, known->names[i]);
		return;
	}
	char names[NAMES_MAX] = "";
	for (int i = 0; known->names[i]; i++) {
		size_t used = strlen(names);
		(void)snprintf(names + used, sizeof(names) - used, "%s%s", i ? ", " : "", known->names[i]);
	}
	for (size_t i = 0; i < json_array_len(list); i++) {
		const char *name = json_str_or(json_array_at(list, i), NULL);
		if (!name || !is_module(known, name) || is_target(l, name)) {
			json_obj_fail(o, name ? ERR_INVALID_VALUE : ERR_INVALID_TYPE, "target_modules",
				"%s.target_modules[%zu] must be one of %s, each at most once", o->path, i, names);
			return;
		}
		add_target(l, name);
	}
	if (l->target_count == 0)
		json_obj_fail(o, ERR_INVALID_VALUE, "target_modules",
			"%s.target_modules must name at least one of %s", o->path, names);
}

void spec_json_lora_read(struct json_obj *up, struct job_spec *spec)
{
	struct spec_lora *l = &spec->lora;
	struct json_obj o;
	if (!spec_json_open_part(up, "lora", &o))
		return;
	if (!spec_is_language(spec)) {
		json_obj_fail(up, ERR_INVALID_VALUE, "lora",
			"%s.lora: only models of the families gpt2 and llama can be adapted, not %s", up->path,
			spec_family_word(spec->model.family));
		return;
	}
	struct modules known = modules_of(spec->model.family);
	l->rank = RANK_DEFAULT;
	l->alpha = ALPHA_DEFAULT;
	json_obj_i64(&o, "rank", 1, SPEC_LORA_RANK_MAX, &l->rank);
	json_obj_f64(&o, "alpha", 0, ALPHA_MAX, &l->alpha);
	json_obj_f64(&o, "dropout", 0, DROPOUT_MAX, &l->dropout);
	if (!o.code && l->alpha <= 0)
		json_obj_fail(&o, ERR_INVALID_VALUE, "alpha",
			"%s.alpha must be above 0: it scales the adapters", o.path);
	read_targets(&o, &known, l);
	spec_json_close_part(up, &o);
}

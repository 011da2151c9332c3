/* SPDX-License-Identifier: Apache-2.0
 * PEFT's description of LoRA adapters. */
#include "workers/trainer/hf_adapter.h"

#include "core/base/file.h"
#include "core/json/reader.h"
#include "core/json/writer.h"

#include <stdio.h>
#include <string.h>

void hf_adapter_write(const struct job_spec *spec, struct buf *out)
{
	struct json_writer w;
	const struct spec_lora *l = &spec->lora;
	json_writer_init(&w, out);
	json_begin_object(&w);
	json_field_str(&w, "base_model_name_or_path", spec->base[0] != '\0' ? spec->base : NULL);
	json_field_str(&w, "bias", "none");
	json_field_bool(&w, "fan_in_fan_out", spec->model.family == SPEC_GPT2);
	json_field_bool(&w, "inference_mode", true);
	json_field_bool(&w, "init_lora_weights", true);
	json_field_f64(&w, "lora_alpha", l->alpha);
	json_field_f64(&w, "lora_dropout", l->dropout);
	json_field_null(&w, "modules_to_save");
	json_field_str(&w, "peft_type", "LORA");
	json_field_i64(&w, "r", l->rank);
	json_key(&w, "target_modules");
	json_begin_array(&w);
	for (int i = 0; i < l->target_count; i++)
		json_put_str(&w, l->target[i]);
	json_end_array(&w);
	json_field_str(&w, "task_type", "CAUSAL_LM");
	json_end_object(&w);
	buf_char(out, '\n');
}

static int bad(struct err *err, const char *key, const char *why)
{
	return err_set(err, ERR_INVALID_DATA, key, "adapter_config.json: %s: %s", key, why);
}

static bool has_members(const struct json_val *v)
{
	void *iter = NULL;
	const char *key;
	const struct json_val *member;
	return json_kind(v) == JSON_OBJECT && json_object_next(v, &iter, &key, &member);
}

/* What is said must be what this engine computes. */
static int check_kind(const struct json_val *v, struct err *err)
{
	if (strcmp(json_str_or(json_get(v, "peft_type"), ""), "LORA") != 0)
		return bad(err, "peft_type", "only LORA is built");
	if (strcmp(json_str_or(json_get(v, "bias"), "none"), "none") != 0)
		return bad(err, "bias", "only none is built");
	if (json_bool_or(json_get(v, "use_dora"), false))
		return bad(err, "use_dora", "DoRA is not built");
	if (json_bool_or(json_get(v, "use_rslora"), false))
		return bad(err, "use_rslora", "the scale is alpha / r here");
	static const char *const patterns[] = { "alpha_pattern", "rank_pattern" };
	for (size_t i = 0; i < ARRAY_LEN(patterns); i++)
		if (has_members(json_get(v, patterns[i])))
			return bad(err, patterns[i], "every module has the same rank and alpha here");
	return 0;
}

static int read_modules(const struct json_val *list, struct spec_lora *l, struct err *err)
{
	size_t count = json_array_len(list);
	if (count < 1 || count > SPEC_TARGETS_MAX)
		return bad(err, "target_modules", "a list of names is needed");
	for (size_t i = 0; i < count; i++) {
		const char *name = json_str_or(json_array_at(list, i), "");
		if (name[0] == '\0' || strlen(name) >= SPEC_TARGET_MAX)
			return bad(err, "target_modules", "a name is empty or too long");
		snprintf(l->target[i], SPEC_TARGET_MAX, "%s", name);
	}
	l->target_count = (int)count;
	return 0;
}

int hf_adapter_read(const char *dir, struct spec_lora *ret, struct err *err)
{
	char path[FILE_PATH_MAX];
	cleanup(freep) char *text = NULL;
	cleanup(json_doc_freep) struct json_doc *doc = NULL;
	struct spec_lora l = { 0 };
	size_t bytes = 0;
	int rc = file_join(path, dir, "adapter_config.json", err);
	if (rc == 0 && !file_exists(path))
		rc = err_set(err, ERR_INVALID_DATA, NULL, "%s has no adapter_config.json", dir);
	if (rc == 0)
		rc = file_read(path, JSON_BYTES_MAX, &text, &bytes, err);
	if (rc == 0)
		rc = json_doc_parse(text, bytes, JSON_BYTES_MAX, &doc, err);
	if (rc < 0)
		return rc == ERR_NO_MEMORY || rc == ERR_IO ? rc : ERR_INVALID_DATA;
	const struct json_val *root = json_doc_root(doc);
	l.rank = json_i64_or(json_get(root, "r"), 0);
	l.alpha = json_f64_or(json_get(root, "lora_alpha"), 0);
	if (l.rank < 1 || l.rank > HF_ADAPTER_RANK_MAX || !(l.alpha > 0))
		return bad(err, "r", "rank and lora_alpha must be above 0");
	rc = check_kind(root, err);
	if (rc == 0)
		rc = read_modules(json_get(root, "target_modules"), &l, err);
	if (rc == 0)
		*ret = l;
	return rc;
}

static bool same_modules(const struct spec_lora *a, const struct spec_lora *b)
{
	for (int i = 0; i < a->target_count; i++) {
		bool found = false;
		for (int k = 0; k < b->target_count; k++)
			found |= strcmp(a->target[i], b->target[k]) == 0;
		if (!found)
			return false;
	}
	return a->target_count == b->target_count;
}

int hf_adapter_agree(const char *dir, const struct spec_lora *lora, struct err *err)
{
	struct spec_lora files;
	int rc = hf_adapter_read(dir, &files, err);
	if (rc < 0)
		return rc;
	if (files.rank != lora->rank)
		return bad(err, "r", "it is not lora.rank of the spec");
	if (files.alpha != lora->alpha)
		return bad(err, "lora_alpha", "it is not lora.alpha of the spec");
	if (!same_modules(&files, lora))
		return bad(err, "target_modules", "they are not lora.target_modules of the spec");
	return 0;
}

/* SPDX-License-Identifier: Apache-2.0
 * PEFT's description of LoRA adapters. */
#include "workers/trainer/hf_adapter.h"

#include "core/base/file.h"
#include "core/json/reader.h"
#include "core/json/writer.h"

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

static bool same_modules(const struct json_val *list, const struct spec_lora *l)
{
	if (json_array_len(list) != (size_t)l->target_count)
		return false;
	for (int i = 0; i < l->target_count; i++) {
		bool found = false;
		for (size_t k = 0; k < json_array_len(list); k++)
			found |= strcmp(json_str_or(json_array_at(list, k), ""), l->target[i]) == 0;
		if (!found)
			return false;
	}
	return true;
}

static int check(const struct json_val *v, const struct spec_lora *l, struct err *err)
{
	const char *why = NULL, *key = NULL;
	if (strcmp(json_str_or(json_get(v, "peft_type"), ""), "LORA") != 0)
		key = "peft_type", why = "only LORA is built";
	else if (strcmp(json_str_or(json_get(v, "bias"), "none"), "none") != 0)
		key = "bias", why = "only none is built";
	else if (json_bool_or(json_get(v, "use_dora"), false))
		key = "use_dora", why = "DoRA is not built";
	else if (json_bool_or(json_get(v, "use_rslora"), false))
		key = "use_rslora", why = "the scale is alpha / r here";
	else if (json_i64_or(json_get(v, "r"), 0) != l->rank)
		key = "r", why = "it is not lora.rank of the spec";
	else if (json_f64_or(json_get(v, "lora_alpha"), 0) != l->alpha)
		key = "lora_alpha", why = "it is not lora.alpha of the spec";
	else if (!same_modules(json_get(v, "target_modules"), l))
		key = "target_modules", why = "they are not lora.target_modules of the spec";
	if (key == NULL)
		return 0;
	return err_set(err, ERR_INVALID_DATA, key, "adapter_config.json: %s: %s", key, why);
}

int hf_adapter_agree(const char *dir, const struct spec_lora *lora, struct err *err)
{
	char path[FILE_PATH_MAX];
	cleanup(freep) char *text = NULL;
	cleanup(json_doc_freep) struct json_doc *doc = NULL;
	size_t bytes = 0;
	int rc = file_join(path, dir, "adapter_config.json", err);
	if (rc == 0 && !file_exists(path))
		rc = err_set(err, ERR_INVALID_DATA, NULL, "%s has no adapter_config.json", dir);
	if (rc == 0)
		rc = file_read(path, JSON_BYTES_MAX, &text, &bytes, err);
	if (rc == 0)
		rc = json_doc_parse(text, bytes, JSON_BYTES_MAX, &doc, err);
	if (rc < 0)
		return rc == ERR_NO_MEMORY ? rc : ERR_INVALID_DATA;
	return check(json_doc_root(doc), lora, err);
}

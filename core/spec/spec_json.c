/* SPDX-License-Identifier: Apache-2.0
 * Reads the whole job object: name, task, files and metadata here, the other parts in
 * spec_json_*.c. Pure; thread-safe. */
#include "core/spec/spec_json.h"

#include "core/spec/spec_json_private.h"

#include <stdio.h>
#include <string.h>

enum {
	METADATA_PAIRS_MAX = 16,
	METADATA_KEY_CHARS_MAX = 64,
	METADATA_VALUE_CHARS_MAX = 512,
};

static size_t count_chars(const char *text)
{
	size_t count = 0;
	for (; *text; text++)
		count += ((unsigned char)*text & 0xC0) != 0x80;
	return count;
}

static void read_name(struct json_obj *o, struct job_spec *spec)
{
	const char *name = NULL;
	json_obj_str(o, "name", 0, SPEC_NAME_MAX - 1, &name);
	if (!name)
		return;
	if (count_chars(name) > SPEC_NAME_CHARS_MAX) {
		json_obj_fail(o, ERR_INVALID_VALUE, "name", "%s.name must have at most %d characters",
			o->path, SPEC_NAME_CHARS_MAX);
		return;
	}
	for (const char *p = name; *p; p++) {
		if ((unsigned char)*p < 0x20 || *p == 0x7F) {
			json_obj_fail(
				o, ERR_INVALID_VALUE, "name", "%s.name must not hold control characters", o->path);
			return;
		}
	}
	memcpy(spec->name, name, strlen(name) + 1);
}

/* A string or a list of them. */
static void read_files(
	struct json_obj *o, const char *key, char ret[SPEC_FILES_MAX][SPEC_ID_MAX], int *ret_count)
{
	const struct json_val *v = NULL;
	json_obj_any(o, key, &v);
	if (!v)
		return;
	bool single = json_kind(v) == JSON_STR;
	if (!single)
		json_obj_array(o, key, SPEC_FILES_MAX, &v);
	if (o->code)
		return;
	size_t count = single ? 1 : json_array_len(v);
	for (size_t i = 0; i < count; i++) {
		const struct json_val *item = single ? v : json_array_at(v, i);
		const char *id = json_str_or(item, NULL);
		char at[24] = "";
		if (!single)
			(void)snprintf(at, sizeof(at), "[%zu]", i);
		if (!id || !spec_json_id_ok(id)) {
			json_obj_fail(o, id ? ERR_INVALID_VALUE : ERR_INVALID_TYPE, key,
				"%s.%s%s must be the id of a file, like \"file_01J…\"", o->path, key, at);
			return;
		}
		memcpy(ret[i], id, strlen(id) + 1);
	}
	*ret_count = (int)count;
}

static void read_metadata(struct json_obj *o, const struct json_val **ret)
{
	const struct json_val *v = NULL;
	json_obj_object(o, "metadata", &v);
	void *iter = NULL;
	const char *key;
	const struct json_val *value;
	int pairs = 0;
	while (v && json_object_next(v, &iter, &key, &value)) {
		const char *text = json_str_or(value, NULL);
		if (++pairs > METADATA_PAIRS_MAX)
			json_obj_fail(o, ERR_INVALID_VALUE, "metadata",
				"%s.metadata must have at most %d pairs", o->path, METADATA_PAIRS_MAX);
		else if (key[0] == '\0' || count_chars(key) > METADATA_KEY_CHARS_MAX)
			json_obj_fail(o, ERR_INVALID_VALUE, "metadata",
				"%s.metadata: a key must have 1 to %d characters", o->path, METADATA_KEY_CHARS_MAX);
		else if (!text)
			json_obj_fail(o, ERR_INVALID_TYPE, "metadata",
				"%s.metadata: the value of \"%.256s\" must be a string", o->path, key);
		else if (count_chars(text) > METADATA_VALUE_CHARS_MAX)
			json_obj_fail(o, ERR_INVALID_VALUE, "metadata",
				"%s.metadata: the value of \"%.256s\" must have at most %d characters", o->path,
				key, METADATA_VALUE_CHARS_MAX);
	}
	*ret = v;
}

int spec_json_read_from(const struct json_val *v, const struct spec_base *base,
	struct job_spec *ret_spec, const struct json_val **ret_metadata, struct err *err)
{
	/* memset and not an initialiser: padding too, so that equal specs are equal bytes. */
	struct job_spec spec;
	memset(&spec, 0, sizeof(spec));
	struct json_obj o;
	int task = SPEC_LANGUAGE_MODEL;
	const struct json_val *metadata = NULL;
	json_obj_open(&o, v, "$", err);
	json_obj_need(&o, "task");
	json_obj_word(&o, "task", spec_json_task_words, &task);
	spec.task = (enum spec_task)task;
	read_name(&o, &spec);
	spec_json_model_read(&o, &spec, base);
	spec_json_check_family(&o, &spec);
	spec_json_lora_read(&o, &spec);
	json_obj_need(&o, "training_file");
	read_files(&o, "training_file", spec.training_file, &spec.training_file_count);
	read_files(&o, "validation_file", spec.validation_file, &spec.validation_file_count);
	spec_json_data_read(&o, &spec, base);
	spec_json_run_read(&o, &spec);
	spec_json_hyper_read(&o, &spec);
	spec_json_check_all(&o, &spec);
	read_metadata(&o, &metadata);
	int r = json_obj_close(&o);
	if (r < 0)
		return r;
	memcpy(ret_spec, &spec, sizeof(spec));
	if (ret_metadata)
		*ret_metadata = metadata;
	return 0;
}

int spec_json_read(const struct json_val *v, struct job_spec *ret_spec,
	const struct json_val **ret_metadata, struct err *err)
{
	return spec_json_read_from(v, NULL, ret_spec, ret_metadata, err);
}

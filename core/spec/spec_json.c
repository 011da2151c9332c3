/* SPDX-License-Identifier: Apache-2.0
 * Reads the whole job object: name, task, files, data and metadata here, the other parts in
 * spec_json_*.c. Pure; thread-safe. */
#include "core/spec/spec_json.h"

#include "core/spec/spec_json_private.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum {
	METADATA_PAIRS_MAX = 16,
	METADATA_KEY_CHARS_MAX = 64,
	METADATA_VALUE_CHARS_MAX = 512,
	SEQUENCE_DEFAULT = 256,
	IDX_FILES = 2, /* samples and labels */
};

const char *const spec_json_task_words[] = { "language_model", "image_classification", "regression",
	"classification", NULL };
const char *const spec_json_family_words[] = { "mlp", "cnn", "gpt2", NULL };
const char *const spec_json_format_words[] = { "text", "idx", NULL };
const char *const spec_json_tokenizer_words[] = { "bytes", NULL };
const char *const spec_json_optimizer_words[] = { "adamw", "sgd", NULL };
const char *const spec_json_schedule_words[] = { "constant", "linear", "cosine", NULL };
const char *const spec_json_precision_words[] = { "fp32", NULL };
const char *const spec_json_priority_words[] = { "low", "normal", "high", NULL };

const char *spec_task_word(enum spec_task t)
{
	return spec_json_task_words[t];
}

const char *spec_family_word(enum spec_family f)
{
	return spec_json_family_words[f];
}

void spec_json_refuse(struct json_obj *o, const char *key, const char *supported)
{
	if (json_obj_has(o, key))
		json_obj_fail(
			o, ERR_INVALID_VALUE, key, "%s.%s is not supported: %s", o->path, key, supported);
}

bool spec_json_is_auto(struct json_obj *o, const char *key)
{
	const struct json_val *v = NULL;
	json_obj_any(o, key, &v);
	return strcmp(json_str_or(v, ""), "auto") == 0;
}

void spec_json_word_or_auto(struct json_obj *o, const char *key, const char *const *words, int *ret)
{
	if (!spec_json_is_auto(o, key))
		json_obj_word(o, key, words, ret);
}

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

/* An id is also a name of a file in the agent's folder: no slash, no leading dot. */
static bool file_id_ok(const char *id)
{
	size_t len = strlen(id);
	return len > 0 && len < SPEC_ID_MAX && id[0] != '.' &&
		strspn(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.") == len;
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
		if (!id || !file_id_ok(id)) {
			json_obj_fail(o, id ? ERR_INVALID_VALUE : ERR_INVALID_TYPE, key,
				"%s.%s%s must be the id of a file, like \"file_01J…\"", o->path, key, at);
			return;
		}
		memcpy(ret[i], id, strlen(id) + 1);
	}
	*ret_count = (int)count;
}

static void read_data_fields(struct json_obj *o, struct job_spec *spec)
{
	bool language = spec->task == SPEC_LANGUAGE_MODEL;
	int format = spec->data.format;
	int tokenizer = 0;
	bool packing = true;
	spec_json_word_or_auto(o, "format", spec_json_format_words, &format);
	spec->data.format = (enum spec_format)format;
	json_obj_bool(o, "shuffle", &spec->data.shuffle);
	if (!language) {
		spec_json_refuse(o, "tokenizer", "only language models read tokens");
		spec_json_refuse(o, "sequence_length", "only language models read sequences");
		spec_json_refuse(o, "packing", "only language models read sequences");
		return;
	}
	json_obj_word(o, "tokenizer", spec_json_tokenizer_words, &tokenizer);
	json_obj_i64(o, "sequence_length", 1, spec->model.n_positions, &spec->data.sequence_length);
	json_obj_bool(o, "packing", &packing);
	if (!packing)
		json_obj_fail(o, ERR_INVALID_VALUE, "packing",
			"%s.packing: text is always packed; give true", o->path);
}

static void read_data(struct json_obj *o, struct job_spec *spec)
{
	const struct json_val *v = NULL;
	bool language = spec->task == SPEC_LANGUAGE_MODEL;
	int64_t positions = spec->model.n_positions;
	spec->data = (struct spec_data){
		.format = language ? SPEC_FORMAT_TEXT : SPEC_FORMAT_IDX,
		.tokenizer = language ? SPEC_TOKENIZER_BYTES : SPEC_TOKENIZER_NONE,
		.sequence_length = !language       ? 0
			: positions < SEQUENCE_DEFAULT ? positions
										   : SEQUENCE_DEFAULT,
		.shuffle = true,
	};
	json_obj_object(o, "data", &v);
	if (!v)
		return;
	struct json_obj part;
	char path[JSON_PATH_MAX];
	json_obj_path(o, "data", path);
	json_obj_open(&part, v, path, o->err);
	read_data_fields(&part, spec);
	json_obj_adopt(o, json_obj_close(&part));
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

/* Like json_obj_fail at a field of a part that is closed already; the path leads the text. */
static void printf_like(4, 5)
	fail_in(struct json_obj *o, const char *part, const char *key, const char *fmt, ...)
{
	char text[ERR_MESSAGE_MAX];
	va_list args;
	va_start(args, fmt);
	if (vsnprintf(text, sizeof(text), fmt, args) < 0)
		text[0] = '\0';
	va_end(args);
	struct json_obj at = *o;
	json_obj_path(o, part, at.path);
	json_obj_fail(&at, ERR_INVALID_VALUE, key, "%s.%s: %s", at.path, key, text);
	json_obj_adopt(o, at.code);
}

/* Right after the model: what follows reads its fields. */
static void check_family(struct json_obj *o, const struct job_spec *spec)
{
	bool language = spec->task == SPEC_LANGUAGE_MODEL;
	const char *task = spec_task_word(spec->task);
	if (language != (spec->model.family == SPEC_GPT2))
		json_obj_fail(o, ERR_INVALID_VALUE, "model",
			"%s.model: the task %s cannot train the family %s (language_model: gpt2; "
			"image_classification: cnn, mlp; regression, classification: mlp)",
			o->path, task, spec_family_word(spec->model.family));
	if (spec->model.family == SPEC_CNN && spec->task != SPEC_IMAGE_CLASSIFICATION)
		json_obj_fail(o, ERR_INVALID_VALUE, "model",
			"%s.model: the family cnn is for image_classification, not for %s", o->path, task);
}

static void check_files(struct json_obj *o, const struct job_spec *spec)
{
	if (spec->training_file_count == 0)
		json_obj_fail(o, ERR_INVALID_VALUE, "training_file",
			"%s.training_file must name at least one file", o->path);
	if (spec->data.format != SPEC_FORMAT_IDX)
		return;
	if (spec->training_file_count != IDX_FILES)
		json_obj_fail(o, ERR_INVALID_VALUE, "training_file",
			"%s.training_file must name two IDX files, one of samples and one of labels; it names "
			"%d",
			o->path, spec->training_file_count);
	if (spec->validation_file_count != 0 && spec->validation_file_count != IDX_FILES)
		json_obj_fail(o, ERR_INVALID_VALUE, "validation_file",
			"%s.validation_file must name two IDX files, one of samples and one of labels, or "
			"none; "
			"it names %d",
			o->path, spec->validation_file_count);
}

static void check_sizes(struct json_obj *o, const struct job_spec *spec)
{
	const struct spec_model *m = &spec->model;
	int64_t batch = spec->hyper.batch_size;
	if (batch * spec->data.sequence_length > SPEC_BATCH_TOKENS_MAX)
		fail_in(o, "hyperparameters", "batch_size",
			"%lld sequences of %lld tokens are more than %d tokens", (long long)batch,
			(long long)spec->data.sequence_length, SPEC_BATCH_TOKENS_MAX);
	if (batch * m->in_channels * m->in_height * m->in_width > SPEC_BATCH_VALUES_MAX)
		fail_in(o, "hyperparameters", "batch_size",
			"%lld samples of %lld x %lld x %lld are more than %lld values", (long long)batch,
			(long long)m->in_channels, (long long)m->in_height, (long long)m->in_width,
			(long long)SPEC_BATCH_VALUES_MAX);
}

/* The rules that hold between the parts. */
static void check(struct json_obj *o, const struct job_spec *spec)
{
	if (o->code)
		return;
	bool language = spec->task == SPEC_LANGUAGE_MODEL;
	if (language != (spec->data.format == SPEC_FORMAT_TEXT))
		fail_in(o, "data", "format", "the task %s reads %s files", spec_task_word(spec->task),
			language ? "text" : "idx");
	check_files(o, spec);
	check_sizes(o, spec);
}

int spec_json_read(const struct json_val *v, struct job_spec *ret_spec,
	const struct json_val **ret_metadata, struct err *err)
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
	spec_json_model_read(&o, &spec);
	check_family(&o, &spec);
	json_obj_need(&o, "training_file");
	read_files(&o, "training_file", spec.training_file, &spec.training_file_count);
	read_files(&o, "validation_file", spec.validation_file, &spec.validation_file_count);
	read_data(&o, &spec);
	spec_json_run_read(&o, &spec);
	spec_json_hyper_read(&o, &spec);
	check(&o, &spec);
	read_metadata(&o, &metadata);
	int r = json_obj_close(&o);
	if (r < 0)
		return r;
	memcpy(ret_spec, &spec, sizeof(spec));
	if (ret_metadata)
		*ret_metadata = metadata;
	return 0;
}

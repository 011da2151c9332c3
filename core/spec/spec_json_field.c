/* SPDX-License-Identifier: Apache-2.0
 * The words of the enums, and the readers of single fields that the parts share. Pure;
 * thread-safe. */
#include "core/spec/spec_json_private.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *const spec_json_task_words[] = { "language_model", "fine_tune", "image_classification",
	"regression", "classification", "click_through", NULL };
const char *const spec_json_family_words[] = { "mlp", "cnn", "gpt2", "llama", "dlrm", NULL };
const char *const spec_json_format_words[] = { "text", "idx", "jsonl", "csv", "npy", "image_tar",
	"tokens", NULL };
const char *const spec_json_block_words[] = { "plain", "basic", "bottleneck", NULL };
const char *const spec_json_stem_words[] = { "3x3", "7x7", NULL };
const char *const spec_json_optimizer_words[] = { "adamw", "sgd", NULL };
const char *const spec_json_schedule_words[] = { "constant", "linear", "cosine", NULL };
const char *const spec_json_precision_words[] = { "fp32", "bf16", "fp16", "tf32", NULL };
const char *const spec_json_checkpointing_words[] = { "none", "selective", "full", NULL };
const char *const spec_json_priority_words[] = { "low", "normal", "high", NULL };

_Static_assert(ARRAY_LEN(spec_json_task_words) == SPEC_TASK_COUNT + 1, "a word for each task");
_Static_assert(ARRAY_LEN(spec_json_family_words) == SPEC_FAMILY_COUNT + 1, "a word for each");
_Static_assert(ARRAY_LEN(spec_json_precision_words) == SPEC_PRECISION_COUNT + 1, "a word for each");
_Static_assert(ARRAY_LEN(spec_json_format_words) == SPEC_FORMAT_COUNT + 1, "a word for each");

const char *spec_task_word(enum spec_task t)
{
	return spec_json_task_words[t];
}

const char *spec_family_word(enum spec_family f)
{
	return spec_json_family_words[f];
}

const char *spec_format_word(enum spec_format f)
{
	return spec_json_format_words[f];
}

const char *spec_precision_word(enum spec_precision p)
{
	return spec_json_precision_words[p];
}

void spec_json_refuse(struct json_obj *o, const char *key, const char *why)
{
	if (json_obj_has(o, key))
		json_obj_fail(o, ERR_INVALID_VALUE, key, "%s.%s is not supported: %s", o->path, key, why);
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

void spec_json_need_i64(struct json_obj *o, const char *key, int64_t min, int64_t max, int64_t *ret)
{
	json_obj_need(o, key);
	json_obj_i64(o, key, min, max, ret);
}

void spec_json_widths(struct json_obj *o, const char *key, size_t max_count, int64_t max,
	int64_t *ret, int *ret_count)
{
	const struct json_val *list = NULL;
	json_obj_array(o, key, max_count, &list);
	if (!list)
		return;
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

bool spec_json_open_part(struct json_obj *o, const char *key, struct json_obj *ret_part)
{
	const struct json_val *v = NULL;
	char path[JSON_PATH_MAX];
	json_obj_object(o, key, &v);
	if (!v)
		return false;
	json_obj_path(o, key, path);
	json_obj_open(ret_part, v, path, o->err);
	return true;
}

void spec_json_close_part(struct json_obj *o, struct json_obj *part)
{
	json_obj_adopt(o, json_obj_close(part));
}

void spec_json_fail_in(struct json_obj *o, const char *part, const char *key, const char *fmt, ...)
{
	char text[ERR_MESSAGE_MAX];
	va_list args;
	va_start(args, fmt);
	if (vsnprintf(text, sizeof(text), fmt, args) < 0)
		text[0] = '\0';
	va_end(args);
	struct json_obj at = *o;
	/* A path that does not fit is cut. */
	if (snprintf(at.path, sizeof(at.path), "%s.%s", o->path, part) < 0)
		at.path[0] = '\0';
	json_obj_fail(&at, ERR_INVALID_VALUE, key, "%s.%s: %s", at.path, key, text);
	json_obj_adopt(o, at.code);
}

bool spec_json_id_ok(const char *id)
{
	size_t len = strlen(id);
	return len > 0 && len < SPEC_ID_MAX && id[0] != '.' &&
		strspn(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.") == len;
}

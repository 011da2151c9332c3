/* SPDX-License-Identifier: Apache-2.0
 * Checked reading of one object: sticky first error, JSON paths, unknown fields refused. The
 * owner of a struct json_obj is one function of one thread. */
#include "core/base/num.h"
#include "core/json/reader.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { KNOWN_FIELDS_TEXT_MAX = 400 };

static const char *kind_name(const struct json_val *v)
{
	switch (json_kind(v)) {
	case JSON_NULL: return "null";
	case JSON_BOOL: return "a boolean";
	case JSON_INT: return "a whole number";
	case JSON_REAL: return "a number with a fraction or an exponent";
	case JSON_STR: return "a string";
	case JSON_ARRAY: return "an array";
	case JSON_OBJECT: return "an object";
	}
	return "null";
}

void json_obj_path(const struct json_obj *o, const char *key, char ret_path[static JSON_PATH_MAX])
{
	static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
	bool is_plain = key[0] != '\0' && strspn(key, plain) == strlen(key);
	/* A path that does not fit is cut: it points at the right object at least. */
	int len = snprintf(ret_path, JSON_PATH_MAX, is_plain ? "%s.%s" : "%s[\"%s\"]", o->path, key);
	if (len < 0)
		ret_path[0] = '\0';
}

static void fail_at(struct json_obj *o, int code, const char *key, const char *fmt, va_list args)
{
	if (o->code)
		return;
	o->code = code;
	char path[JSON_PATH_MAX];
	if (key)
		json_obj_path(o, key, path);
	else
		memcpy(path, o->path, sizeof(path));
	char message[ERR_MESSAGE_MAX];
	if (vsnprintf(message, sizeof(message), fmt, args) < 0)
		message[0] = '\0';
	(void)err_set(o->err, code, path, "%s", message);
}

void json_obj_fail(struct json_obj *o, int code, const char *key, const char *fmt, ...)
{
	va_list args;
	va_start(args, fmt);
	fail_at(o, code, key, fmt, args);
	va_end(args);
}

/* Like json_obj_fail, with the field's path in front of the text. */
static void printf_like(4, 5)
	fail_field(struct json_obj *o, int code, const char *key, const char *fmt, ...)
{
	char text[ERR_MESSAGE_MAX];
	va_list args;
	va_start(args, fmt);
	if (vsnprintf(text, sizeof(text), fmt, args) < 0)
		text[0] = '\0';
	va_end(args);
	char path[JSON_PATH_MAX];
	json_obj_path(o, key, path);
	json_obj_fail(o, code, key, "%s %s", path, text);
}

void json_obj_open(struct json_obj *o, const struct json_val *v, const char *path, struct err *err)
{
	*o = (struct json_obj){ .value = v, .err = err };
	(void)snprintf(o->path, sizeof(o->path), "%s", path);
	if (json_kind(v) != JSON_OBJECT)
		json_obj_fail(
			o, ERR_INVALID_TYPE, NULL, "%s must be an object, not %s", o->path, kind_name(v));
}

static void mark_seen(struct json_obj *o, const char *key)
{
	for (int i = 0; i < o->seen_count; i++) {
		if (strcmp(o->seen[i], key) == 0)
			return;
	}
	assert(o->seen_count < JSON_FIELDS_MAX);
	o->seen[o->seen_count++] = key;
}

/* The value when it is present, not null, and nothing failed before. */
static const struct json_val *field(struct json_obj *o, const char *key)
{
	mark_seen(o, key);
	return o->code ? NULL : json_get(o->value, key);
}

/* The value when it has the wanted kind too; `wanted` names it in the error. */
static const struct json_val *field_of_kind(
	struct json_obj *o, const char *key, enum json_kind kind, const char *wanted)
{
	const struct json_val *v = field(o, key);
	if (!v || json_kind(v) == kind)
		return v;
	fail_field(o, ERR_INVALID_TYPE, key, "must be %s, not %s", wanted, kind_name(v));
	return NULL;
}

void json_obj_need(struct json_obj *o, const char *key)
{
	if (!field(o, key))
		fail_field(o, ERR_MISSING_FIELD, key, "is required");
}

bool json_obj_has(struct json_obj *o, const char *key)
{
	return field(o, key) != NULL;
}

void json_obj_str(
	struct json_obj *o, const char *key, size_t min_len, size_t max_len, const char **ret)
{
	const struct json_val *v = field_of_kind(o, key, JSON_STR, "a string");
	if (!v)
		return;
	const char *text = json_str_or(v, "");
	size_t len = strlen(text);
	if (len < min_len || len > max_len)
		fail_field(o, ERR_INVALID_VALUE, key, "must have %zu to %zu bytes; it has %zu", min_len,
			max_len, len);
	else
		*ret = text;
}

void json_obj_word(struct json_obj *o, const char *key, const char *const *words, int *ret)
{
	const struct json_val *v = field_of_kind(o, key, JSON_STR, "a string");
	if (!v)
		return;
	const char *text = json_str_or(v, "");
	char list[KNOWN_FIELDS_TEXT_MAX] = "";
	size_t used = 0;
	for (int i = 0; words[i]; i++) {
		if (strcmp(text, words[i]) == 0) {
			*ret = i;
			return;
		}
		int n = snprintf(list + used, sizeof(list) - used, "%s%s", i ? ", " : "", words[i]);
		used = n > 0 && (size_t)n < sizeof(list) - used ? used + (size_t)n : sizeof(list) - 1;
	}
	fail_field(o, ERR_INVALID_VALUE, key, "must be one of %s, not \"%.64s\"", list, text);
}

void json_obj_i64(struct json_obj *o, const char *key, int64_t min, int64_t max, int64_t *ret)
{
	const struct json_val *v = field_of_kind(o, key, JSON_INT, "a whole number");
	if (!v)
		return;
	int64_t number = json_i64_or(v, 0);
	if (number < min || number > max)
		fail_field(o, ERR_INVALID_VALUE, key,
			"must be from %" PRId64 " to %" PRId64 ", not %" PRId64, min, max, number);
	else
		*ret = number;
}

void json_obj_f64(struct json_obj *o, const char *key, double min, double max, double *ret)
{
	const struct json_val *v = field(o, key);
	if (!v)
		return;
	if (json_kind(v) != JSON_REAL && json_kind(v) != JSON_INT) {
		fail_field(o, ERR_INVALID_TYPE, key, "must be a number, not %s", kind_name(v));
		return;
	}
	double number = json_f64_or(v, 0);
	if (number >= min && number <= max) {
		*ret = number;
		return;
	}
	char texts[3][NUM_F64_MAX];
	num_format_f64(min, texts[0]);
	num_format_f64(max, texts[1]);
	num_format_f64(number, texts[2]);
	fail_field(
		o, ERR_INVALID_VALUE, key, "must be from %s to %s, not %s", texts[0], texts[1], texts[2]);
}

void json_obj_bool(struct json_obj *o, const char *key, bool *ret)
{
	const struct json_val *v = field_of_kind(o, key, JSON_BOOL, "true or false");
	if (v)
		*ret = json_bool_or(v, false);
}

void json_obj_object(struct json_obj *o, const char *key, const struct json_val **ret)
{
	const struct json_val *v = field_of_kind(o, key, JSON_OBJECT, "an object");
	if (v)
		*ret = v;
}

void json_obj_array(
	struct json_obj *o, const char *key, size_t max_len, const struct json_val **ret)
{
	const struct json_val *v = field_of_kind(o, key, JSON_ARRAY, "an array");
	if (!v)
		return;
	if (json_array_len(v) > max_len)
		fail_field(o, ERR_INVALID_VALUE, key, "must have at most %zu items; it has %zu", max_len,
			json_array_len(v));
	else
		*ret = v;
}

void json_obj_any(struct json_obj *o, const char *key, const struct json_val **ret)
{
	const struct json_val *v = field(o, key);
	if (v)
		*ret = v;
}

void json_obj_adopt(struct json_obj *o, int code)
{
	if (!o->code)
		o->code = code;
}

static bool is_seen(const struct json_obj *o, const char *key)
{
	for (int i = 0; i < o->seen_count; i++) {
		if (strcmp(o->seen[i], key) == 0)
			return true;
	}
	return false;
}

static void fail_unknown(struct json_obj *o, const char *key)
{
	char known[KNOWN_FIELDS_TEXT_MAX] = "";
	size_t used = 0;
	for (int i = 0; i < o->seen_count && used < sizeof(known) - 1; i++) {
		int n = snprintf(known + used, sizeof(known) - used, "%s%s", i ? ", " : "", o->seen[i]);
		used += n > 0 ? (size_t)n : 0;
	}
	json_obj_fail(o, ERR_UNKNOWN_FIELD, key, "%s has no field \"%.64s\"; its fields are: %s",
		o->path, key, known);
}

int json_obj_close(struct json_obj *o)
{
	void *iter = NULL;
	const char *key;
	const struct json_val *v;
	while (!o->code && json_object_next(o->value, &iter, &key, &v)) {
		if (!is_seen(o, key))
			fail_unknown(o, key);
	}
	return o->code;
}

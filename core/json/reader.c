/* SPDX-License-Identifier: Apache-2.0
 * Parsing with jansson behind a scan of our own, and unchecked access to what was parsed. The scan
 * holds size, depth, values and encoding, so jansson never builds more than a bounded tree.
 * Thread-safe per document. */
#include "core/json/reader.h"
#include "core/base/utf8.h"
#include "core/json/jansson_private.h"
#include "core/json/writer.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct json_doc {
	json_t *root;
};

/* jansson's lexer goes on, one byte short, when its buffer cannot grow: a failed allocation is
 * noted here and fails the parse, whatever jansson says. */
static _Thread_local bool allocation_failed;

static void *noting_malloc(size_t bytes)
{
	void *p = malloc(bytes);
	if (!p)
		allocation_failed = true;
	return p;
}

static void install_allocator(void)
{
	json_set_alloc_funcs(noting_malloc, free);
}

/* Where the scan stands; line and column count from 1, column in bytes. */
struct scan {
	const char *text;
	size_t bytes;
	size_t at;
	size_t line_start;
	int line;
};

static int scan_fail(const struct scan *s, struct err *err, int code, const char *what)
{
	return err_set(err, code, NULL, "%s at line %d, column %zu (byte %zu)", what, s->line,
		s->at - s->line_start + 1, s->at);
}

/* Moves behind the closing quote of the string that starts at s->at; an open one ends the text,
 * and jansson says so. */
static int scan_string(struct scan *s, struct err *err)
{
	for (s->at++; s->at < s->bytes;) {
		char c = s->text[s->at];
		if (c == '\0')
			return scan_fail(s, err, ERR_INVALID_JSON, "a NUL byte");
		size_t len = utf8_next(s->text + s->at, s->bytes - s->at);
		if (len == 0)
			return scan_fail(s, err, ERR_INVALID_JSON, "a byte that is not UTF-8");
		if (c == '\\' && s->at + 1 < s->bytes && (unsigned char)s->text[s->at + 1] < 0x80 &&
			s->text[s->at + 1] != '\0')
			len = 2;
		s->at += len;
		if (c == '"')
			return 0;
	}
	return 0;
}

static int scan_text(const char *text, size_t bytes, struct err *err)
{
	struct scan s = { .text = text, .bytes = bytes, .line = 1 };
	int depth = 0;
	int values = 1;
	while (s.at < bytes) {
		unsigned char c = (unsigned char)text[s.at];
		if (c == '"') {
			int r = scan_string(&s, err);
			if (r < 0)
				return r;
			continue;
		}
		if (c == '\0')
			return scan_fail(&s, err, ERR_INVALID_JSON, "a NUL byte");
		if (c >= 0x80)
			return scan_fail(&s, err, ERR_INVALID_JSON, "an unexpected byte");
		if (c == '[' || c == '{') {
			values++;
			if (++depth > JSON_DEPTH_MAX)
				return scan_fail(&s, err, ERR_INVALID_JSON, "nesting is too deep");
		} else if (c == ']' || c == '}') {
			depth--;
		} else if (c == ',') {
			values++;
		}
		if (values > JSON_VALUES_MAX)
			return scan_fail(&s, err, ERR_TOO_LARGE, "too many values");
		s.at++;
		if (c == '\n') {
			s.line++;
			s.line_start = s.at;
		}
	}
	return 0;
}

static int parse_error(const json_error_t *e, struct err *err)
{
	const char *what = e->text;
	switch (json_error_code(e)) {
	case json_error_numeric_overflow:
		what = "a number is too large (whole numbers hold 64 bits)";
		break;
	case json_error_null_character:
	case json_error_null_byte_in_key: what = "\\u0000 is not allowed"; break;
	default: break;
	}
	return err_set(err, ERR_INVALID_JSON, NULL, "%s at line %d, column %d (byte %d)", what, e->line,
		e->column, e->position);
}

int json_doc_parse(
	const char *text, size_t bytes, size_t max_bytes, struct json_doc **ret, struct err *err)
{
	if (bytes > max_bytes)
		return err_set(err, ERR_TOO_LARGE, NULL,
			"the JSON text has %zu bytes; at most %zu are accepted", bytes, max_bytes);
	int r = scan_text(text, bytes, err);
	if (r < 0)
		return r;

	cleanup(json_doc_freep) struct json_doc *doc = calloc(1, sizeof(*doc));
	if (!doc)
		return err_set(err, ERR_NO_MEMORY, NULL, "out of memory");
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	(void)pthread_once(&once, install_allocator);
	json_error_t e;
	allocation_failed = false;
	doc->root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &e);
	if (allocation_failed)
		return err_set(err, ERR_NO_MEMORY, NULL, "out of memory");
	if (!doc->root)
		return parse_error(&e, err);
	*ret = take_ptr(doc);
	return 0;
}

void json_doc_free(struct json_doc *doc)
{
	if (!doc)
		return;
	json_decref(doc->root);
	free(doc);
}

void json_doc_freep(struct json_doc **doc)
{
	json_doc_free(*doc);
	*doc = NULL;
}

/* A struct json_val is a json_t that only this folder can look into. */
static const json_t *tree(const struct json_val *v)
{
	return (const json_t *)v;
}

static const struct json_val *value(const json_t *t)
{
	return (const struct json_val *)t;
}

const struct json_val *json_doc_root(const struct json_doc *doc)
{
	return value(doc->root);
}

enum json_kind json_kind(const struct json_val *v)
{
	if (!v)
		return JSON_NULL;
	switch (json_typeof(tree(v))) {
	case JANSSON_OBJECT: return JSON_OBJECT;
	case JANSSON_ARRAY: return JSON_ARRAY;
	case JANSSON_STRING: return JSON_STR;
	case JANSSON_INTEGER: return JSON_INT;
	case JANSSON_REAL: return JSON_REAL;
	case JANSSON_TRUE:
	case JANSSON_FALSE: return JSON_BOOL;
	case JANSSON_NULL: break;
	}
	return JSON_NULL;
}

const struct json_val *json_get(const struct json_val *object, const char *key)
{
	if (json_kind(object) != JSON_OBJECT)
		return NULL;
	const struct json_val *v = value(json_object_get(tree(object), key));
	return json_kind(v) == JSON_NULL ? NULL : v;
}

const char *json_str_or(const struct json_val *v, const char *def)
{
	return json_kind(v) == JSON_STR ? json_string_value(tree(v)) : def;
}

int64_t json_i64_or(const struct json_val *v, int64_t def)
{
	return json_kind(v) == JSON_INT ? json_integer_value(tree(v)) : def;
}

double json_f64_or(const struct json_val *v, double def)
{
	if (json_kind(v) == JSON_INT)
		return (double)json_integer_value(tree(v));
	return json_kind(v) == JSON_REAL ? json_real_value(tree(v)) : def;
}

bool json_bool_or(const struct json_val *v, bool def)
{
	return json_kind(v) == JSON_BOOL ? json_typeof(tree(v)) == JANSSON_TRUE : def;
}

size_t json_array_len(const struct json_val *v)
{
	return json_kind(v) == JSON_ARRAY ? json_array_size(tree(v)) : 0;
}

const struct json_val *json_array_at(const struct json_val *v, size_t i)
{
	return json_kind(v) == JSON_ARRAY ? value(json_array_get(tree(v), i)) : NULL;
}

bool json_object_next(
	const struct json_val *v, void **iter, const char **ret_key, const struct json_val **ret_value)
{
	if (json_kind(v) != JSON_OBJECT)
		return false;
	/* jansson's iteration changes nothing, but its signatures do not say so. */
	json_t *object = (json_t *)(uintptr_t)v;
	*iter = *iter ? json_object_iter_next(object, *iter) : json_object_iter(object);
	if (!*iter)
		return false;
	*ret_key = json_object_iter_key(*iter);
	*ret_value = value(json_object_iter_value(*iter));
	return true;
}

/* Recursion is bounded by JSON_DEPTH_MAX, which the scan has held. */
static void dump_value(struct json_writer *w, const struct json_val *v)
{
	void *iter = NULL;
	const char *key;
	const struct json_val *member;
	switch (json_kind(v)) {
	case JSON_NULL: json_put_null(w); break;
	case JSON_BOOL: json_put_bool(w, json_bool_or(v, false)); break;
	case JSON_INT: json_put_i64(w, json_i64_or(v, 0)); break;
	case JSON_REAL: json_put_f64(w, json_f64_or(v, 0)); break;
	case JSON_STR: json_put_str(w, json_str_or(v, "")); break;
	case JSON_ARRAY:
		json_begin_array(w);
		for (size_t i = 0; i < json_array_len(v); i++)
			dump_value(w, json_array_at(v, i));
		json_end_array(w);
		break;
	case JSON_OBJECT:
		json_begin_object(w);
		while (json_object_next(v, &iter, &key, &member)) {
			json_key(w, key);
			dump_value(w, member);
		}
		json_end_object(w);
		break;
	}
}

char *json_dump(const struct json_val *v)
{
	cleanup(buf_finish) struct buf out;
	buf_init(&out, JSON_DUMP_BYTES_MAX);
	struct json_writer w;
	json_writer_init(&w, &out);
	dump_value(&w, v);
	return buf_take(&out, NULL);
}

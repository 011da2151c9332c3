/* SPDX-License-Identifier: Apache-2.0
 * Reading JSON that strangers send. Bounded (bytes, depth), duplicate keys refused, unknown fields
 * refused when an object is closed, integers exact, and every error carries the JSON path of the
 * offending field. The only user of jansson. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	JSON_BYTES_MAX =
		256 * 1024, /* API bodies; larger limits are passed explicitly (agent reports, manifests) */
	JSON_DEPTH_MAX = 32,
	JSON_PATH_MAX = 120,
	JSON_FIELDS_MAX = 64,         /* fields of one object that a json_obj can track */
	JSON_VALUES_MAX = 200 * 1000, /* values of one text, so that its tree stays in bounds */
	JSON_DUMP_BYTES_MAX = 64 * 1024 * 1024,
};

struct json_doc; /* owns a parsed text */
struct json_val; /* a value inside a doc (borrowed) */

/* Parses bytes of text. Errors: INVALID_JSON (with line, column and offset), TOO_LARGE, NO_MEMORY.
 */
int json_doc_parse(const char *text, size_t bytes, size_t max_bytes, struct json_doc **ret,
	struct err *err) must_check;
void json_doc_free(struct json_doc *doc);
void json_doc_freep(struct json_doc **doc);
const struct json_val *json_doc_root(const struct json_doc *doc);

enum json_kind { JSON_NULL, JSON_BOOL, JSON_INT, JSON_REAL, JSON_STR, JSON_ARRAY, JSON_OBJECT };
enum json_kind json_kind(const struct json_val *v); /* NULL reads as JSON_NULL */

/* Unchecked access, for values already known to be right (our own stored JSON). Missing or wrong
 * kind gives the default. */
const struct json_val *json_get(
	const struct json_val *object, const char *key); /* NULL when absent or null */
const char *json_str_or(const struct json_val *v, const char *def);
int64_t json_i64_or(const struct json_val *v, int64_t def);
double json_f64_or(const struct json_val *v, double def);
bool json_bool_or(const struct json_val *v, bool def);
size_t json_array_len(const struct json_val *v);
const struct json_val *json_array_at(const struct json_val *v, size_t i);
/* Object iteration: returns false at the end. *iter starts as NULL. */
bool json_object_next(
	const struct json_val *v, void **iter, const char **ret_key, const struct json_val **ret_value);
/* Compact JSON text of a value (malloc'ed), NULL when out of memory. */
char *json_dump(const struct json_val *v) must_check;

/* Checked reading of one object. The first error sticks: later calls do nothing, json_obj_close
 * returns it. struct json_obj o; json_obj_open(&o, value, "$.model", &err); json_obj_str(&o,
 * "preset", 1, 64, &preset);     // optional: left untouched when absent or null json_obj_need(&o,
 * "name");                      // makes absence an error return json_obj_close(&o); // refuses
 * fields that nobody asked for */
struct json_obj {
	const struct json_val *value;
	struct err *err;
	int code;
	int seen_count;
	const char *seen[JSON_FIELDS_MAX];
	char path[JSON_PATH_MAX];
};

void json_obj_open(struct json_obj *o, const struct json_val *v, const char *path, struct err *err);
void json_obj_need(struct json_obj *o, const char *key);
bool json_obj_has(
	struct json_obj *o, const char *key); /* present and not null; marks the key as seen */
/* Each marks the key as seen, and writes *ret only when the field is present, not null and right.
 */
void json_obj_str(
	struct json_obj *o, const char *key, size_t min_len, size_t max_len, const char **ret);
/* One of a NULL-terminated list of words; *ret is its index. The error lists the words. */
void json_obj_word(struct json_obj *o, const char *key, const char *const *words, int *ret);
void json_obj_i64(struct json_obj *o, const char *key, int64_t min, int64_t max, int64_t *ret);
void json_obj_f64(struct json_obj *o, const char *key, double min, double max,
	double *ret); /* integers are accepted */
void json_obj_bool(struct json_obj *o, const char *key, bool *ret);
void json_obj_object(struct json_obj *o, const char *key, const struct json_val **ret);
void json_obj_array(
	struct json_obj *o, const char *key, size_t max_len, const struct json_val **ret);
void json_obj_any(struct json_obj *o, const char *key, const struct json_val **ret);
/* Records an error of the caller's at path.key (key may be NULL) unless there is one already. */
void json_obj_fail(struct json_obj *o, int code, const char *key, const char *fmt, ...)
	printf_like(4, 5);
/* Takes over the code of a nested read that has filled the same err; 0 changes nothing. */
void json_obj_adopt(struct json_obj *o, int code);
int json_obj_close(struct json_obj *o) must_check;
/* Writes "path.key" for opening a nested object. */
void json_obj_path(const struct json_obj *o, const char *key, char ret_path[static JSON_PATH_MAX]);

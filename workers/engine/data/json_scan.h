/* SPDX-License-Identifier: Apache-2.0
 * Reads JSON (RFC 8259) from memory, value by value, with nothing kept: for files that may be
 * larger than memory. Strict: no trailing commas, no comments, valid UTF-8 escapes, bounded depth.
 * Errors are INVALID_DATA and name file, line and column (bytes, from 1). Used by the data formats
 * and the tokenizer; one owner each. */
#pragma once

/*     json_scan_enter(s, '{', err);
 *     while (!(rc = json_scan_key(s, &key, &more, err)) && more)
 *         ... exactly one value ... */

#include "core/base/attr.h"
#include "core/base/buf.h"
#include "core/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { JSON_SCAN_DEPTH_MAX = 64 };

struct json_scan {
	const char *at, *end;
	const char *line_begin;
	int64_t line;
	int depth;
	bool first[JSON_SCAN_DEPTH_MAX + 1]; /* no member of this container was read yet */
	const char *label, *param;           /* borrowed: the file's name; of errors */
};

enum json_scan_kind {
	JSON_SCAN_OBJECT,
	JSON_SCAN_ARRAY,
	JSON_SCAN_STRING,
	JSON_SCAN_NUMBER,
	JSON_SCAN_BOOL,
	JSON_SCAN_NULL,
	JSON_SCAN_BAD, /* no value begins here */
};

/* line: of the first byte. */
void json_scan_init(struct json_scan *s, const char *text, size_t bytes, int64_t line,
	const char *label, const char *param);
/* The kind of the value that comes next. */
enum json_scan_kind json_scan_peek(struct json_scan *s);
/* A word for it: "an object". */
const char *json_scan_word(enum json_scan_kind kind);
/* Into a container, kind '{' or '['. */
int json_scan_enter(struct json_scan *s, char kind, struct err *err) must_check;
/* The next member's name into key (decoded), then its value follows; or *ret_more false: the object
 * has ended and was left. */
int json_scan_key(struct json_scan *s, struct buf *key, bool *ret_more, struct err *err) must_check;
/* Whether an item follows; false: the array has ended and was left. */
int json_scan_item(struct json_scan *s, bool *ret_more, struct err *err) must_check;
/* Appends the decoded string. */
int json_scan_string(struct json_scan *s, struct buf *out, struct err *err) must_check;
int json_scan_bool(struct json_scan *s, bool *ret, struct err *err) must_check;
/* A whole number without fraction or exponent. */
int json_scan_i64(struct json_scan *s, int64_t *ret, struct err *err) must_check;
int json_scan_null(struct json_scan *s, struct err *err) must_check;
/* Over any value, checking it. */
int json_scan_skip(struct json_scan *s, struct err *err) must_check;
/* Nothing but white space may follow. */
int json_scan_end(struct json_scan *s, struct err *err) must_check;
/* An error at the present place: "file F, line L, column C: " and the text. */
int json_scan_error(const struct json_scan *s, struct err *err, const char *fmt, ...)
	printf_like(3, 4);

/* SPDX-License-Identifier: Apache-2.0
 * Writing JSON into a bounded buf, in order, without a tree. Mistakes of ours (a value without a
 * key inside an object) are asserted; running over the buffer's maximum sticks in the buf and is
 * checked once at the end (buf.failed). */
#pragma once

#include "core/base/buf.h"

#include <stdbool.h>
#include <stdint.h>

enum { JSON_WRITER_DEPTH_MAX = 32 };

struct json_writer {
	struct buf *out;
	int depth;
	bool in_object[JSON_WRITER_DEPTH_MAX];
	bool has_items[JSON_WRITER_DEPTH_MAX];
	bool after_key;
};

void json_writer_init(struct json_writer *w, struct buf *out);

void json_begin_object(struct json_writer *w);
void json_end_object(struct json_writer *w);
void json_begin_array(struct json_writer *w);
void json_end_array(struct json_writer *w);
void json_key(struct json_writer *w, const char *key);

void json_put_str(
	struct json_writer *w, const char *s); /* NULL writes null; invalid UTF-8 becomes U+FFFD */
void json_put_strn(struct json_writer *w, const char *s, size_t bytes);
void json_put_i64(struct json_writer *w, int64_t v);
void json_put_f64(struct json_writer *w,
	double v); /* shortest text that reads back the same; not finite writes null */
void json_put_bool(struct json_writer *w, bool v);
void json_put_null(struct json_writer *w);
/* Text that is JSON already (a jsonb column); NULL or "" writes null. */
void json_put_raw(struct json_writer *w, const char *json);

/* key and value in one call. */
void json_field_str(struct json_writer *w, const char *key, const char *s);
void json_field_i64(struct json_writer *w, const char *key, int64_t v);
void json_field_f64(struct json_writer *w, const char *key, double v);
void json_field_bool(struct json_writer *w, const char *key, bool v);
void json_field_null(struct json_writer *w, const char *key);
void json_field_raw(struct json_writer *w, const char *key, const char *json);

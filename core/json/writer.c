/* SPDX-License-Identifier: Apache-2.0
 * JSON text, written in order. Not thread-safe; one owner at a time. */
#include "core/json/writer.h"

#include "core/base/num.h"
#include "core/base/utf8.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

void json_writer_init(struct json_writer *w, struct buf *out)
{
	*w = (struct json_writer){ .out = out };
}

/* The comma in front of a value, and the check that objects hold keys. */
static void before_value(struct json_writer *w)
{
	if (w->depth == 0)
		return;
	int top = w->depth - 1;
	assert(!w->in_object[top] || w->after_key);
	if (!w->in_object[top] && w->has_items[top])
		(void)buf_char(w->out, ',');
	w->has_items[top] = true;
	w->after_key = false;
}

static void begin(struct json_writer *w, bool object)
{
	before_value(w);
	assert(w->depth < JSON_WRITER_DEPTH_MAX);
	w->in_object[w->depth] = object;
	w->has_items[w->depth] = false;
	w->depth++;
	(void)buf_char(w->out, object ? '{' : '[');
}

static void end(struct json_writer *w, bool object)
{
	assert(w->depth > 0 && w->in_object[w->depth - 1] == object && !w->after_key);
	w->depth--;
	(void)buf_char(w->out, object ? '}' : ']');
}

void json_begin_object(struct json_writer *w)
{
	begin(w, true);
}

void json_end_object(struct json_writer *w)
{
	end(w, true);
}

void json_begin_array(struct json_writer *w)
{
	begin(w, false);
}

void json_end_array(struct json_writer *w)
{
	end(w, false);
}

static void put_escaped(struct buf *out, const char *s, size_t bytes)
{
	(void)buf_char(out, '"');
	size_t plain = 0; /* start of the run that needs no escape */
	size_t at = 0;
	while (at < bytes) {
		size_t len = utf8_next(s + at, bytes - at);
		unsigned char c = (unsigned char)s[at];
		if (len > 0 && c >= 0x20 && c != '"' && c != '\\') {
			at += len;
			continue;
		}
		(void)buf_append(out, s + plain, at - plain);
		if (len == 0)
			(void)buf_str(out, "\xEF\xBF\xBD");
		else if (c == '"' || c == '\\')
			(void)buf_append(out, (const char[]){ '\\', (char)c }, 2);
		else if (c == '\n')
			(void)buf_str(out, "\\n");
		else if (c == '\t')
			(void)buf_str(out, "\\t");
		else
			(void)buf_printf(out, "\\u%04x", c);
		at += 1;
		plain = at;
	}
	(void)buf_append(out, s + plain, at - plain);
	(void)buf_char(out, '"');
}

void json_key(struct json_writer *w, const char *key)
{
	assert(w->depth > 0 && w->in_object[w->depth - 1] && !w->after_key);
	if (w->has_items[w->depth - 1])
		(void)buf_char(w->out, ',');
	put_escaped(w->out, key, strlen(key));
	(void)buf_char(w->out, ':');
	w->after_key = true;
}

void json_put_strn(struct json_writer *w, const char *s, size_t bytes)
{
	if (!s) {
		json_put_null(w);
		return;
	}
	before_value(w);
	put_escaped(w->out, s, bytes);
}

void json_put_str(struct json_writer *w, const char *s)
{
	json_put_strn(w, s, s ? strlen(s) : 0);
}

void json_put_i64(struct json_writer *w, int64_t v)
{
	before_value(w);
	(void)buf_printf(w->out, "%" PRId64, v);
}

void json_put_f64(struct json_writer *w, double v)
{
	char text[NUM_F64_MAX];
	if (!isfinite(v)) {
		json_put_null(w);
		return;
	}
	before_value(w);
	num_format_f64(v, text);
	(void)buf_str(w->out, text);
}

void json_put_bool(struct json_writer *w, bool v)
{
	before_value(w);
	(void)buf_str(w->out, v ? "true" : "false");
}

void json_put_null(struct json_writer *w)
{
	before_value(w);
	(void)buf_str(w->out, "null");
}

void json_put_raw(struct json_writer *w, const char *json)
{
	before_value(w);
	(void)buf_str(w->out, json && json[0] ? json : "null");
}

void json_field_str(struct json_writer *w, const char *key, const char *s)
{
	json_key(w, key);
	json_put_str(w, s);
}

void json_field_i64(struct json_writer *w, const char *key, int64_t v)
{
	json_key(w, key);
	json_put_i64(w, v);
}

void json_field_f64(struct json_writer *w, const char *key, double v)
{
	json_key(w, key);
	json_put_f64(w, v);
}

void json_field_bool(struct json_writer *w, const char *key, bool v)
{
	json_key(w, key);
	json_put_bool(w, v);
}

void json_field_null(struct json_writer *w, const char *key)
{
	json_key(w, key);
	json_put_null(w);
}

void json_field_raw(struct json_writer *w, const char *key, const char *json)
{
	json_key(w, key);
	json_put_raw(w, json);
}

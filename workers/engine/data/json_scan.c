/* SPDX-License-Identifier: Apache-2.0
 * The JSON scanner: a cursor over bytes, with a stack of one bit a level. */
#include "workers/engine/data/json_scan.h"

#include "core/base/utf8.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void json_scan_init(struct json_scan *s, const char *text, size_t bytes, int64_t line,
	const char *label, const char *param)
{
	*s = (struct json_scan){ .at = text,
		.end = text + bytes,
		.line_begin = text,
		.line = line,
		.label = label,
		.param = param };
}

int json_scan_error(const struct json_scan *s, struct err *err, const char *fmt, ...)
{
	char text[ERR_MESSAGE_MAX];
	va_list args;
	va_start(args, fmt);
	(void)vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	return err_set(err, ERR_INVALID_DATA, s->param, "file %s, line %lld, column %lld: %s", s->label,
		(long long)s->line, (long long)(s->at - s->line_begin) + 1, text);
}

static void skip_space(struct json_scan *s)
{
	for (; s->at < s->end; s->at++) {
		if (*s->at == '\n') {
			s->line++;
			s->line_begin = s->at + 1;
		} else if (*s->at != ' ' && *s->at != '\t' && *s->at != '\r') {
			return;
		}
	}
}

enum json_scan_kind json_scan_peek(struct json_scan *s)
{
	skip_space(s);
	if (s->at == s->end)
		return JSON_SCAN_BAD;
	switch (*s->at) {
	case '{': return JSON_SCAN_OBJECT;
	case '[': return JSON_SCAN_ARRAY;
	case '"': return JSON_SCAN_STRING;
	case 't':
	case 'f': return JSON_SCAN_BOOL;
	case 'n': return JSON_SCAN_NULL;
	default:
		return *s->at == '-' || (*s->at >= '0' && *s->at <= '9') ? JSON_SCAN_NUMBER : JSON_SCAN_BAD;
	}
}

const char *json_scan_word(enum json_scan_kind kind)
{
	static const char *const words[] = { "an object", "an array", "a string", "a number", "a bool",
		"null", "no JSON value" };
	return words[kind];
}

static int expected(const struct json_scan *s, const char *what, struct err *err)
{
	if (s->at == s->end)
		return json_scan_error(s, err, "the text ends where %s was expected", what);
	unsigned char c = (unsigned char)*s->at;
	if (c < 0x20 || c > 0x7e)
		return json_scan_error(s, err, "byte 0x%02x where %s was expected", c, what);
	return json_scan_error(s, err, "'%c' where %s was expected", c, what);
}

static bool take(struct json_scan *s, char c)
{
	skip_space(s);
	if (s->at == s->end || *s->at != c)
		return false;
	s->at++;
	return true;
}

int json_scan_enter(struct json_scan *s, char kind, struct err *err)
{
	if (!take(s, kind))
		return expected(s, kind == '{' ? "an object" : "an array", err);
	if (s->depth == JSON_SCAN_DEPTH_MAX)
		return json_scan_error(s, err, "more than %d levels of nesting", JSON_SCAN_DEPTH_MAX);
	s->first[++s->depth] = true;
	return 0;
}

static int string(struct json_scan *s, struct buf *out, struct err *err);

/* The comma or the end of a container. */
static int next(struct json_scan *s, char close, bool *ret_more, struct err *err)
{
	bool first = s->first[s->depth];
	s->first[s->depth] = false;
	if (take(s, close)) {
		s->depth--;
		*ret_more = false;
		return 0;
	}
	if (!first && !take(s, ','))
		return expected(s, close == '}' ? "',' or '}'" : "',' or ']'", err);
	*ret_more = true;
	return 0;
}

/* A member's name and the colon; key NULL: only checks. */
static int name(struct json_scan *s, struct buf *key, struct err *err)
{
	skip_space(s);
	if (s->at == s->end || *s->at != '"')
		return expected(s, "the name of a member", err);
	int rc = string(s, key, err);
	return rc ? rc : take(s, ':') ? 0 : expected(s, "':'", err);
}

int json_scan_key(struct json_scan *s, struct buf *key, bool *ret_more, struct err *err)
{
	bool more;
	int rc = next(s, '}', &more, err);
	if (!rc && more) {
		buf_reset(key);
		rc = name(s, key, err);
	}
	if (!rc)
		*ret_more = more;
	return rc;
}

int json_scan_item(struct json_scan *s, bool *ret_more, struct err *err)
{
	return next(s, ']', ret_more, err);
}

static int hex4(struct json_scan *s, uint32_t *ret, struct err *err)
{
	uint32_t v = 0;
	for (int i = 0; i < 4; i++, s->at++) {
		char c = s->at < s->end ? *s->at : 0;
		if (c >= '0' && c <= '9')
			v = v << 4 | (uint32_t)(c - '0');
		else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f')
			v = v << 4 | (uint32_t)((c | 0x20) - 'a' + 10);
		else
			return expected(s, "a hexadecimal digit", err);
	}
	*ret = v;
	return 0;
}

static void put_utf8(struct buf *out, uint32_t c)
{
	if (!out)
		return;
	if (c < 0x80) {
		buf_char(out, (char)c);
	} else if (c < 0x800) {
		buf_char(out, (char)(0xc0 | c >> 6));
		buf_char(out, (char)(0x80 | (c & 63)));
	} else if (c < 0x10000) {
		buf_char(out, (char)(0xe0 | c >> 12));
		buf_char(out, (char)(0x80 | (c >> 6 & 63)));
		buf_char(out, (char)(0x80 | (c & 63)));
	} else {
		buf_char(out, (char)(0xf0 | c >> 18));
		buf_char(out, (char)(0x80 | (c >> 12 & 63)));
		buf_char(out, (char)(0x80 | (c >> 6 & 63)));
		buf_char(out, (char)(0x80 | (c & 63)));
	}
}

static int unicode_escape(struct json_scan *s, struct buf *out, struct err *err)
{
	uint32_t c, low;
	int rc = hex4(s, &c, err);
	if (rc)
		return rc;
	if (c >= 0xdc00 && c <= 0xdfff)
		return json_scan_error(s, err, "half a surrogate pair, \\u%04x", c);
	if (c >= 0xd800 && c <= 0xdbff) {
		if (s->end - s->at < 2 || s->at[0] != '\\' || s->at[1] != 'u')
			return json_scan_error(s, err, "half a surrogate pair, \\u%04x", c);
		s->at += 2;
		rc = hex4(s, &low, err);
		if (rc)
			return rc;
		if (low < 0xdc00 || low > 0xdfff)
			return json_scan_error(s, err, "\\u%04x is no second half of a surrogate pair", low);
		c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
	}
	put_utf8(out, c);
	return 0;
}

/* Behind a backslash. */
static int escape(struct json_scan *s, struct buf *out, struct err *err)
{
	static const char from[] = "\"\\/bfnrt", into[] = "\"\\/\b\f\n\r\t";
	char c = s->at < s->end ? *s->at : 0;
	const char *p = c ? strchr(from, c) : NULL;
	if (c != 'u' && !p)
		return expected(s, "an escape (one of \"\\/bfnrtu)", err);
	s->at++;
	if (c == 'u')
		return unicode_escape(s, out, err);
	if (out)
		buf_char(out, into[p - from]);
	return 0;
}

/* out NULL: only checks. */
static int string(struct json_scan *s, struct buf *out, struct err *err)
{
	if (!take(s, '"'))
		return expected(s, "a string", err);
	for (;;) {
		const char *begin = s->at;
		while (s->at < s->end && (unsigned char)*s->at >= 0x20 && *s->at != '"' && *s->at != '\\')
			s->at++;
		if (!utf8_is_valid(begin, (size_t)(s->at - begin))) {
			s->at = begin + utf8_valid_prefix(begin, (size_t)(s->at - begin));
			return json_scan_error(s, err, "not UTF-8: byte 0x%02x", (unsigned char)*s->at);
		}
		if (out)
			buf_append(out, begin, (size_t)(s->at - begin));
		if (s->at == s->end)
			return json_scan_error(s, err, "the text ends inside a string");
		char c = *s->at;
		if ((unsigned char)c < 0x20)
			return json_scan_error(
				s, err, "control character 0x%02x inside a string", (unsigned char)c);
		s->at++;
		if (c == '"')
			break;
		int rc = escape(s, out, err);
		if (rc)
			return rc;
	}
	if (out && out->failed)
		return json_scan_error(s, err, "a string of more than %zu bytes", out->max_bytes);
	return 0;
}

int json_scan_string(struct json_scan *s, struct buf *out, struct err *err)
{
	return string(s, out, err);
}

static int literal(struct json_scan *s, const char *word, struct err *err)
{
	size_t n = strlen(word);
	skip_space(s);
	if ((size_t)(s->end - s->at) < n || memcmp(s->at, word, n) != 0)
		return expected(s, word, err);
	s->at += n;
	return 0;
}

int json_scan_bool(struct json_scan *s, bool *ret, struct err *err)
{
	if (json_scan_peek(s) != JSON_SCAN_BOOL)
		return expected(s, "true or false", err);
	bool value = *s->at == 't';
	int rc = literal(s, value ? "true" : "false", err);
	if (!rc)
		*ret = value;
	return rc;
}

int json_scan_null(struct json_scan *s, struct err *err)
{
	return literal(s, "null", err);
}

static bool digits(struct json_scan *s)
{
	const char *begin = s->at;
	while (s->at < s->end && *s->at >= '0' && *s->at <= '9')
		s->at++;
	return s->at > begin;
}

/* Over a number; *ret_whole: it has neither fraction nor exponent. */
static int number(struct json_scan *s, bool *ret_whole, struct err *err)
{
	if (json_scan_peek(s) != JSON_SCAN_NUMBER)
		return expected(s, "a number", err);
	bool whole = true;
	if (*s->at == '-')
		s->at++;
	const char *begin = s->at;
	if (!digits(s))
		return expected(s, "a digit", err);
	if (*begin == '0' && s->at > begin + 1)
		return json_scan_error(s, err, "a number with a leading zero");
	if (s->at < s->end && *s->at == '.') {
		s->at++;
		whole = false;
		if (!digits(s))
			return expected(s, "a digit", err);
	}
	if (s->at < s->end && (*s->at | 0x20) == 'e') {
		s->at++;
		whole = false;
		if (s->at < s->end && (*s->at == '+' || *s->at == '-'))
			s->at++;
		if (!digits(s))
			return expected(s, "a digit", err);
	}
	*ret_whole = whole;
	return 0;
}

int json_scan_i64(struct json_scan *s, int64_t *ret, struct err *err)
{
	skip_space(s);
	const char *p = s->at;
	bool whole;
	int rc = number(s, &whole, err);
	if (rc)
		return rc;
	bool negative = *p == '-';
	int64_t v = 0;
	if (!whole)
		return json_scan_error(s, err, "a whole number was expected");
	for (p += negative; p < s->at; p++)
		if (__builtin_mul_overflow(v, 10, &v) || __builtin_sub_overflow(v, *p - '0', &v))
			return json_scan_error(s, err, "a whole number of more than 64 bits");
	if (!negative && __builtin_sub_overflow((int64_t)0, v, &v))
		return json_scan_error(s, err, "a whole number of more than 64 bits");
	*ret = v;
	return 0;
}

/* One value, or the start of a container. */
static int skip_one(struct json_scan *s, struct err *err)
{
	bool ignored;
	switch (json_scan_peek(s)) {
	case JSON_SCAN_OBJECT: return json_scan_enter(s, '{', err);
	case JSON_SCAN_ARRAY: return json_scan_enter(s, '[', err);
	case JSON_SCAN_STRING: return string(s, NULL, err);
	case JSON_SCAN_NUMBER: return number(s, &ignored, err);
	case JSON_SCAN_BOOL: return json_scan_bool(s, &ignored, err);
	case JSON_SCAN_NULL: return json_scan_null(s, err);
	default: return expected(s, "a value", err);
	}
}

int json_scan_skip(struct json_scan *s, struct err *err)
{
	bool object[JSON_SCAN_DEPTH_MAX + 1] = { false };
	int outside = s->depth;
	for (;;) {
		int before = s->depth;
		bool is_object = json_scan_peek(s) == JSON_SCAN_OBJECT, more = false;
		int rc = skip_one(s, err);
		if (s->depth > before)
			object[s->depth] = is_object;
		/* On to the next value: out of every container that ends here. */
		while (!rc && s->depth > outside && !more) {
			bool in_object = object[s->depth];
			rc = next(s, in_object ? '}' : ']', &more, err);
			if (!rc && more && in_object)
				rc = name(s, NULL, err);
		}
		if (rc || s->depth == outside)
			return rc;
	}
}

int json_scan_end(struct json_scan *s, struct err *err)
{
	skip_space(s);
	return s->at == s->end ? 0 : expected(s, "the end", err);
}

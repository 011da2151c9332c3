/* SPDX-License-Identifier: Apache-2.0
 * Parses request targets. Called by event loops on what strangers send: bounded, no recursion. */
#include "server/http/target.h"

#include "core/base/utf8.h"

#include <string.h>

enum { DEL = 0x7f, SPACE = 0x20 };

static int hex_value(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	return -1;
}

static int refuse(struct err *err, const char *why)
{
	return err_set(err, ERR_INVALID_REQUEST, NULL, "The request target %s", why);
}

/* Decodes len bytes into the arena. A decoded control byte is refused: nothing of ours has one in
 * its name, and logs and headers must not get one. */
static int decode(struct arena *arena, const char *text, size_t len, bool plus_is_space,
	const char **ret, struct err *err)
{
	char *out = arena_alloc(arena, len + 1);
	if (!out)
		return err_set(err, ERR_NO_MEMORY, NULL, "Out of memory");
	size_t at = 0;
	for (size_t i = 0; i < len; i++) {
		int byte = (unsigned char)text[i];
		if (byte == '%') {
			int high = i + 2 < len ? hex_value(text[i + 1]) : -1;
			int low = i + 2 < len ? hex_value(text[i + 2]) : -1;
			if (high < 0 || low < 0)
				return refuse(err, "has a bad % escape");
			byte = high * 16 + low;
			i += 2;
		} else if (byte == '+' && plus_is_space) {
			byte = SPACE;
		}
		if (byte < SPACE || byte == DEL)
			return refuse(err, "holds a control character");
		out[at++] = (char)byte;
	}
	out[at] = '\0';
	if (!utf8_is_valid(out, at))
		return refuse(err, "is not UTF-8");
	*ret = out;
	return 0;
}

static int parse_path(
	struct arena *arena, const char *path, size_t len, struct request_data *ret, struct err *err)
{
	size_t at = 1; /* behind the first slash */
	for (;;) {
		size_t end = at;
		while (end < len && path[end] != '/')
			end++;
		if (ret->segment_count == REQUEST_SEGMENTS_MAX)
			return err_set(err, ERR_NOT_FOUND, NULL, "There is no such path");
		int r = decode(arena, path + at, end - at, false, &ret->segments[ret->segment_count], err);
		if (r < 0)
			return r;
		ret->segment_count++;
		if (end >= len)
			return 0;
		at = end + 1;
	}
}

/* Lists are written "name[]=a&name[]=b"; any other name has one value. */
static bool is_list(const char *name)
{
	size_t len = strlen(name);
	return len > 2 && strcmp(name + len - 2, "[]") == 0;
}

static int check_new(const struct request_data *d, const char *name, struct err *err)
{
	for (int i = 0; i < d->query_count && !is_list(name); i++) {
		if (strcmp(d->query[i].name, name) == 0)
			return err_set(
				err, ERR_INVALID_VALUE, name, "The query argument %s is given twice", name);
	}
	return 0;
}

static int parse_query(
	struct arena *arena, const char *query, struct request_data *ret, struct err *err)
{
	while (*query) {
		size_t len = strcspn(query, "&");
		size_t name_len = strcspn(query, "=&");
		if (len > 0) {
			if (ret->query_count == REQUEST_QUERY_MAX)
				return refuse(err, "has too many query arguments");
			struct name_value *q = &ret->query[ret->query_count];
			size_t value_at = name_len < len ? name_len + 1 : len;
			int r = decode(arena, query, name_len, true, &q->name, err);
			if (r == 0)
				r = decode(arena, query + value_at, len - value_at, true, &q->value, err);
			if (r == 0)
				r = check_new(ret, q->name, err);
			if (r < 0)
				return r;
			ret->query_count++;
		}
		query += len;
		query += *query == '&';
	}
	return 0;
}

int target_parse(struct arena *arena, const char *target, struct request_data *ret,
	const char **ret_path, struct err *err)
{
	size_t len = strlen(target);
	if (len > REQUEST_TARGET_MAX)
		return err_set(err, ERR_HEADERS_TOO_LARGE, NULL,
			"The request target is longer than %d bytes", REQUEST_TARGET_MAX);
	if (target[0] != '/')
		return refuse(err, "must be a path");
	for (size_t i = 0; i < len; i++) {
		unsigned char c = (unsigned char)target[i];
		if (c <= SPACE || c >= DEL || c == '#')
			return refuse(err, "holds a character that must be escaped");
	}
	size_t path_len = strcspn(target, "?");
	char *path = arena_strndup(arena, target, path_len);
	if (!path)
		return err_set(err, ERR_NO_MEMORY, NULL, "Out of memory");
	ret->segment_count = 0;
	ret->query_count = 0;
	int r = parse_path(arena, target, path_len, ret, err);
	if (r == 0 && target[path_len] == '?')
		r = parse_query(arena, target + path_len + 1, ret, err);
	if (r == 0)
		*ret_path = path;
	return r;
}

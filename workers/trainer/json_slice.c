/* SPDX-License-Identifier: Apache-2.0
 * Walking over JSON by brackets and strings. */
#include "workers/trainer/json_slice.h"

#include <string.h>

struct cursor {
	const char *at, *end;
};

static void skip_space(struct cursor *c)
{
	while (c->at < c->end && (*c->at == ' ' || *c->at == '\n' || *c->at == '\r' || *c->at == '\t'))
		c->at++;
}

/* Over a string that begins here; false when it does not end. */
static bool skip_string(struct cursor *c)
{
	for (c->at++; c->at < c->end; c->at++) {
		if (*c->at == '\\')
			c->at++;
		else if (*c->at == '"') {
			c->at++;
			return true;
		}
	}
	return false;
}

/* Over the value that begins here. */
static bool skip_value(struct cursor *c)
{
	size_t depth = 0;
	do {
		skip_space(c);
		if (c->at >= c->end)
			return false;
		if (*c->at == '"') {
			if (!skip_string(c))
				return false;
		} else if (*c->at == '{' || *c->at == '[') {
			depth++;
			c->at++;
		} else if (*c->at == '}' || *c->at == ']') {
			if (depth == 0)
				return false;
			depth--;
			c->at++;
		} else if (depth > 0 && (*c->at == ',' || *c->at == ':')) {
			c->at++;
		} else {
			const char *start = c->at;
			while (c->at < c->end && strchr("{}[]\",: \n\r\t", *c->at) == NULL)
				c->at++;
			if (c->at == start)
				return false;
		}
	} while (depth > 0);
	return true;
}

bool json_slice_member(struct json_slice object, const char *key, struct json_slice *ret)
{
	struct cursor c = { object.at, object.at + object.bytes };
	size_t key_bytes = strlen(key);
	skip_space(&c);
	if (c.at >= c.end || *c.at != '{')
		return false;
	c.at++;
	for (;;) {
		skip_space(&c);
		const char *name = c.at + 1;
		if (c.at >= c.end || *c.at != '"' || !skip_string(&c))
			return false;
		bool found = (size_t)(c.at - 1 - name) == key_bytes && memcmp(name, key, key_bytes) == 0;
		skip_space(&c);
		if (c.at >= c.end || *c.at++ != ':')
			return false;
		skip_space(&c);
		const char *value = c.at;
		if (!skip_value(&c))
			return false;
		if (found) {
			*ret = (struct json_slice){ value, (size_t)(c.at - value) };
			return true;
		}
		skip_space(&c);
		if (c.at >= c.end || *c.at++ != ',')
			return false;
	}
}

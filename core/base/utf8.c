/* SPDX-License-Identifier: Apache-2.0
 * UTF-8 checks. Called by the JSON reader and writer, the log and the data checks. */
#include "core/base/utf8.h"

#include <assert.h>

size_t utf8_next(const char *s, size_t bytes)
{
	assert(bytes > 0);
	const unsigned char *u = (const unsigned char *)s;
	if (u[0] < 0x80)
		return 1;

	size_t len = u[0] >= 0xF0 ? 4 : u[0] >= 0xE0 ? 3 : 2;
	if (u[0] < 0xC2 || u[0] > 0xF4 || len > bytes)
		return 0;
	/* The second byte's range carries the overlong, surrogate and maximum rules. */
	unsigned char low = u[0] == 0xE0 ? 0xA0 : u[0] == 0xF0 ? 0x90 : 0x80;
	unsigned char high = u[0] == 0xED ? 0x9F : u[0] == 0xF4 ? 0x8F : 0xBF;
	if (u[1] < low || u[1] > high)
		return 0;
	for (size_t i = 2; i < len; i++) {
		if ((u[i] & 0xC0) != 0x80)
			return 0;
	}
	return len;
}

size_t utf8_valid_prefix(const char *s, size_t bytes)
{
	size_t at = 0;
	while (at < bytes) {
		size_t len = utf8_next(s + at, bytes - at);
		if (len == 0)
			return at;
		at += len;
	}
	return bytes;
}

bool utf8_is_valid(const char *s, size_t bytes)
{
	return utf8_valid_prefix(s, bytes) == bytes;
}

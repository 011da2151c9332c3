/* SPDX-License-Identifier: Apache-2.0
 * Reads Range and entity tag headers. Called by event loops. */
#include "server/http/range.h"

#include <string.h>
#include <strings.h>

/* Digits; false when there are none or they overflow. */
static bool read_number(const char **at, int64_t *ret)
{
	const char *p = *at;
	int64_t v = 0;
	if (*p < '0' || *p > '9')
		return false;
	for (; *p >= '0' && *p <= '9'; p++) {
		if (__builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, *p - '0', &v))
			return false;
	}
	*at = p;
	*ret = v;
	return true;
}

enum range_kind range_parse(
	const char *header, int64_t size, int64_t *ret_first, int64_t *ret_count)
{
	static const char unit[] = "bytes=";
	*ret_first = 0;
	*ret_count = size;
	if (!header || strncasecmp(header, unit, sizeof(unit) - 1) != 0)
		return RANGE_WHOLE;
	const char *at = header + sizeof(unit) - 1;
	int64_t first = -1;
	int64_t last = -1;
	bool has_first = read_number(&at, &first);
	if (*at++ != '-')
		return RANGE_WHOLE;
	bool has_last = read_number(&at, &last);
	if (*at != '\0' || (!has_first && !has_last) || (has_first && has_last && last < first))
		return RANGE_WHOLE;
	if (!has_first) { /* the last N bytes */
		if (last == 0 || size == 0)
			return RANGE_UNSATISFIABLE;
		first = last < size ? size - last : 0;
		last = size - 1;
	}
	if (first >= size)
		return RANGE_UNSATISFIABLE;
	if (last < 0 || last >= size)
		last = size - 1;
	*ret_first = first;
	*ret_count = last - first + 1;
	return RANGE_PART;
}

bool range_etag_matches(const char *header, const char *etag)
{
	size_t etag_len = strlen(etag);
	while (header && *header) {
		while (*header == ' ' || *header == '\t' || *header == ',')
			header++;
		if (*header == '*')
			return true;
		if (strncmp(header, "W/", 2) == 0)
			header += 2;
		if (*header != '"')
			return false;
		size_t len = strcspn(header + 1, "\"");
		if (len == etag_len && memcmp(header + 1, etag, len) == 0)
			return true;
		header += 1 + len;
		header += *header == '"';
	}
	return false;
}

/* SPDX-License-Identifier: Apache-2.0
 * The CSV scanner. Called by data_csv.c. */
#include "workers/engine/data/csv_scan.h"

#include <stdlib.h>
#include <string.h>

int csv_scan_init(struct csv_scan *s, const char *text, size_t bytes, const char *label,
	const char *param, struct err *err)
{
	static const char mark[] = "\xef\xbb\xbf"; /* a byte order mark */
	*s = (struct csv_scan){
		.at = text, .end = text + bytes, .line = 1, .label = label, .param = param
	};
	if (bytes >= 3 && memcmp(text, mark, 3) == 0)
		s->at += 3;
	buf_init(&s->text, (size_t)CSV_COLUMNS_MAX * (CSV_FIELD_MAX_BYTES + 1));
	s->begin = malloc(CSV_COLUMNS_MAX * sizeof(*s->begin));
	if (!s->begin)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory to read a table");
	return 0;
}

void csv_scan_finish(struct csv_scan *s)
{
	buf_finish(&s->text);
	free(s->begin);
	s->begin = NULL;
}

static int bad(const struct csv_scan *s, const char *what, struct err *err)
{
	return err_set(err, ERR_INVALID_DATA, s->param, "file %s, line %lld, field %d: %s", s->label,
		(long long)s->line, s->count + 1, what);
}

/* To the field at hand. */
static int append(struct csv_scan *s, const char *p, size_t bytes, struct err *err)
{
	size_t have = s->text.len - s->begin[s->count];
	if (bytes > CSV_FIELD_MAX_BYTES - have)
		return bad(s, "more than 65536 bytes", err);
	if (buf_append(&s->text, p, bytes))
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory to read a table");
	return 0;
}

/* Behind an opening quote, up to and with the closing one. */
static int quoted(struct csv_scan *s, struct err *err)
{
	for (;;) {
		const char *p = memchr(s->at, '"', (size_t)(s->end - s->at));
		if (!p)
			return bad(s, "a quoted field without end", err);
		for (const char *q = s->at; q < p; q++)
			s->line += *q == '\n';
		int rc = append(s, s->at, (size_t)(p - s->at), err);
		s->at = p + 1;
		if (rc || s->at == s->end || *s->at != '"')
			return rc;
		rc = append(s, s->at++, 1, err);
		if (rc)
			return rc;
	}
}

static int field(struct csv_scan *s, struct err *err)
{
	if (s->count == CSV_COLUMNS_MAX)
		return bad(s, "more than 4096 fields", err);
	size_t begin = s->begin[s->count] = s->text.len;
	if (s->at < s->end && *s->at == '"') {
		s->at++;
		int rc = quoted(s, err);
		if (rc)
			return rc;
		if (s->at < s->end && *s->at != ',' && *s->at != '\n' && *s->at != '\r')
			return bad(s, "text behind the closing quote", err);
	} else {
		const char *p = s->at;
		while (p < s->end && *p != ',' && *p != '\n' && *p != '"' &&
			!(*p == '\r' && (p + 1 == s->end || p[1] == '\n')))
			p++;
		if (p < s->end && *p == '"')
			return bad(s, "a quote inside a field that does not begin with one", err);
		int rc = append(s, s->at, (size_t)(p - s->at), err);
		if (rc)
			return rc;
		s->at = p;
	}
	size_t bytes = s->text.len - begin;
	if (bytes > 0 && memchr(s->text.data + begin, 0, bytes))
		return bad(s, "a zero byte", err);
	if (buf_char(&s->text, 0))
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory to read a table");
	s->count++;
	return 0;
}

int csv_scan_next(struct csv_scan *s, bool *ret_more, struct err *err)
{
	*ret_more = s->at < s->end;
	if (!*ret_more)
		return 0;
	s->count = 0;
	s->record = s->line;
	buf_reset(&s->text);
	for (;;) {
		int rc = field(s, err);
		if (rc)
			return rc;
		if (s->at == s->end)
			return 0;
		char c = *s->at++;
		if (c == ',')
			continue;
		if (c == '\r') {
			if (s->at < s->end && *s->at != '\n') {
				s->count--; /* it stands behind the last field */
				return bad(s, "a carriage return alone", err);
			}
			s->at += s->at < s->end;
		}
		s->line++;
		return 0;
	}
}

const char *csv_scan_field(const struct csv_scan *s, int column)
{
	return s->text.data + s->begin[column];
}

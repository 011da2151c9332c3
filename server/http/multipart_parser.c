/* SPDX-License-Identifier: Apache-2.0
 * The parser of multipart bodies. Called by event loops with whatever has arrived. The delimiter is
 * CR LF "--" boundary and a boundary holds no CR, so after a mismatch only a CR can begin a new
 * match: no table of borders is needed. */
#include "server/http/multipart_parser.h"

#include "core/base/utf8.h"

#include <string.h>
#include <strings.h>

static int refuse(struct err *err, const char *why)
{
	return err_set(err, ERR_INVALID_REQUEST, NULL, "The multipart body %s", why);
}

static bool is_blank(char c)
{
	return c == ' ' || c == '\t';
}

/* ---------------------------------------------------------------- parameters of header values */

static const char *skip_blanks(const char *at)
{
	while (is_blank(*at))
		at++;
	return at;
}

/* The value behind "name=": a token, or a quoted string in which a backslash keeps the next byte.
 * Returns where it ended, NULL when it is not well formed or too long. */
static const char *read_value(const char *at, char *ret, size_t max)
{
	size_t len = 0;
	bool quoted = *at == '"';
	if (quoted)
		at++;
	for (; *at; at++) {
		if (quoted ? *at == '"' : *at == ';' || is_blank(*at))
			break;
		/* Browsers send backslashes of Windows paths as they are; only \" and \\ are escapes. */
		if (quoted && at[0] == '\\' && (at[1] == '"' || at[1] == '\\'))
			at++;
		if (len + 1 >= max)
			return NULL;
		ret[len++] = *at;
	}
	if (quoted && *at != '"')
		return NULL;
	ret[len] = '\0';
	return quoted ? at + 1 : at;
}

/* Walks "; name=value" pairs. Returns where the next one starts, NULL at the end; *ret_ok is false
 * when the text is not well formed. */
static const char *next_param(
	const char *at, char *ret_name, char *ret_value, size_t max, bool *ret_ok)
{
	at = skip_blanks(at);
	*ret_ok = *at == '\0';
	if (*at != ';')
		return NULL;
	at = skip_blanks(at + 1);
	size_t len = strcspn(at, "=; \t");
	*ret_ok = at[len] == '=' && len > 0 && len < max;
	if (!*ret_ok)
		return NULL;
	memcpy(ret_name, at, len);
	ret_name[len] = '\0';
	at = read_value(at + len + 1, ret_value, max);
	*ret_ok = at != NULL;
	return at;
}

static bool boundary_ok(const char *b)
{
	static const char allowed[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
								  "'()+_,-./:=? ";
	size_t len = strlen(b);
	return len > 0 && len <= MULTIPART_BOUNDARY_MAX && strspn(b, allowed) == len &&
		b[len - 1] != ' ';
}

int multipart_boundary(
	const char *content_type, char ret_boundary[static MULTIPART_BOUNDARY_MAX + 1], struct err *err)
{
	static const char type[] = "multipart/form-data";
	if (!content_type || strncasecmp(content_type, type, sizeof(type) - 1) != 0)
		return err_set(
			err, ERR_MEDIA_TYPE, "Content-Type", "The content type must be multipart/form-data");
	const char *at = content_type + sizeof(type) - 1;
	char name[MULTIPART_NAME_MAX];
	char value[MULTIPART_NAME_MAX];
	bool ok;
	int seen = 0;
	while ((at = next_param(at, name, value, sizeof(value), &ok))) {
		if (strcasecmp(name, "boundary") != 0)
			continue;
		if (++seen > 1 || !boundary_ok(value))
			return err_set(
				err, ERR_INVALID_REQUEST, "Content-Type", "The boundary is not well formed");
		memcpy(ret_boundary, value, strlen(value) + 1);
	}
	if (!ok || seen == 0)
		return err_set(err, ERR_INVALID_REQUEST, "Content-Type",
			"The content type must have one boundary parameter");
	return 0;
}

/* ---------------------------------------------------------------- part headers */

static int read_disposition(const char *value, struct multipart_part *part, struct err *err)
{
	static const char type[] = "form-data";
	if (strncasecmp(value, type, sizeof(type) - 1) != 0)
		return refuse(err, "has a part that is not form-data");
	const char *at = value + sizeof(type) - 1;
	char name[MULTIPART_NAME_MAX];
	char text[MULTIPART_NAME_MAX];
	bool ok;
	while ((at = next_param(at, name, text, sizeof(text), &ok))) {
		char *to = NULL;
		if (strcasecmp(name, "name") == 0)
			to = part->name;
		else if (strcasecmp(name, "filename") == 0)
			to = part->filename;
		if (!to)
			continue; /* filename* repeats filename in another coding */
		if (to[0] != '\0' || !utf8_is_valid(text, strlen(text)))
			return refuse(err, "has a part whose name is not well formed");
		memcpy(to, text, strlen(text) + 1);
		part->has_filename = part->has_filename || to == part->filename;
	}
	if (!ok)
		return refuse(err, "has a part whose Content-Disposition is not well formed");
	return 0;
}

static int read_header(char *line, struct multipart_part *part, bool *seen, struct err *err)
{
	char *colon = strchr(line, ':');
	if (!colon || colon == line || is_blank(line[0]))
		return refuse(err, "has a part header that is not well formed");
	*colon = '\0';
	const char *value = skip_blanks(colon + 1);
	if (strcasecmp(line, "Content-Transfer-Encoding") == 0 && strcasecmp(value, "binary") != 0 &&
		strcasecmp(value, "8bit") != 0 && strcasecmp(value, "7bit") != 0)
		return refuse(err, "has a part with a transfer encoding");
	if (strcasecmp(line, "Content-Disposition") != 0)
		return 0;
	if (*seen)
		return refuse(err, "has a part with two dispositions");
	*seen = true;
	return read_disposition(value, part, err);
}

/* p->line holds the block, each line ended by CR LF, without the empty line. */
static int end_headers(struct multipart_parser *p, struct err *err)
{
	struct multipart_part part = { .has_filename = false };
	bool seen = false;
	p->line[p->line_len] = '\0';
	if (strlen(p->line) != p->line_len)
		return refuse(err, "has a NUL in a part's headers");
	for (char *at = p->line; *at;) {
		char *end = strstr(at, "\r\n");
		if (!end)
			return refuse(err, "has a part header that is not well formed");
		*end = '\0';
		if (at[strcspn(at, "\r\n")] != '\0')
			return refuse(err, "has a stray line end in a part's headers");
		int r = read_header(at, &part, &seen, err);
		if (r < 0)
			return r;
		at = end + 2;
	}
	if (!seen || part.name[0] == '\0')
		return refuse(err, "has a part without a name");
	if (++p->parts > MULTIPART_PARTS_MAX)
		return err_set(err, ERR_TOO_LARGE, NULL, "The multipart body has more than %d parts",
			MULTIPART_PARTS_MAX);
	p->state = MULTIPART_DATA;
	p->matched = 0;
	return p->sink->begin(p->ctx, &part, err);
}

/* ---------------------------------------------------------------- states */

/* Consumes input up to and including a delimiter; content before it goes to the sink (if any).
 * Returns bytes consumed; *ret_found tells whether the delimiter is complete. */
static int scan(struct multipart_parser *p, const char *data, size_t bytes, bool keep,
	size_t *ret_used, bool *ret_found, struct err *err)
{
	size_t held = p->matched; /* matched bytes that came in earlier slices */
	for (size_t i = 0; i < bytes; i++) {
		if (data[i] == p->delimiter[p->matched]) {
			p->matched++;
			if (p->matched < p->delimiter_len)
				continue;
			size_t here = p->matched - held;
			*ret_used = i + 1;
			*ret_found = true;
			if (!keep || i + 1 <= here)
				return 0;
			return p->sink->data(p->ctx, data, i + 1 - here, err);
		}
		/* What came in earlier slices was content after all. */
		if (held > 0 && keep) {
			int r = p->sink->data(p->ctx, p->delimiter, held, err);
			if (r < 0)
				return r;
		}
		held = 0;
		p->matched = data[i] == p->delimiter[0] ? 1 : 0;
	}
	*ret_used = bytes;
	*ret_found = false;
	size_t pending = p->matched - held;
	if (!keep || bytes <= pending)
		return 0;
	return p->sink->data(p->ctx, data, bytes - pending, err);
}

/* What follows a delimiter: "--" ends the body, blanks and CR LF begin a part. */
static int after_delimiter(struct multipart_parser *p, char c, struct err *err)
{
	if (p->line_len == 0 && is_blank(c))
		return 0;
	p->line[p->line_len++] = c;
	if (p->line_len < 2)
		return c == '-' || c == '\r' ? 0 : refuse(err, "has text behind a delimiter");
	p->line_len = 0;
	if (p->line[0] == '-' && p->line[1] == '-')
		p->state = MULTIPART_EPILOGUE;
	else if (p->line[0] == '\r' && p->line[1] == '\n')
		p->state = MULTIPART_HEADERS;
	else
		return refuse(err, "has text behind a delimiter");
	return 0;
}

static int headers_byte(struct multipart_parser *p, char c, struct err *err)
{
	if (p->line_len + 1 >= sizeof(p->line))
		return err_set(err, ERR_TOO_LARGE, NULL,
			"The multipart body has part headers longer than %d bytes", MULTIPART_HEADERS_MAX);
	p->line[p->line_len++] = c;
	if (p->line_len == 2 && memcmp(p->line, "\r\n", 2) == 0) {
		p->line_len = 0;
		return end_headers(p, err);
	}
	if (p->line_len < 4 || memcmp(p->line + p->line_len - 4, "\r\n\r\n", 4) != 0)
		return 0;
	p->line_len -= 2;
	int r = end_headers(p, err);
	p->line_len = 0;
	return r;
}

void multipart_parser_init(
	struct multipart_parser *p, const char *boundary, const struct multipart_sink *sink, void *ctx)
{
	memset(p, 0, sizeof(*p));
	p->sink = sink;
	p->ctx = ctx;
	size_t len = strnlen(boundary, MULTIPART_BOUNDARY_MAX);
	memcpy(p->delimiter, "\r\n--", 4);
	memcpy(p->delimiter + 4, boundary, len);
	p->delimiter_len = len + 4;
	p->matched = 2; /* the first delimiter may be the very first line */
}

int multipart_parser_feed(
	struct multipart_parser *p, const char *data, size_t bytes, struct err *err)
{
	int r = 0;
	while (bytes > 0 && r == 0) {
		size_t used = 1;
		bool found = false;
		switch (p->state) {
		case MULTIPART_PREAMBLE:
		case MULTIPART_DATA:
			r = scan(p, data, bytes, p->state == MULTIPART_DATA, &used, &found, err);
			if (r == 0 && found) {
				if (p->state == MULTIPART_DATA)
					r = p->sink->end(p->ctx, err);
				p->state = MULTIPART_AFTER_DELIMITER;
				p->line_len = 0;
			}
			break;
		case MULTIPART_AFTER_DELIMITER: r = after_delimiter(p, *data, err); break;
		case MULTIPART_HEADERS: r = headers_byte(p, *data, err); break;
		case MULTIPART_EPILOGUE: return 0;
		}
		if (r == 0) {
			data += used;
			bytes -= used;
		}
	}
	return r;
}

int multipart_parser_end(const struct multipart_parser *p, struct err *err)
{
	if (p->state != MULTIPART_EPILOGUE)
		return refuse(err, "ends before its closing delimiter");
	return 0;
}

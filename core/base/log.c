/* SPDX-License-Identifier: Apache-2.0
 * Structured log lines. A line is built on the stack and written by one write(2), so lines of
 * threads and processes that share a pipe do not mix. */
#include "core/base/log.h"

#include "core/base/clock.h"
#include "core/base/num.h"
#include "core/base/utf8.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
	/* A pipe takes up to PIPE_BUF = 4096 bytes without mixing. */
	LOG_LINE_MAX = 4096,
	LOG_STR_MAX = 1024,
	LOG_TAIL_BYTES = 32, /* kept free for `,"truncated":true}` and the newline */
};

/* The one process-wide state of core: set by main before threads start. */
static struct {
	const char *program;
	enum log_level least;
} setup = { .program = "", .least = LOG_INFO };

static _Thread_local const char *request_id;

struct line {
	char text[LOG_LINE_MAX];
	size_t len;
	bool truncated;
};

void log_setup(const char *program, enum log_level least)
{
	setup.program = program;
	setup.least = least;
}

void log_set_request_id(const char *id)
{
	request_id = id;
}

static void put(struct line *l, const char *text, size_t bytes)
{
	if (l->truncated || bytes > LOG_LINE_MAX - LOG_TAIL_BYTES - l->len) {
		l->truncated = true;
		return;
	}
	memcpy(l->text + l->len, text, bytes);
	l->len += bytes;
}

static void put_text(struct line *l, const char *text)
{
	put(l, text, strlen(text));
}

static void put_escaped(struct line *l, const char *s)
{
	if (!s) {
		put_text(l, "null");
		return;
	}
	size_t bytes = strnlen(s, LOG_STR_MAX);
	bool cut = bytes == LOG_STR_MAX && s[bytes] != '\0';
	put_text(l, "\"");
	for (size_t at = 0; at < bytes;) {
		size_t len = utf8_next(s + at, bytes - at);
		unsigned char c = (unsigned char)s[at];
		char escape[8];
		if (len == 0) {
			put_text(l, "\\ufffd");
			len = 1;
		} else if (c == '"' || c == '\\') {
			put(l, (const char[]){ '\\', (char)c }, 2);
		} else if (c < 0x20 || c == 0x7F) {
			(void)snprintf(escape, sizeof(escape), "\\u%04x", c);
			put_text(l, escape);
		} else {
			put(l, s + at, len);
		}
		at += len;
	}
	put_text(l, cut ? "...\"" : "\"");
}

static void put_value(struct line *l, const struct log_field *f)
{
	char number[NUM_F64_MAX];
	switch (f->kind) {
	case LOG_KIND_STR: put_escaped(l, f->str); return;
	case LOG_KIND_INT:
		(void)snprintf(number, sizeof(number), "%" PRId64, f->i64);
		put_text(l, number);
		return;
	case LOG_KIND_F64:
		num_format_f64(f->f64, number);
		put_text(l, isfinite(f->f64) ? number : "null");
		return;
	case LOG_KIND_BOOL: put_text(l, f->i64 ? "true" : "false"); return;
	case LOG_KIND_END: break;
	}
	put_text(l, "null");
}

static void put_field(struct line *l, const struct log_field *f)
{
	size_t before = l->len;
	put_text(l, ",");
	put_escaped(l, f->key);
	put_text(l, ":");
	put_value(l, f);
	/* Half a field would not be JSON. */
	if (l->truncated)
		l->len = before;
}

static void write_line(const struct line *l)
{
	size_t done = 0;
	while (done < l->len) {
		ssize_t n = write(STDERR_FILENO, l->text + done, l->len - done);
		if (n > 0)
			done += (size_t)n;
		else if (n < 0 && errno != EINTR)
			return; /* nowhere left to say it */
	}
}

void log_emit(enum log_level level, const char *event, const struct log_field *fields)
{
	static const char *const words[] = { "debug", "info", "warn", "error" };
	if (level < setup.least)
		return;
	int saved = errno;
	char time[CLOCK_RFC3339_MAX];
	clock_rfc3339(clock_wall_us(clock_system()), time);

	struct line l = { .len = 0 };
	put_text(&l, "{\"time\":");
	put_escaped(&l, time);
	put_field(&l, &LOG_STR("level", words[level]));
	put_field(&l, &LOG_STR("program", setup.program));
	put_field(&l, &LOG_STR("event", event));
	if (request_id)
		put_field(&l, &LOG_STR("request_id", request_id));
	for (const struct log_field *f = fields; f->kind != LOG_KIND_END; f++)
		put_field(&l, f);

	const char *tail = l.truncated ? ",\"truncated\":true}\n" : "}\n";
	memcpy(l.text + l.len, tail, strlen(tail));
	l.len += strlen(tail);
	write_line(&l);
	errno = saved;
}

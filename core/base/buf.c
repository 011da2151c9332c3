/* SPDX-License-Identifier: Apache-2.0
 * The growing buffer of buf.h. Not thread-safe; one owner at a time. */
#include "core/base/buf.h"

#include "core/base/err.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BUF_FIRST_BYTES = 256 };

void buf_init(struct buf *b, size_t max_bytes)
{
	*b = (struct buf){ .max_bytes = max_bytes };
}

void buf_finish(struct buf *b)
{
	free(b->data);
	*b = (struct buf){ .max_bytes = b->max_bytes };
}

void buf_reset(struct buf *b)
{
	b->len = 0;
	b->failed = 0;
	if (b->data)
		b->data[0] = '\0';
}

static int fail(struct buf *b, int code)
{
	free(b->data);
	*b = (struct buf){ .max_bytes = b->max_bytes, .failed = code };
	return code;
}

/* Makes room for bytes more and the closing NUL. */
static int reserve(struct buf *b, size_t bytes)
{
	if (b->failed)
		return b->failed;
	if (bytes > b->max_bytes - b->len || b->max_bytes == SIZE_MAX)
		return fail(b, ERR_TOO_LARGE);
	size_t need = b->len + bytes + 1;
	if (need <= b->cap)
		return 0;

	size_t cap = b->cap ? b->cap : BUF_FIRST_BYTES;
	while (cap < need)
		cap = cap > SIZE_MAX / 2 ? need : cap * 2;
	if (cap > b->max_bytes + 1)
		cap = b->max_bytes + 1;
	char *data = realloc(b->data, cap);
	if (!data)
		return fail(b, ERR_NO_MEMORY);
	b->data = data;
	b->cap = cap;
	return 0;
}

int buf_append(struct buf *b, const void *data, size_t bytes)
{
	int r = reserve(b, bytes);
	if (r < 0)
		return r;
	if (bytes)
		memcpy(b->data + b->len, data, bytes);
	b->len += bytes;
	b->data[b->len] = '\0';
	return 0;
}

int buf_str(struct buf *b, const char *s)
{
	return buf_append(b, s, strlen(s));
}

int buf_char(struct buf *b, char c)
{
	return buf_append(b, &c, 1);
}

int buf_printf(struct buf *b, const char *fmt, ...)
{
	va_list args;
	va_start(args, fmt);
	int len = vsnprintf(NULL, 0, fmt, args);
	va_end(args);
	if (len < 0)
		return fail(b, ERR_INTERNAL);

	int r = reserve(b, (size_t)len);
	if (r < 0)
		return r;
	va_start(args, fmt);
	(void)vsnprintf(b->data + b->len, (size_t)len + 1, fmt, args);
	va_end(args);
	b->len += (size_t)len;
	return 0;
}

void buf_consume(struct buf *b, size_t bytes)
{
	assert(bytes <= b->len);
	if (bytes == 0)
		return;
	memmove(b->data, b->data + bytes, b->len - bytes);
	b->len -= bytes;
	b->data[b->len] = '\0';
}

char *buf_take(struct buf *b, size_t *ret_len)
{
	if (b->failed)
		return NULL;
	if (!b->data && reserve(b, 0) < 0)
		return NULL;
	b->data[b->len] = '\0';
	if (ret_len)
		*ret_len = b->len;
	char *data = b->data;
	*b = (struct buf){ .max_bytes = b->max_bytes };
	return data;
}

const char *buf_cstr(const struct buf *b)
{
	return b->data ? b->data : "";
}

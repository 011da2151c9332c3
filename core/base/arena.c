/* SPDX-License-Identifier: Apache-2.0
 * Chunked arena: chunks grow from 4 KiB to 64 KiB, larger requests get their own. used_bytes
 * counts whole chunks, headers too, so max_bytes bounds what malloc was asked for. */
#include "core/base/arena.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	ARENA_ALIGN = 16,
	ARENA_CHUNK_MIN = 4096,
	ARENA_CHUNK_MAX = 65536,
};

struct arena_chunk {
	_Alignas(ARENA_ALIGN) struct arena_chunk *next;
	size_t used;
	size_t size; /* payload bytes behind this header */
	_Alignas(ARENA_ALIGN) char payload[];
};

void arena_init(struct arena *a, size_t max_bytes)
{
	*a = (struct arena){ .max_bytes = max_bytes };
}

void arena_finish(struct arena *a)
{
	struct arena_chunk *c = a->head;
	while (c) {
		struct arena_chunk *next = c->next;
		free(c);
		c = next;
	}
	a->head = NULL;
	a->used_bytes = 0;
}

static struct arena_chunk *add_chunk(struct arena *a, size_t need)
{
	size_t left = a->max_bytes - a->used_bytes;
	if (left <= sizeof(struct arena_chunk) || left - sizeof(struct arena_chunk) < need)
		return NULL;
	left -= sizeof(struct arena_chunk);

	size_t size = a->head ? a->head->size * 2 : ARENA_CHUNK_MIN;
	if (size > ARENA_CHUNK_MAX)
		size = ARENA_CHUNK_MAX;
	if (size < need)
		size = need;
	if (size > left)
		size = left;

	struct arena_chunk *c = malloc(sizeof(*c) + size);
	if (!c)
		return NULL;
	*c = (struct arena_chunk){ .next = a->head, .size = size };
	a->head = c;
	a->used_bytes += sizeof(*c) + size;
	return c;
}

void *arena_alloc(struct arena *a, size_t bytes)
{
	assert(a->used_bytes <= a->max_bytes);
	if (bytes > a->max_bytes)
		return NULL;
	size_t need = bytes ? (bytes + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN : ARENA_ALIGN;
	struct arena_chunk *c = a->head;
	if (!c || c->size - c->used < need) {
		c = add_chunk(a, need);
		if (!c)
			return NULL;
	}
	char *p = c->payload + c->used;
	c->used += need;
	memset(p, 0, need);
	return p;
}

void *arena_array(struct arena *a, size_t count, size_t item_bytes)
{
	size_t bytes;
	if (__builtin_mul_overflow(count, item_bytes, &bytes))
		return NULL;
	return arena_alloc(a, bytes);
}

char *arena_strdup(struct arena *a, const char *s)
{
	return s ? arena_strndup(a, s, strlen(s)) : NULL;
}

char *arena_strndup(struct arena *a, const char *s, size_t bytes)
{
	if (!s)
		return NULL;
	size_t len = strnlen(s, bytes);
	char *copy = arena_alloc(a, len + 1);
	if (copy)
		memcpy(copy, s, len);
	return copy;
}

char *arena_printf(struct arena *a, const char *fmt, ...)
{
	va_list args;
	va_start(args, fmt);
	int len = vsnprintf(NULL, 0, fmt, args);
	va_end(args);
	if (len < 0)
		return NULL;

	char *text = arena_alloc(a, (size_t)len + 1);
	if (!text)
		return NULL;
	va_start(args, fmt);
	(void)vsnprintf(text, (size_t)len + 1, fmt, args);
	va_end(args);
	return text;
}

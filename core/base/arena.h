/* SPDX-License-Identifier: Apache-2.0
 * One arena per request: memory that is freed together. Not thread-safe; one owner at a time. */
#pragma once

#include "core/base/attr.h"

#include <stdint.h>

struct arena_chunk;

struct arena {
	struct arena_chunk *head;
	size_t used_bytes;
	size_t max_bytes;
};

/* Nothing is allocated until the first arena_alloc. max_bytes bounds all of it. */
void arena_init(struct arena *a, size_t max_bytes);
/* Frees everything; the arena may be used again. */
void arena_finish(struct arena *a);

/* Zeroed, 16-byte aligned memory, or NULL at the limit. */
void *arena_alloc(struct arena *a, size_t bytes) must_check;
/* Overflow-checked array. */
void *arena_array(struct arena *a, size_t count, size_t item_bytes) must_check;
/* Copies; NULL in, NULL out; NULL at the limit. */
char *arena_strdup(struct arena *a, const char *s) must_check;
char *arena_strndup(struct arena *a, const char *s, size_t bytes) must_check;
char *arena_printf(struct arena *a, const char *fmt, ...) printf_like(2, 3) must_check;

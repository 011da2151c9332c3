/* SPDX-License-Identifier: Apache-2.0
 * A growing byte buffer with a maximum. After the first failure it is freed, stays failed, and
 * every call returns the same code, so a writer checks once at the end. Always NUL-terminated
 * behind `len`. */
#pragma once

#include "core/base/attr.h"

#include <stdbool.h>
#include <stdint.h>

struct buf {
	char *data; /* NULL until the first append */
	size_t len;
	size_t cap;
	size_t max_bytes;
	int failed; /* 0, ERR_TOO_LARGE or ERR_NO_MEMORY */
};

void buf_init(struct buf *b, size_t max_bytes);
void buf_finish(struct buf *b);
/* Keeps the memory, drops the content and the failure. */
void buf_reset(struct buf *b);

int buf_append(struct buf *b, const void *data, size_t bytes);
int buf_str(struct buf *b, const char *s);
int buf_char(struct buf *b, char c);
int buf_printf(struct buf *b, const char *fmt, ...) printf_like(2, 3);
/* Drops the first bytes (a reader that consumed them). */
void buf_consume(struct buf *b, size_t bytes);
/* Hands the malloc'ed memory over and leaves the buffer empty. "" (malloc'ed) when nothing was
 * written, NULL if failed. */
char *buf_take(struct buf *b, size_t *ret_len) must_check;
/* Never NULL: "" when empty. */
const char *buf_cstr(const struct buf *b);

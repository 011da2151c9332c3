/* SPDX-License-Identifier: Apache-2.0
 * malloc, calloc and realloc of the whole program, in front of glibc's. See fail_malloc.h. */
#include "tests/support/fail_malloc.h"

#include <stddef.h>

extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_realloc(void *p, size_t bytes);
void *malloc(size_t bytes);
void *calloc(size_t count, size_t bytes);
void *realloc(void *p, size_t bytes);

static long left = -1;
static bool happened;

void fail_malloc_after(long after)
{
	left = after;
	happened = false;
}

bool fail_malloc_happened(void)
{
	return happened;
}

static bool fails_now(void)
{
	if (left < 0 || left-- > 0)
		return false;
	happened = true;
	return true;
}

void *malloc(size_t bytes)
{
	return fails_now() ? NULL : __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
	return fails_now() ? NULL : __libc_calloc(count, bytes);
}

void *realloc(void *p, size_t bytes)
{
	return fails_now() ? NULL : __libc_realloc(p, bytes);
}

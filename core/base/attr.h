/* SPDX-License-Identifier: Apache-2.0
 * Compiler attributes and cleanup helpers that every room uses. */
#pragma once

#include <stddef.h>

/* The caller must look at the returned code. */
#define must_check __attribute__((warn_unused_result))
#define printf_like(fmt_index, arg_index) __attribute__((format(printf, fmt_index, arg_index)))

/* Runs fn(&variable) when the variable leaves its scope: `cleanup(json_doc_freep) struct json_doc
 * *d = NULL;` */
#define cleanup(fn) __attribute__((cleanup(fn)))

#define ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))

/* Hands an owned pointer over: evaluates to the pointer and leaves NULL behind. */
#define take_ptr(p)             \
	({                          \
		__auto_type _pp = &(p); \
		__auto_type _v = *_pp;  \
		*_pp = NULL;            \
		_v;                     \
	})

/* free(*p) for a `cleanup(freep) char *x`. */
void freep(void *p);
/* close(*fd) when >= 0, for a `cleanup(closep) int fd`. */
void closep(int *fd);

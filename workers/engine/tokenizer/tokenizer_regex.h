/* SPDX-License-Identifier: Apache-2.0
 * The patterns that a pre-tokenizer splits by: PCRE2's, in tokenizer_regex.c. A trainer that is
 * built alone may be without it (tokenizer_regex_none.c). Compiled patterns are read-only: threads
 * share them, each with a room of its own. Used by the other files of this folder. */
#pragma once

#include "core/base/attr.h"
#include "core/base/buf.h"
#include "core/base/err.h"

#include <stdbool.h>
#include <stddef.h>

struct tokenizer_regex;
struct tokenizer_regex_room; /* a thread's working memory */

/* Answers of a search. */
enum { TOKENIZER_REGEX_NONE, TOKENIZER_REGEX_FOUND, TOKENIZER_REGEX_MORE };

/* A pattern in PCRE2's language, UTF-8, that matches no empty text. INVALID_DATA, of the file's
 * label and with param; UNAVAILABLE in a build without PCRE2. */
int tokenizer_regex_create(const struct buf *pattern, const char *label, const char *param,
	struct tokenizer_regex **ret, struct err *err) must_check;
void tokenizer_regex_destroy(struct tokenizer_regex *r); /* NULL: nothing */

int tokenizer_regex_room_create(struct tokenizer_regex_room **ret, struct err *err) must_check;
void tokenizer_regex_room_destroy(struct tokenizer_regex_room *room);

/* The next match in text[at..bytes); final: the text ends there, otherwise MORE may follow that
 * changes the answer. Negative: an error. */
int tokenizer_regex_find(const struct tokenizer_regex *r, struct tokenizer_regex_room *room,
	const char *text, size_t bytes, size_t at, bool final, size_t *ret_begin, size_t *ret_end,
	struct err *err) must_check;
/* Whether the text begins with a match. */
bool tokenizer_regex_begins(const struct tokenizer_regex *r, const char *text, size_t bytes);

/* SPDX-License-Identifier: Apache-2.0
 * In place of tokenizer_regex.c where PCRE2 is not installed: there is no pattern, so that nothing
 * is ever searched for, and bytes are the only tokenizer. */
#include "workers/engine/tokenizer/tokenizer_regex.h"

int tokenizer_regex_create(const struct buf *pattern, const char *label, const char *param,
	struct tokenizer_regex **ret, struct err *err)
{
	(void)pattern;
	(void)ret;
	return err_set(err, ERR_UNAVAILABLE, param,
		"file %s: a tokenizer's patterns need PCRE2, which this build is without "
		"(libpcre2-dev); \"bytes\" needs no file",
		label);
}

void tokenizer_regex_destroy(struct tokenizer_regex *r)
{
	(void)r;
}

int tokenizer_regex_room_create(struct tokenizer_regex_room **ret, struct err *err)
{
	(void)err;
	*ret = NULL;
	return 0;
}

void tokenizer_regex_room_destroy(struct tokenizer_regex_room *room)
{
	(void)room;
}

int tokenizer_regex_find(const struct tokenizer_regex *r, struct tokenizer_regex_room *room,
	const char *text, size_t bytes, size_t at, bool final, size_t *ret_begin, size_t *ret_end,
	struct err *err)
{
	(void)room;
	(void)text;
	(void)bytes;
	(void)at;
	(void) final;
	(void)ret_begin;
	(void)ret_end;
	return err_set(err, ERR_INTERNAL, NULL, "there is no pattern %p", (const void *)r);
}

bool tokenizer_regex_begins(const struct tokenizer_regex *r, const char *text, size_t bytes)
{
	(void)r;
	(void)text;
	(void)bytes;
	return false;
}

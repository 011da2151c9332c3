/* SPDX-License-Identifier: Apache-2.0
 * Patterns by PCRE2, as machine code where the machine allows it. */
#include "workers/engine/tokenizer/tokenizer_regex.h"

#include <stdlib.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

enum {
	STACK_MIN = 32 * 1024, /* of compiled patterns */
	STACK_MAX = 8 * 1024 * 1024,
};

struct tokenizer_regex {
	pcre2_code *code;
	bool compiled; /* is machine code (a sandbox may forbid that) */
};

struct tokenizer_regex_room {
	pcre2_match_data *match;
	pcre2_match_context *context;
	pcre2_jit_stack *stack;
};

static int compile(const struct buf *pattern, const char *label, const char *param,
	pcre2_code **ret, struct err *err)
{
	pcre2_compile_context *context = pcre2_compile_context_create(NULL);
	if (!context)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for the tokenizer's pattern");
	pcre2_set_newline(context, PCRE2_NEWLINE_LF);
	int code;
	size_t at;
	pcre2_code *compiled = pcre2_compile(
		(PCRE2_SPTR)buf_cstr(pattern), pattern->len, PCRE2_UTF | PCRE2_UCP, &code, &at, context);
	pcre2_compile_context_free(context);
	if (!compiled) {
		PCRE2_UCHAR text[128];
		pcre2_get_error_message(code, text, sizeof(text));
		return err_set(err, ERR_INVALID_DATA, param,
			"file %s: pre_tokenizer: the pattern is not valid: %s", label, (char *)text);
	}
	*ret = compiled;
	return 0;
}

int tokenizer_regex_create(const struct buf *pattern, const char *label, const char *param,
	struct tokenizer_regex **ret, struct err *err)
{
	pcre2_code *code = NULL;
	int rc = compile(pattern, label, param, &code, err);
	if (rc)
		return rc;
	uint32_t empty = 0;
	(void)pcre2_pattern_info(code, PCRE2_INFO_MATCHEMPTY, &empty);
	struct tokenizer_regex *r = empty ? NULL : calloc(1, sizeof(*r));
	if (!r) {
		pcre2_code_free(code);
		return empty
			? err_set(err, ERR_INVALID_DATA, param,
				  "file %s: pre_tokenizer: a pattern that matches nothing at all is not supported",
				  label)
			: err_set(err, ERR_NO_MEMORY, NULL, "no memory for the tokenizer's pattern");
	}
	/* Where there is no compiler for this machine, the interpreter does it. */
	(void)pcre2_jit_compile(code, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD);
	size_t machine_code = 0;
	(void)pcre2_pattern_info(code, PCRE2_INFO_JITSIZE, &machine_code);
	*r = (struct tokenizer_regex){ code, machine_code > 0 };
	*ret = r;
	return 0;
}

void tokenizer_regex_destroy(struct tokenizer_regex *r)
{
	if (!r)
		return;
	pcre2_code_free(r->code);
	free(r);
}

int tokenizer_regex_room_create(struct tokenizer_regex_room **ret, struct err *err)
{
	struct tokenizer_regex_room *room = calloc(1, sizeof(*room));
	if (!room)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for an encoder of the tokenizer");
	uint32_t jit = 0;
	(void)pcre2_config(PCRE2_CONFIG_JIT, &jit);
	room->match = pcre2_match_data_create(1, NULL);
	room->context = pcre2_match_context_create(NULL);
	if (jit)
		room->stack = pcre2_jit_stack_create(STACK_MIN, STACK_MAX, NULL);
	if (!room->match || !room->context || (jit && !room->stack)) {
		tokenizer_regex_room_destroy(room);
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for an encoder of the tokenizer");
	}
	if (jit)
		pcre2_jit_stack_assign(room->context, NULL, room->stack);
	*ret = room;
	return 0;
}

void tokenizer_regex_room_destroy(struct tokenizer_regex_room *room)
{
	if (!room)
		return;
	pcre2_match_data_free(room->match);
	pcre2_match_context_free(room->context);
	if (room->stack)
		pcre2_jit_stack_free(room->stack);
	free(room);
}

int tokenizer_regex_find(const struct tokenizer_regex *r, struct tokenizer_regex_room *room,
	const char *text, size_t bytes, size_t at, bool final, size_t *ret_begin, size_t *ret_end,
	struct err *err)
{
	uint32_t options = final ? 0 : PCRE2_PARTIAL_HARD;
	int rc;
	if (r->compiled)
		rc = pcre2_jit_match(
			r->code, (PCRE2_SPTR)text, bytes, at, options, room->match, room->context);
	else
		rc = pcre2_match(r->code, (PCRE2_SPTR)text, bytes, at, options | PCRE2_NO_UTF_CHECK,
			room->match, room->context);
	if (rc == PCRE2_ERROR_PARTIAL)
		return TOKENIZER_REGEX_MORE;
	if (rc == PCRE2_ERROR_NOMATCH)
		return final ? TOKENIZER_REGEX_NONE : TOKENIZER_REGEX_MORE;
	if (rc < 0) {
		PCRE2_UCHAR why[128];
		pcre2_get_error_message(rc, why, sizeof(why));
		return err_set(err, ERR_INVALID_DATA, NULL,
			"the tokenizer's pattern gave up on the text: %s", (char *)why);
	}
	const size_t *place = pcre2_get_ovector_pointer(room->match);
	*ret_begin = place[0];
	*ret_end = place[1];
	return TOKENIZER_REGEX_FOUND;
}

bool tokenizer_regex_begins(const struct tokenizer_regex *r, const char *text, size_t bytes)
{
	pcre2_match_data *match = pcre2_match_data_create(1, NULL);
	if (!match)
		return false;
	int rc = pcre2_match(
		r->code, (PCRE2_SPTR)text, bytes, 0, PCRE2_ANCHORED | PCRE2_NO_UTF_CHECK, match, NULL);
	pcre2_match_data_free(match);
	return rc > 0;
}

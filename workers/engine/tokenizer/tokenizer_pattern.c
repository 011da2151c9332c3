/* SPDX-License-Identifier: Apache-2.0
 * Patterns of tokenizer.json are written for Oniguruma. What PCRE2 reads alike is copied, what it
 * reads differently is rewritten (white space, newer Unicode), and all else is refused by name.
 * There is no look-behind, so a match depends on what follows its start alone. */
#include "workers/engine/tokenizer/tokenizer_private.h"

#include <stdlib.h>
#include <string.h>

const char tokenizer_gpt2_pattern[] =
	"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/* Unicode's White_Space: PCRE2's \s has U+180E besides. */
#define SPACES                                                                               \
	"\\t-\\r \\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}" \
	"\\x{3000}"

struct reader {
	const struct tokenizer *t;
	const char *begin, *at, *end;
	struct buf out;
};

static int refuse(const struct reader *r, const char *what, struct err *err)
{
	return err_set(err, ERR_INVALID_DATA, r->t->param,
		"file %s: pre_tokenizer: the pattern has %s at character %zu, which is not supported",
		r->t->label, what, (size_t)(r->at - r->begin) + 1);
}

static bool starts(const struct reader *r, const char *text)
{
	size_t n = strlen(text);
	return (size_t)(r->end - r->at) >= n && memcmp(r->at, text, n) == 0;
}

/* A property's name, behind its brace. */
static int property(struct reader *r, char ret_name[static 3], struct err *err)
{
	static const char *const known[] = { "L", "Lu", "Ll", "Lt", "Lm", "Lo", "M", "N", "Nd", "Nl",
		"No", "P", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S", "Sm", "Sc", "Sk", "So", "Z", "Zs",
		"Zl", "Zp" };
	const char *close = memchr(r->at, '}', (size_t)(r->end - r->at));
	for (size_t i = 0; close && i < ARRAY_LEN(known); i++) {
		size_t n = strlen(known[i]);
		if (n == (size_t)(close - r->at) && memcmp(known[i], r->at, n) == 0) {
			memcpy(ret_name, known[i], n + 1);
			r->at = close + 1;
			return 0;
		}
	}
	return refuse(r, "a property", err);
}

/* The content of a class for \p and \s and \d; *ret_negated for \P, \S and \D. false: the escape is
 * none of them and nothing was read. */
static int class_escape(
	struct reader *r, bool *ret_found, bool *ret_negated, struct buf *content, struct err *err)
{
	char name[3] = "Nd";
	char c = r->at[1];
	*ret_found = true;
	*ret_negated = c == 'P' || c == 'S' || c == 'D';
	buf_reset(content);
	if (c == 's' || c == 'S') {
		r->at += 2;
		return buf_str(content, SPACES);
	}
	if ((c == 'p' || c == 'P') && r->end - r->at > 2 && r->at[2] == '{') {
		r->at += 3;
		if (starts(r, "^")) {
			r->at++;
			*ret_negated = !*ret_negated;
		}
		int rc = property(r, name, err);
		if (rc)
			return rc;
	} else if (c == 'd' || c == 'D') {
		r->at += 2;
	} else {
		*ret_found = false;
		return 0;
	}
	buf_printf(content, "\\p{%s}", name);
	tokenizer_unicode_ranges(name, content);
	return 0;
}

/* \r and the like, \uHHHH, and punctuation. */
static int char_escape(struct reader *r, struct err *err)
{
	char c = r->at[1];
	if (strchr("rntfe", c)) {
		buf_append(&r->out, r->at, 2);
	} else if (c == 'v') {
		buf_str(&r->out, "\\x0b");
	} else if (c == 'u') {
		char hex[5] = { 0 };
		for (int i = 0; i < 4; i++) {
			hex[i] = r->at + 2 + i < r->end ? r->at[2 + i] : 0;
			if (!strchr("0123456789abcdefABCDEF", hex[i]) || !hex[i])
				return refuse(r, "an unfinished \\u", err);
		}
		buf_printf(&r->out, "\\x{%s}", hex);
		r->at += 4;
	} else if (c > ' ' && c < 0x7f && !((c | 0x20) >= 'a' && (c | 0x20) <= 'z') &&
		!(c >= '0' && c <= '9')) {
		buf_append(&r->out, r->at, 2);
	} else {
		return refuse(r, "an escape", err);
	}
	r->at += 2;
	return 0;
}

static int escape(struct reader *r, bool in_class, struct err *err)
{
	if (r->end - r->at < 2)
		return refuse(r, "a backslash at its end", err);
	bool found, negated;
	cleanup(buf_finish) struct buf content = { 0 };
	buf_init(&content, TOKENIZER_PATTERN_MAX);
	int rc = class_escape(r, &found, &negated, &content, err);
	if (rc)
		return rc;
	if (!found)
		return char_escape(r, err);
	if (in_class && negated)
		return refuse(r, "a negated property or \\S inside a class", err);
	if (in_class)
		return buf_str(&r->out, buf_cstr(&content));
	return buf_printf(&r->out, "[%s%s]", negated ? "^" : "", buf_cstr(&content));
}

static int class(struct reader *r, struct err *err)
{
	r->at++;
	buf_char(&r->out, '[');
	if (starts(r, "^")) {
		buf_char(&r->out, '^');
		r->at++;
	}
	if (starts(r, "]"))
		return refuse(r, "a class that begins with ]", err);
	while (r->at < r->end && *r->at != ']') {
		if (*r->at == '[')
			return refuse(r, "a class inside a class", err);
		if (starts(r, "&&"))
			return refuse(r, "an intersection of classes", err);
		if (*r->at == '\\') {
			int rc = escape(r, true, err);
			if (rc)
				return rc;
			continue;
		}
		buf_char(&r->out, *r->at++);
	}
	if (r->at == r->end)
		return refuse(r, "a class without end", err);
	r->at++;
	return buf_char(&r->out, ']');
}

static int group(struct reader *r, struct err *err)
{
	static const char *const known[] = { "(?:", "(?i:", "(?=", "(?!", "(?>" };
	for (size_t i = 0; i < ARRAY_LEN(known); i++)
		if (starts(r, known[i])) {
			r->at += strlen(known[i]);
			return buf_str(&r->out, known[i]);
		}
	if (starts(r, "(?"))
		return refuse(r, "a kind of group", err);
	r->at++;
	return buf_str(&r->out, "(?:");
}

/* {n}, {n,} or {n,m}. */
static int count(struct reader *r, struct err *err)
{
	const char *begin = r->at++;
	bool comma = false;
	size_t digits = 0;
	for (; r->at < r->end && *r->at != '}'; r->at++) {
		if (*r->at == ',' && !comma && digits > 0)
			comma = true;
		else if (*r->at >= '0' && *r->at <= '9' && digits < 8)
			digits++;
		else
			return refuse(r, "a brace that is no {n}, {n,} or {n,m}", err);
	}
	if (r->at == r->end || digits == 0)
		return refuse(r, "a brace that is no {n}, {n,} or {n,m}", err);
	r->at++;
	if (starts(r, "+") || (!comma && starts(r, "?")))
		return refuse(r, "a + or ? behind a count", err);
	return buf_append(&r->out, begin, (size_t)(r->at - begin));
}

/* Without regard to case Oniguruma takes ss for U+00DF, and so on; PCRE2 does not. */
static bool folds_to_one(const char *p, const char *end)
{
	static const char *const pairs[] = { "ss", "ff", "fi", "fl", "st" };
	for (size_t i = 0; end - p > 1 && i < ARRAY_LEN(pairs); i++)
		if ((p[0] | 0x20) == pairs[i][0] && (p[1] | 0x20) == pairs[i][1])
			return true;
	return false;
}

static int translate(struct reader *r, struct err *err)
{
	bool caseless = memmem(r->begin, (size_t)(r->end - r->begin), "(?i:", 4) != NULL;
	while (r->at < r->end) {
		int rc = 0;
		char c = *r->at;
		if (c == '\\')
			rc = escape(r, false, err);
		else if (c == '[')
			rc = class(r, err);
		else if (c == '(')
			rc = group(r, err);
		else if (c == '{')
			rc = count(r, err);
		else if (c == '^' || c == '$')
			rc = refuse(r, "an anchor", err);
		else if (caseless && folds_to_one(r->at, r->end))
			rc = refuse(r, "two letters that fold to one, without regard to case,", err);
		else if (c == 0)
			rc = refuse(r, "a zero byte", err);
		else
			buf_char(&r->out, *r->at++);
		if (rc)
			return rc;
	}
	return 0;
}

static int compile(const struct tokenizer *t, const struct buf *pattern,
	struct tokenizer_regex **ret, struct err *err)
{
	if (pattern->failed)
		return err_set(err, ERR_INVALID_DATA, t->param,
			"file %s: pre_tokenizer: the pattern is too long (at most %d bytes)", t->label,
			TOKENIZER_PATTERN_MAX);
	return tokenizer_regex_create(pattern, t->label, t->param, ret, err);
}

int tokenizer_pattern_compile(const struct tokenizer *t, const char *pattern, size_t bytes,
	struct tokenizer_regex **ret, struct err *err)
{
	struct reader r = { .t = t, .begin = pattern, .at = pattern, .end = pattern + bytes };
	buf_init(&r.out, TOKENIZER_PATTERN_MAX);
	int rc = translate(&r, err);
	if (!rc)
		rc = compile(t, &r.out, ret, err);
	buf_finish(&r.out);
	return rc;
}

int tokenizer_pattern_literal(const struct tokenizer *t, const char *text, size_t bytes,
	struct tokenizer_regex **ret, struct err *err)
{
	cleanup(buf_finish) struct buf out = { 0 };
	buf_init(&out, TOKENIZER_PATTERN_MAX);
	for (size_t i = 0; i < bytes; i++) {
		if ((unsigned char)text[i] < 0x80)
			buf_printf(&out, "\\x%02x", (unsigned)text[i]);
		else
			buf_char(&out, text[i]);
	}
	return compile(t, &out, ret, err);
}

int tokenizer_pattern_word_char(struct tokenizer *t, struct err *err)
{
	static const char *const properties[] = { "L", "M", "Nd", "Nl", "Pc" };
	cleanup(buf_finish) struct buf out = { 0 };
	buf_init(&out, TOKENIZER_PATTERN_MAX);
	/* Besides: the joiners, and the letters in circles, which count as alphabetic. */
	buf_str(&out,
		"[\\x{200C}\\x{200D}\\x{24B6}-\\x{24E9}\\x{1F130}-\\x{1F149}\\x{1F150}-\\x{1F169}"
		"\\x{1F170}-\\x{1F189}");
	for (size_t i = 0; i < ARRAY_LEN(properties); i++) {
		buf_printf(&out, "\\p{%s}", properties[i]);
		tokenizer_unicode_ranges(properties[i], &out);
	}
	buf_char(&out, ']');
	return compile(t, &out, &t->word_char, err);
}

bool tokenizer_is_word(const struct tokenizer *t, const char *p, size_t bytes)
{
	return tokenizer_regex_begins(t->word_char, p, bytes > 4 ? 4 : bytes);
}

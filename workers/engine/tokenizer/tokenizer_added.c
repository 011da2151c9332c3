/* SPDX-License-Identifier: Apache-2.0
 * Added tokens: found in a text before anything else happens to it, the first first and of those
 * that begin there the longest. Called by tokenizer_encode.c. */
#include "core/base/utf8.h"
#include "workers/engine/tokenizer/tokenizer_private.h"

#include <stdlib.h>
#include <string.h>

static int32_t new_node(struct tokenizer_trie *trie, struct err *err)
{
	if (trie->count == trie->cap) {
		int32_t cap = trie->cap ? trie->cap * 2 : 256;
		struct tokenizer_node *node = realloc(trie->node, (size_t)cap * sizeof(*node));
		if (!node) {
			(void)err_set(err, ERR_NO_MEMORY, NULL, "no memory for the tokenizer's added tokens");
			return -1;
		}
		trie->node = node;
		trie->cap = cap;
	}
	trie->node[trie->count] = (struct tokenizer_node){ 0 };
	return trie->count++;
}

static int32_t child_of(const struct tokenizer_trie *trie, int32_t node, unsigned char byte)
{
	int32_t child = trie->node[node].child;
	while (child && trie->node[child].byte != byte)
		child = trie->node[child].sibling;
	return child;
}

int tokenizer_trie_put(
	struct tokenizer_trie *trie, const char *text, size_t bytes, int added, struct err *err)
{
	if (!trie->count && new_node(trie, err) < 0)
		return ERR_NO_MEMORY;
	int32_t node = 0;
	for (size_t i = 0; i < bytes; i++) {
		unsigned char byte = (unsigned char)text[i];
		int32_t child = child_of(trie, node, byte);
		if (!child) {
			child = new_node(trie, err);
			if (child < 0)
				return ERR_NO_MEMORY;
			trie->node[child].byte = byte;
			trie->node[child].sibling = trie->node[node].child;
			trie->node[node].child = child;
		}
		node = child;
	}
	trie->node[node].added = added + 1;
	unsigned char first = (unsigned char)text[0];
	trie->begins[first] = true;
	return 0;
}

/* Length of the longest token that begins at p; 0: none. */
static size_t longest(
	const struct tokenizer_trie *trie, const char *p, size_t bytes, int32_t *ret_added)
{
	size_t found = 0;
	int32_t node = 0;
	for (size_t i = 0; i < bytes; i++) {
		node = child_of(trie, node, (unsigned char)p[i]);
		if (!node)
			break;
		if (trie->node[node].added) {
			found = i + 1;
			*ret_added = trie->node[node].added - 1;
		}
	}
	return found;
}

bool tokenizer_trie_overlaps(const struct tokenizer_trie *trie, const char *text, size_t bytes)
{
	for (size_t from = 0; trie->count && from < bytes; from++) {
		int32_t node = 0;
		size_t i = from;
		for (; i < bytes; i++) {
			node = child_of(trie, node, (unsigned char)text[i]);
			if (!node)
				break;
			if (trie->node[node].added)
				return true;
		}
		if (i == bytes)
			return true;
	}
	return false;
}

static uint32_t decode(const char *s, size_t bytes, size_t *ret_bytes)
{
	const unsigned char *u = (const unsigned char *)s;
	size_t n = utf8_next(s, bytes);
	*ret_bytes = n ? n : 1;
	switch (n) {
	case 2: return (uint32_t)(u[0] & 0x1f) << 6 | (u[1] & 0x3fU);
	case 3: return (uint32_t)(u[0] & 0x0f) << 12 | (u[1] & 0x3fU) << 6 | (u[2] & 0x3fU);
	case 4:
		return (uint32_t)(u[0] & 0x07) << 18 | (u[1] & 0x3fU) << 12 | (u[2] & 0x3fU) << 6 |
			(u[3] & 0x3fU);
	default: return u[0];
	}
}

static size_t char_before(const char *text, size_t at)
{
	size_t begin = at - 1;
	while (begin > 0 && at - begin < 4 && ((unsigned char)text[begin] & 0xc0) == 0x80)
		begin--;
	return begin;
}

/* Unicode's White_Space. */
static bool is_space(uint32_t c)
{
	return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
		(c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
		c == 0x3000;
}

static size_t spaces_before(const char *text, size_t at)
{
	while (at > 0) {
		size_t ignored, begin = char_before(text, at);
		if (!is_space(decode(text + begin, at - begin, &ignored)))
			break;
		at = begin;
	}
	return at;
}

size_t tokenizer_spaces_end(const char *text, size_t bytes, size_t at)
{
	while (at < bytes) {
		size_t n;
		if (!is_space(decode(text + at, bytes - at, &n)))
			break;
		at += n;
	}
	return at;
}

/* Whether the characters beside a match allow it. */
static bool stands_alone(
	const struct tokenizer *t, const char *text, size_t bytes, size_t begin, size_t end)
{
	if (begin > 0) {
		size_t before = char_before(text, begin);
		if (tokenizer_is_word(t, text + before, begin - before))
			return false;
	}
	return end == bytes || !tokenizer_is_word(t, text + end, bytes - end);
}

bool tokenizer_trie_find(const struct tokenizer *t, const struct tokenizer_trie *trie,
	const char *text, size_t bytes, size_t from, size_t to, struct tokenizer_match *ret)
{
	if (!trie->count)
		return false;
	for (size_t at = from; at < to;) {
		if (!trie->begins[(unsigned char)text[at]]) {
			at++;
			continue;
		}
		int32_t which = 0;
		size_t n = longest(trie, text + at, bytes - at, &which);
		const struct tokenizer_added *a = &t->added[which];
		if (n == 0) {
			at++;
		} else if (a->single_word && !stands_alone(t, text, bytes, at, at + n)) {
			at += n;
		} else {
			size_t begin = a->lstrip ? spaces_before(text, at) : at;
			*ret = (struct tokenizer_match){ .begin = begin > from ? begin : from,
				.end = a->rstrip ? tokenizer_spaces_end(text, bytes, at + n) : at + n,
				.id = a->id };
			return true;
		}
	}
	return false;
}

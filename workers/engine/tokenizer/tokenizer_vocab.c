/* SPDX-License-Identifier: Apache-2.0
 * The vocabulary of a tokenizer: texts by id, ids by text, merges by pair. Filled by
 * tokenizer_json.c, read by tokenizer_bpe.c. */
#include "workers/engine/tokenizer/tokenizer_private.h"

#include <stdlib.h>
#include <string.h>

enum { TABLE_BITS_MIN = 9 };

uint64_t tokenizer_hash(const void *bytes, size_t count)
{
	const unsigned char *p = bytes;
	uint64_t h = count * UINT64_C(0x9e3779b97f4a7c15);
	for (; count >= 8; p += 8, count -= 8) {
		uint64_t word;
		memcpy(&word, p, 8);
		h = (h ^ word) * UINT64_C(0xff51afd7ed558ccd);
		h ^= h >> 32;
	}
	uint64_t last = 0;
	memcpy(&last, p, count);
	h = (h ^ last) * UINT64_C(0xff51afd7ed558ccd);
	return h ^ h >> 29;
}

/* GPT-2's alphabet: the printable bytes of Latin-1 are themselves; the others, in order, are U+0100
 * and what follows. */
static bool printable(int byte)
{
	return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

int tokenizer_alphabet(const char *s, size_t bytes, size_t *ret_bytes)
{
	unsigned char c = (unsigned char)s[0];
	*ret_bytes = 1;
	if (c < 0x80)
		return printable(c) ? c : -1;
	if (bytes < 2 || (c & 0xe0) != 0xc0)
		return -1;
	*ret_bytes = 2;
	int code = (c & 0x1f) << 6 | ((unsigned char)s[1] & 0x3f);
	if (code < 0x100)
		return printable(code) ? code : -1;
	int rank = code - 0x100;
	for (int byte = 0; byte < 256; byte++)
		if (!printable(byte) && rank-- == 0)
			return byte;
	return -1;
}

static int grow_text(struct tokenizer *t, size_t bytes)
{
	if (t->text_bytes + bytes <= t->text_cap)
		return 0;
	size_t cap = (t->text_bytes + bytes) * 2 + 4096;
	char *text = cap < UINT32_MAX ? realloc(t->text, cap) : NULL;
	if (!text)
		return ERR_NO_MEMORY;
	t->text = text;
	t->text_cap = cap;
	return 0;
}

/* Room for every id up to the next power of two. */
static int grow_ids(struct tokenizer *t, int64_t id)
{
	int64_t cap = t->id_cap ? t->id_cap : 1024;
	while (cap <= id)
		cap *= 2;
	if (cap > t->id_cap) {
		uint32_t *begin = realloc(t->begin, (size_t)cap * sizeof(*begin));
		t->begin = begin ? begin : t->begin;
		uint32_t *length = realloc(t->length, (size_t)cap * sizeof(*length));
		t->length = length ? length : t->length;
		bool *plain = realloc(t->plain, (size_t)cap * sizeof(*plain));
		t->plain = plain ? plain : t->plain;
		if (!begin || !length || !plain)
			return ERR_NO_MEMORY;
		t->id_cap = cap;
	}
	for (; t->vocabulary <= id; t->vocabulary++) {
		t->begin[t->vocabulary] = UINT32_MAX;
		t->plain[t->vocabulary] = false;
	}
	return 0;
}

/* The bytes that a token's text stands for: by the alphabet where all its characters are in it,
 * otherwise as they are (then merging never makes it). */
static size_t decode(const char *text, size_t bytes, char *into, bool *ret_plain)
{
	*ret_plain = false;
	size_t n = 0;
	for (size_t i = 0, step; i < bytes; i += step) {
		int byte = tokenizer_alphabet(text + i, bytes - i, &step);
		if (byte < 0) {
			memcpy(into, text, bytes);
			*ret_plain = true;
			return bytes;
		}
		into[n++] = (char)byte;
	}
	return n;
}

int tokenizer_vocab_put(
	struct tokenizer *t, const char *text, size_t bytes, int64_t id, bool known, struct err *err)
{
	if (id < 0 || id >= TOKENIZER_TOKENS_MAX)
		return err_set(err, ERR_INVALID_DATA, t->param,
			"file %s: token \"%.*s\" has id %lld; ids are 0 to %d", t->label,
			bytes > 64 ? 64 : (int)bytes, text, (long long)id, TOKENIZER_TOKENS_MAX - 1);
	if (grow_text(t, bytes) || grow_ids(t, id))
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for the tokenizer's vocabulary");
	char *into = t->text + t->text_bytes;
	bool plain;
	size_t n = decode(text, bytes, into, &plain);
	if (t->begin[id] != UINT32_MAX) {
		if (known && t->length[id] == n && memcmp(t->text + t->begin[id], into, n) == 0)
			return 0;
		return err_set(err, ERR_INVALID_DATA, t->param, "file %s: two tokens have the id %lld",
			t->label, (long long)id);
	}
	t->begin[id] = (uint32_t)t->text_bytes;
	t->length[id] = (uint32_t)n;
	t->plain[id] = plain;
	t->text_bytes += n;
	return 0;
}

int64_t tokenizer_vocab_text_id(const struct tokenizer *t, const char *text, size_t bytes)
{
	cleanup(freep) char *decoded = malloc(bytes + 1);
	bool plain;
	if (!decoded)
		return -1;
	size_t n = decode(text, bytes, decoded, &plain);
	if (!plain)
		return tokenizer_vocab_find(t, decoded, n);
	/* Few tokens are outside of the alphabet. */
	for (int64_t id = 0; id < t->vocabulary; id++)
		if (t->plain[id] && t->begin[id] != UINT32_MAX && t->length[id] == bytes &&
			memcmp(t->text + t->begin[id], text, bytes) == 0)
			return id;
	return -1;
}

int32_t tokenizer_vocab_find(const struct tokenizer *t, const char *bytes, size_t count)
{
	uint64_t mask = (UINT64_C(1) << t->table.bits) - 1;
	for (uint64_t i = tokenizer_hash(bytes, count) & mask; t->table.slot[i]; i = (i + 1) & mask) {
		int32_t id = t->table.slot[i] - 1;
		if (t->length[id] == count && memcmp(t->text + t->begin[id], bytes, count) == 0)
			return id;
	}
	return -1;
}

static int bits_for(int64_t count)
{
	int bits = TABLE_BITS_MIN;
	while (INT64_C(1) << bits < count * 2)
		bits++;
	return bits;
}

int tokenizer_vocab_finish(struct tokenizer *t, struct err *err)
{
	t->table.bits = bits_for(t->vocabulary);
	t->table.slot = calloc((size_t)1 << t->table.bits, sizeof(*t->table.slot));
	if (!t->table.slot)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for the tokenizer's vocabulary");
	uint64_t mask = (UINT64_C(1) << t->table.bits) - 1;
	for (int64_t id = 0; id < t->vocabulary; id++) {
		if (t->begin[id] == UINT32_MAX)
			continue;
		t->model_tokens++;
		if (t->plain[id])
			continue;
		const char *text = t->text + t->begin[id];
		if (tokenizer_vocab_find(t, text, t->length[id]) >= 0)
			return err_set(err, ERR_INVALID_DATA, t->param,
				"file %s: tokens %d and %lld stand for the same bytes", t->label,
				(int)tokenizer_vocab_find(t, text, t->length[id]), (long long)id);
		uint64_t i = tokenizer_hash(text, t->length[id]) & mask;
		while (t->table.slot[i])
			i = (i + 1) & mask;
		t->table.slot[i] = (int32_t)id + 1;
	}
	for (int byte = 0; byte < 256; byte++) {
		char c = (char)byte;
		t->byte_id[byte] = tokenizer_vocab_find(t, &c, 1);
		if (t->byte_id[byte] < 0)
			return err_set(err, ERR_INVALID_DATA, t->param,
				"file %s: model.vocab has no token for byte 0x%02x; a byte-level vocabulary has "
				"all 256",
				t->label, (unsigned)byte);
	}
	return 0;
}

int tokenizer_merges_init(struct tokenizer_merges *m, int64_t count, struct err *err)
{
	m->bits = bits_for(count);
	m->slot = malloc(sizeof(*m->slot) << m->bits);
	if (!m->slot)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for the tokenizer's merges");
	for (int64_t i = 0; i < INT64_C(1) << m->bits; i++)
		m->slot[i].pair = TOKENIZER_NO_PAIR;
	return 0;
}

static uint64_t place(const struct tokenizer_merges *m, uint64_t pair)
{
	uint64_t mask = (UINT64_C(1) << m->bits) - 1;
	uint64_t h = pair * UINT64_C(0x9e3779b97f4a7c15);
	uint64_t i = (h ^ h >> 32) & mask;
	while (m->slot[i].pair != TOKENIZER_NO_PAIR && m->slot[i].pair != pair)
		i = (i + 1) & mask;
	return i;
}

static uint64_t pair_of(int32_t left, int32_t right)
{
	return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

void tokenizer_merges_put(
	struct tokenizer_merges *m, int32_t left, int32_t right, uint32_t rank, int32_t id)
{
	uint64_t pair = pair_of(left, right);
	/* A pair that comes twice counts where it came last. */
	m->slot[place(m, pair)] = (struct tokenizer_merge){ .pair = pair, .rank = rank, .id = id };
}

const struct tokenizer_merge *tokenizer_merges_find(
	const struct tokenizer_merges *m, int32_t left, int32_t right)
{
	const struct tokenizer_merge *found = &m->slot[place(m, pair_of(left, right))];
	return found->pair == TOKENIZER_NO_PAIR ? NULL : found;
}

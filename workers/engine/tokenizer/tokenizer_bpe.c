/* SPDX-License-Identifier: Apache-2.0
 * Byte-pair encoding of one word: the adjacent pair of the least rank merges, the leftmost first,
 * until none is left. Short words by scanning, long ones with a heap; results of short ones are
 * remembered. Called by tokenizer_encode.c, one owner each. */
#include "workers/engine/tokenizer/tokenizer_private.h"

#include <stdlib.h>
#include <string.h>

enum {
	SHORT_MAX = 48, /* bytes of a word that is merged by scanning */
	CACHED_BYTES_MAX = 24,
	CACHED_IDS_MAX = 8,
	CACHE_BITS = 14,
};
#define NO_RANK UINT32_MAX

struct cached {
	uint8_t bytes, count; /* bytes 0: empty */
	char word[CACHED_BYTES_MAX];
	int32_t ids[CACHED_IDS_MAX];
};

struct symbol {
	int32_t id;
	int32_t previous, next; /* -1: none */
	bool gone;
};

struct candidate {
	uint32_t rank;
	int32_t at;          /* left symbol */
	int32_t left, right; /* what stood there when it was found */
	int32_t id;          /* what it becomes */
};

struct tokenizer_bpe {
	const struct tokenizer *t;
	struct cached *cache;
	int32_t ids[SHORT_MAX];
	/* for long words */
	size_t cap; /* bytes that there is room for */
	struct symbol *symbols;
	struct candidate *heap;
	size_t heap_count;
	int32_t *long_ids;
};

int tokenizer_bpe_create(const struct tokenizer *t, struct tokenizer_bpe **ret, struct err *err)
{
	struct tokenizer_bpe *b = calloc(1, sizeof(*b));
	if (b) {
		b->t = t;
		b->cache = calloc((size_t)1 << CACHE_BITS, sizeof(*b->cache));
	}
	if (!b || !b->cache) {
		tokenizer_bpe_destroy(b);
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for an encoder of the tokenizer");
	}
	*ret = b;
	return 0;
}

void tokenizer_bpe_destroy(struct tokenizer_bpe *b)
{
	if (!b)
		return;
	free(b->cache);
	free(b->symbols);
	free(b->heap);
	free(b->long_ids);
	free(b);
}

static uint32_t rank_of(const struct tokenizer *t, int32_t left, int32_t right, int32_t *ret_id)
{
	const struct tokenizer_merge *m = tokenizer_merges_find(&t->merges, left, right);
	if (!m)
		return NO_RANK;
	*ret_id = m->id;
	return m->rank;
}

static size_t merge_short(struct tokenizer_bpe *b, const char *word, size_t bytes)
{
	const struct tokenizer *t = b->t;
	uint32_t rank[SHORT_MAX]; /* of symbol i and the one behind it */
	int32_t into[SHORT_MAX];
	int32_t *ids = b->ids;
	size_t n = bytes;
	for (size_t i = 0; i < n; i++)
		ids[i] = t->byte_id[(unsigned char)word[i]];
	for (size_t i = 0; i + 1 < n; i++)
		rank[i] = rank_of(t, ids[i], ids[i + 1], &into[i]);
	while (n > 1) {
		size_t best = 0;
		for (size_t i = 1; i + 1 < n; i++)
			if (rank[i] < rank[best])
				best = i;
		if (rank[best] == NO_RANK)
			break;
		ids[best] = into[best];
		n--;
		size_t behind = n - best - 1;
		memmove(&ids[best + 1], &ids[best + 2], behind * sizeof(*ids));
		memmove(&rank[best], &rank[best + 1], behind * sizeof(*rank));
		memmove(&into[best], &into[best + 1], behind * sizeof(*into));
		if (best > 0)
			rank[best - 1] = rank_of(t, ids[best - 1], ids[best], &into[best - 1]);
		if (best + 1 < n)
			rank[best] = rank_of(t, ids[best], ids[best + 1], &into[best]);
	}
	return n;
}

static bool before(const struct candidate *a, const struct candidate *b)
{
	return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static void push(struct tokenizer_bpe *b, int32_t at)
{
	const struct symbol *s = &b->symbols[at];
	if (s->next < 0)
		return;
	struct candidate c = { .at = at, .left = s->id, .right = b->symbols[s->next].id };
	c.rank = rank_of(b->t, c.left, c.right, &c.id);
	if (c.rank == NO_RANK)
		return;
	size_t i = b->heap_count++;
	while (i > 0 && before(&c, &b->heap[(i - 1) / 2])) {
		b->heap[i] = b->heap[(i - 1) / 2];
		i = (i - 1) / 2;
	}
	b->heap[i] = c;
}

static struct candidate pop(struct tokenizer_bpe *b)
{
	struct candidate top = b->heap[0], last = b->heap[--b->heap_count];
	size_t i = 0;
	for (;;) {
		size_t child = 2 * i + 1;
		if (child >= b->heap_count)
			break;
		if (child + 1 < b->heap_count && before(&b->heap[child + 1], &b->heap[child]))
			child++;
		if (!before(&b->heap[child], &last))
			break;
		b->heap[i] = b->heap[child];
		i = child;
	}
	b->heap[i] = last;
	return top;
}

static int reserve(struct tokenizer_bpe *b, size_t bytes, struct err *err)
{
	if (bytes <= b->cap)
		return 0;
	size_t cap = bytes + bytes / 2;
	free(b->symbols);
	free(b->heap);
	free(b->long_ids);
	b->cap = 0;
	b->symbols = malloc(cap * sizeof(*b->symbols));
	/* A pair at first, and two for each merge. */
	b->heap = malloc(cap * 3 * sizeof(*b->heap));
	b->long_ids = malloc(cap * sizeof(*b->long_ids));
	if (!b->symbols || !b->heap || !b->long_ids)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for a word of %zu bytes", bytes);
	b->cap = cap;
	return 0;
}

static size_t merge_long(struct tokenizer_bpe *b, const char *word, size_t bytes)
{
	struct symbol *s = b->symbols;
	int32_t n = (int32_t)bytes;
	for (int32_t i = 0; i < n; i++)
		s[i] = (struct symbol){ .id = b->t->byte_id[(unsigned char)word[i]],
			.previous = i - 1,
			.next = i + 1 < n ? i + 1 : -1 };
	b->heap_count = 0;
	for (int32_t i = 0; i < n; i++)
		push(b, i);
	while (b->heap_count > 0) {
		struct candidate c = pop(b);
		struct symbol *left = &s[c.at];
		if (left->gone || left->id != c.left || left->next < 0 || s[left->next].id != c.right)
			continue;
		struct symbol *right = &s[left->next];
		right->gone = true;
		left->id = c.id;
		left->next = right->next;
		if (left->next >= 0)
			s[left->next].previous = c.at;
		if (left->previous >= 0)
			push(b, left->previous);
		push(b, c.at);
	}
	size_t count = 0;
	for (int32_t i = 0; i >= 0; i = s[i].next)
		b->long_ids[count++] = s[i].id;
	return count;
}

static int too_long(size_t bytes, struct err *err)
{
	return err_set(err, ERR_INVALID_DATA, NULL,
		"the text has a word of %zu bytes (the tokenizer's pattern does not split it); at most %d "
		"are taken",
		bytes, TOKENIZER_WORD_MAX_BYTES);
}

int tokenizer_bpe_word(struct tokenizer_bpe *b, const char *word, size_t bytes,
	const int32_t **ret_ids, size_t *ret_count, struct err *err)
{
	const struct tokenizer *t = b->t;
	if (bytes > TOKENIZER_WORD_MAX_BYTES)
		return too_long(bytes, err);
	if (bytes > SHORT_MAX) {
		int32_t whole = t->ignore_merges ? tokenizer_vocab_find(t, word, bytes) : -1;
		int rc = reserve(b, bytes, err);
		if (rc)
			return rc;
		b->long_ids[0] = whole;
		*ret_count = whole >= 0 ? 1 : merge_long(b, word, bytes);
		*ret_ids = b->long_ids;
		return 0;
	}
	struct cached *c =
		&b->cache[tokenizer_hash(word, bytes) >> 3 & ((UINT64_C(1) << CACHE_BITS) - 1)];
	if (c->bytes == bytes && memcmp(c->word, word, bytes) == 0) {
		*ret_ids = c->ids;
		*ret_count = c->count;
		return 0;
	}
	int32_t whole = t->ignore_merges ? tokenizer_vocab_find(t, word, bytes) : -1;
	size_t count = 1;
	if (whole >= 0)
		b->ids[0] = whole;
	else
		count = merge_short(b, word, bytes);
	if (bytes <= CACHED_BYTES_MAX && count <= CACHED_IDS_MAX) {
		c->bytes = (uint8_t)bytes;
		c->count = (uint8_t)count;
		memcpy(c->word, word, bytes);
		memcpy(c->ids, b->ids, count * sizeof(*b->ids));
	}
	*ret_ids = b->ids;
	*ret_count = count;
	return 0;
}

/* SPDX-License-Identifier: Apache-2.0
 * What the files of a tokenizer share: its tables, and how they are filled from tokenizer.json. */
#pragma once

#include "workers/engine/tokenizer/tokenizer.h"
#include "workers/engine/tokenizer/tokenizer_regex.h"

enum {
	TOKENIZER_STEPS_MAX = 8, /* of the pre-tokenizer */
	TOKENIZER_EXTRA_MAX = 8, /* ids in front, and behind */
	TOKENIZER_ADDED_MAX = 8192,
	/* Bytes between two places where a text may be cut to be normalized; each takes memory for
	 * several characters. */
	TOKENIZER_NFC_RUN_MAX_BYTES = 1 << 20,
	TOKENIZER_ADDED_BYTES_MAX = 1024,  /* of one added token */
	TOKENIZER_PATTERN_MAX = 16 * 1024, /* bytes of a translated pattern */
};

/* Bytes to ids: open addressing over the texts of the tokens. */
struct tokenizer_table {
	int32_t *slot; /* id + 1; 0 = empty; 2^bits slots */
	int bits;
};

/* Two ids to rank and the id of what they become. */
struct tokenizer_merge {
	uint64_t pair; /* left << 32 | right; NO_PAIR = empty */
	uint32_t rank;
	int32_t id;
};
#define TOKENIZER_NO_PAIR UINT64_MAX
struct tokenizer_merges {
	struct tokenizer_merge *slot; /* 2^bits slots */
	int bits;
};

/* One step of the pre-tokenizer, applied to every piece that the one before left. */
struct tokenizer_step {
	bool prefix_space;               /* puts a space in front of a piece that has none */
	struct tokenizer_regex *pattern; /* splits; NULL: does not */
	bool drop_matches, drop_gaps;
};

/* A node of the trie of added tokens; 0 = none, the root is node 0. */
struct tokenizer_node {
	unsigned char byte;
	int32_t child, sibling;
	int32_t added; /* index + 1 of the added token that ends here */
};
struct tokenizer_added {
	int32_t id;
	bool special, lstrip, rstrip, single_word, normalized;
	char *content; /* malloc'ed */
};
struct tokenizer_trie {
	struct tokenizer_node *node;
	int32_t count, cap;
	bool begins[256]; /* bytes that a token begins with */
};

struct tokenizer {
	bool bytes_only;
	bool nfc, ignore_merges, byte_level;
	bool lead_space; /* a text begins with a space, and so does what follows an added token */
	/* Texts of all tokens by id, as the bytes they decode to. */
	char *text;
	size_t text_bytes, text_cap;
	uint32_t *begin; /* id: offset in text; UINT32_MAX: no such id */
	uint32_t *length;
	bool *plain;          /* id: the text is as the file has it, not in the byte-level alphabet */
	int64_t vocabulary;   /* entries of begin and length */
	int64_t id_cap;       /* that there is room for */
	int64_t model_tokens; /* in the model's vocabulary, without those only added */
	struct tokenizer_table table;
	struct tokenizer_merges merges;
	int32_t byte_id[256];
	struct tokenizer_step step[TOKENIZER_STEPS_MAX];
	int step_count;
	struct tokenizer_added *added;
	int added_count;
	/* Those found before the normalizer, those found behind it, and both: where the normalizer
	 * changes nothing, one search serves, for no token of the one overlaps one of the other. */
	struct tokenizer_trie raw, normalized, all;
	struct tokenizer_regex *word_char; /* for single_word: one character of a word */
	int32_t prefix[TOKENIZER_EXTRA_MAX], suffix[TOKENIZER_EXTRA_MAX];
	size_t prefix_count, suffix_count;
	const char *label, *param; /* while it is opened */
};

uint64_t tokenizer_hash(const void *bytes, size_t count);

/* tokenizer_vocab.c */
/* The byte that a character of the byte-level alphabet stands for; -1: none. *ret_bytes: of it. */
int tokenizer_alphabet(const char *s, size_t bytes, size_t *ret_bytes);
/* Adds a token; its text as the file has it. known: it may be there already with the same id. */
int tokenizer_vocab_put(struct tokenizer *t, const char *text, size_t bytes, int64_t id, bool known,
	struct err *err) must_check;
/* The id of a token by its text as the file has it, those only added left out; -1: none. */
int64_t tokenizer_vocab_text_id(const struct tokenizer *t, const char *text, size_t bytes);
/* By its bytes; -1: none. */
int32_t tokenizer_vocab_find(const struct tokenizer *t, const char *bytes, size_t count);
/* After the last token of the model: builds the table; all 256 bytes must be there. */
int tokenizer_vocab_finish(struct tokenizer *t, struct err *err) must_check;
/* count: of the merges that will follow. */
int tokenizer_merges_init(struct tokenizer_merges *m, int64_t count, struct err *err) must_check;
void tokenizer_merges_put(
	struct tokenizer_merges *m, int32_t left, int32_t right, uint32_t rank, int32_t id);
const struct tokenizer_merge *tokenizer_merges_find(
	const struct tokenizer_merges *m, int32_t left, int32_t right);

/* tokenizer_added.c */
struct tokenizer_match {
	size_t begin, end;
	int32_t id;
};
int tokenizer_trie_put(struct tokenizer_trie *trie, const char *text, size_t bytes, int added,
	struct err *err) must_check;
/* Whether the text and a token of the trie can lie over each other. */
bool tokenizer_trie_overlaps(const struct tokenizer_trie *trie, const char *text, size_t bytes);
/* Where white space that begins at `at` ends. */
size_t tokenizer_spaces_end(const char *text, size_t bytes, size_t at);
/* The first added token in text[from..to) (its context may lie outside); false: none. */
bool tokenizer_trie_find(const struct tokenizer *t, const struct tokenizer_trie *trie,
	const char *text, size_t bytes, size_t from, size_t to, struct tokenizer_match *ret);

/* tokenizer_pattern.c: a pattern in the language of tokenizer.json (Oniguruma's) to PCRE2. */
extern const char tokenizer_gpt2_pattern[];
int tokenizer_pattern_compile(const struct tokenizer *t, const char *pattern, size_t bytes,
	struct tokenizer_regex **ret, struct err *err) must_check;
/* Matches exactly this text. */
int tokenizer_pattern_literal(const struct tokenizer *t, const char *text, size_t bytes,
	struct tokenizer_regex **ret, struct err *err) must_check;
/* Compiles what tokenizer_is_word needs. */
int tokenizer_pattern_word_char(struct tokenizer *t, struct err *err) must_check;
/* Whether the character at p belongs to a word. */
bool tokenizer_is_word(const struct tokenizer *t, const char *p, size_t bytes);
/* Ranges that newer Unicode gives to a property than PCRE2 knows, as text of a class. */
void tokenizer_unicode_ranges(const char *property, struct buf *out);

/* tokenizer_nfc.c */
/* Bytes at the start of which the normal form is known to be the same. */
size_t tokenizer_nfc_prefix(const char *text, size_t bytes);
/* The first place behind `from` where a text may be cut and its parts normalized alone. */
size_t tokenizer_nfc_cut(const char *text, size_t bytes, size_t from);
/* Appends. INVALID_DATA: a run longer than TOKENIZER_NFC_RUN_MAX_BYTES; otherwise NO_MEMORY or the
 * buffer's failure. */
int tokenizer_nfc(const char *text, size_t bytes, struct buf *out);

/* tokenizer_json.c: fills t from the file's text. */
int tokenizer_json_read(
	struct tokenizer *t, const char *text, size_t bytes, struct err *err) must_check;
/* tokenizer_json_parts.c: one member of the file, from where it begins. */
struct json_scan;
int tokenizer_json_pre_tokenizer(
	struct tokenizer *t, struct json_scan *s, struct err *err) must_check;
int tokenizer_json_post_processor(
	struct tokenizer *t, struct json_scan *s, struct err *err) must_check;
int tokenizer_json_normalizer(struct tokenizer *t, struct json_scan *s, struct err *err) must_check;
int tokenizer_json_decoder(struct tokenizer *t, struct json_scan *s, struct err *err) must_check;

/* tokenizer_bpe.c: the ids of one word; working memory grows as needed. */
struct tokenizer_bpe;
int tokenizer_bpe_create(
	const struct tokenizer *t, struct tokenizer_bpe **ret, struct err *err) must_check;
void tokenizer_bpe_destroy(struct tokenizer_bpe *b);
/* *ret_ids is valid until the next call. */
int tokenizer_bpe_word(struct tokenizer_bpe *b, const char *word, size_t bytes,
	const int32_t **ret_ids, size_t *ret_count, struct err *err) must_check;

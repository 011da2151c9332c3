/* SPDX-License-Identifier: Apache-2.0
 * Text to token ids and back: single bytes, or the byte-level BPE of a tokenizer.json, with the ids
 * that Hugging Face's library gives. What a file asks for and we do not do exactly is refused when
 * it is opened, never ignored. An open tokenizer is read-only: threads share it, each with an
 * encoder of its own. Used by the data formats and the trainer. */
#pragma once

/* Done: vocabulary, merges (both spellings), ignore_merges; added tokens (lstrip, rstrip,
 * single_word, normalized); normalizer null or NFC; pre-tokenizers ByteLevel, Split (a pattern;
 * Isolated or Removed) and Digits, alone or in a Sequence that ends in ByteLevel; post-processors
 * that add tokens in front and behind (TemplateProcessing, Roberta, Bert). Ignored: truncation and
 * padding, which belong to whoever batches. */

#include "core/base/attr.h"
#include "core/base/buf.h"
#include "core/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	TOKENIZER_FILE_MAX_BYTES = 256 << 20,
	TOKENIZER_TOKENS_MAX = 1 << 22,
	TOKENIZER_WORD_MAX_BYTES = 1 << 20, /* between two places where the pattern splits */
};

struct tokenizer;
struct tokenizer_encoder;

/* A tokenizer.json. label: what errors call it; param: of errors. INVALID_DATA with line and column
 * or the member's path; IO. */
int tokenizer_open(const char *path, const char *label, const char *param, struct tokenizer **ret,
	struct err *err) must_check;
/* Bytes are their own ids, 0 to 255; 0 ends a document. */
int tokenizer_open_bytes(struct tokenizer **ret, struct err *err) must_check;
void tokenizer_close(struct tokenizer *t);
void tokenizer_closep(struct tokenizer **t);

/* 1 + the largest id. */
int64_t tokenizer_vocabulary(const struct tokenizer *t);
/* Bytes of text that an id stands for. */
size_t tokenizer_token_bytes(const struct tokenizer *t, int32_t id);
/* The id of an added token by its text; -1: there is none. */
int32_t tokenizer_added_id(const struct tokenizer *t, const char *text);
/* Ends a document: the first of <|endoftext|>, <|end_of_text|>, </s>, <eos>, <|im_end|> and [EOS]
 * that is an added token; -1: none. */
int32_t tokenizer_end_id(const struct tokenizer *t);
/* What the post-processor puts in front of a text (Llama 3: its begin-of-text token) and behind. */
const int32_t *tokenizer_prefix(const struct tokenizer *t, size_t *ret_count);
const int32_t *tokenizer_suffix(const struct tokenizer *t, size_t *ret_count);

/* Appends the bytes that the ids stand for. UTF-8 when the ids end where a character ends. Ids out
 * of range are left out; special tokens too with skip_special. */
void tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t count,
	bool skip_special, struct buf *out);

/* One thread's working memory; t is borrowed. */
int tokenizer_encoder_create(
	const struct tokenizer *t, struct tokenizer_encoder **ret, struct err *err) must_check;
void tokenizer_encoder_destroy(struct tokenizer_encoder *e);
void tokenizer_encoder_destroyp(struct tokenizer_encoder **e);

/* Gets the ids in order, some at a time. */
typedef int (*tokenizer_sink_fn)(void *ctx, const int32_t *ids, size_t count, struct err *err);
/* The ids of a text, without the post-processor's. text must be UTF-8. INVALID_DATA when a word is
 * too long. */
int tokenizer_encode(struct tokenizer_encoder *e, const char *text, size_t bytes,
	tokenizer_sink_fn sink, void *ctx, struct err *err) must_check;

/* Whether a text may be encoded in parts. Looks at the tokenizer and, for NFC, at the text. */
bool tokenizer_divisible(const struct tokenizer *t, const char *text, size_t bytes);
/* The ids of the words from a boundary on, up to the first boundary at or behind `to`, which is
 * *ret_end. Boundaries are 0 and what *ret_end gave. So the parts of a text, each from where the
 * one before ended, give together what one pass over it gives. A start that is no boundary does no
 * harm but gives other ids. For divisible texts. */
int tokenizer_encode_part(struct tokenizer_encoder *e, const char *text, size_t bytes, size_t from,
	size_t to, tokenizer_sink_fn sink, void *ctx, size_t *ret_end, struct err *err) must_check;

/* SPDX-License-Identifier: Apache-2.0
 * One line of a jsonl file as the text of a document, with what the loss counts. Used by
 * data_jsonl.c; one owner each. */
#pragma once

/* A line is an object with "text"; or with "prompt" and "completion"; or with "messages", a list of
 * {"role", "content"}: one of the system first if at all, then user and assistant in turn. Of the
 * messages of a conversation becomes
 *
 *     <|system|>\n{content}\n<|user|>\n{content}\n<|assistant|>\n{content}{end}\n<|user|>\n ...
 *
 * Loss: fine_tune on texts, completions and what the assistant says, each with its end token;
 * language_model on everything. Each run of text without loss and each with loss is tokenized by
 * itself, so a prompt has the same tokens when the model is asked. */

#include "core/base/buf.h"
#include "core/base/err.h"
#include "workers/engine/data/json_scan.h"

enum { JSONL_LINE_MAX_BYTES = 64 << 20, JSONL_SEGMENTS_MAX = 4096 };

enum jsonl_kind { JSONL_NONE, JSONL_TEXT, JSONL_PAIR, JSONL_MESSAGES };

/* A run of text. */
struct jsonl_segment {
	size_t begin, end; /* in the text */
	bool trained;      /* an end token follows, trained too */
};

/* Working memory for lines; zero-initialise, then jsonl_line_init. */
struct jsonl_line {
	struct buf text, key, word;
	struct jsonl_segment segment[JSONL_SEGMENTS_MAX];
	int count;
	enum jsonl_kind kind;
};

void jsonl_line_init(struct jsonl_line *l);
void jsonl_line_finish(struct jsonl_line *l);
/* Reads one line; s covers it. */
int jsonl_line_read(struct jsonl_line *l, struct json_scan *s, struct err *err) must_check;
const char *jsonl_line_word(enum jsonl_kind kind);

/* SPDX-License-Identifier: Apache-2.0
 * jsonl: each line is a document (jsonl_line.h). Blocks of lines are tokenized by several threads
 * and written, in order, to scratch files; then documents are packed: a window takes the documents
 * that follow each other in the file while they fit. Called by data.c. */
#include "workers/engine/data/data_private.h"
#include "workers/engine/data/jsonl_line.h"
#include "workers/engine/tokenizer/tokenizer.h"

#include <stdlib.h>
#include <string.h>

enum { BLOCK_BYTES = 2 << 20, BLOCKS_PER_THREAD = 2 };

/* Lines [from, to) of a file, and what became of them. */
struct block {
	const struct data_map *m;
	size_t from, to;
	int64_t line; /* of the first */
	uint32_t *tokens;
	size_t token_count, token_cap;
	uint32_t *lengths; /* of the documents, in tokens */
	size_t length_count, length_cap;
	int64_t documents, truncated, trained, trained_bytes;
};

struct jsonl {
	struct data *d;
	const struct data_source *source;
	const struct tokenizer *tokenizer;
	int32_t end;
	bool everything;      /* all tokens count in the loss */
	enum jsonl_kind kind; /* of the first line */
	struct block *block;
	/* What was written. */
	struct data_writer tokens, begins, firsts;
	int64_t token_count, documents, windows;
	int64_t used; /* places of the window that is being filled */
	int64_t trained_bytes;
};

/* The document that a thread is at. */
struct document {
	struct jsonl *x;
	struct block *b;
	size_t begin; /* its first token in the block */
	uint32_t flag;
	bool cut;
};

static int reserve(void *array, size_t *cap, size_t count, struct err *err)
{
	void **p = array;
	if (count <= *cap)
		return 0;
	size_t bigger = count * 2 + 1024;
	void *grown = realloc(*p, bigger * sizeof(uint32_t));
	if (!grown)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for a block of documents");
	*p = grown;
	*cap = bigger;
	return 0;
}

/* At most window + 1 tokens of a document are kept: window places. */
static int put_tokens(void *ctx, const int32_t *ids, size_t count, struct err *err)
{
	struct document *c = ctx;
	struct block *b = c->b;
	size_t room = c->begin + (size_t)c->x->d->window + 1 - b->token_count;
	if (count > room) {
		c->cut = true;
		count = room;
	}
	int rc = reserve(&b->tokens, &b->token_cap, b->token_count + count, err);
	if (rc)
		return rc;
	for (size_t i = 0; i < count; i++) {
		b->tokens[b->token_count++] = (uint32_t)ids[i] | c->flag;
		if (c->flag && b->token_count - 1 > c->begin)
			b->trained_bytes += (int64_t)tokenizer_token_bytes(c->x->tokenizer, ids[i]);
	}
	return c->cut ? ERR_TOO_LARGE : 0;
}

static int put_segment(struct document *c, struct tokenizer_encoder *e, const struct jsonl_line *l,
	const struct jsonl_segment *s, struct err *err)
{
	c->flag = s->trained || c->x->everything ? DATA_TOKEN_TRAINED : 0;
	int rc =
		tokenizer_encode(e, buf_cstr(&l->text) + s->begin, s->end - s->begin, put_tokens, c, err);
	if (rc || !s->trained)
		return rc;
	int64_t bytes = c->b->trained_bytes;
	rc = put_tokens(c, &c->x->end, 1, err);
	c->b->trained_bytes = bytes; /* the end token stands for no text */
	return rc;
}

static int put_document(struct jsonl *x, struct block *b, struct tokenizer_encoder *e,
	const struct jsonl_line *l, struct err *err)
{
	struct document c = { .x = x, .b = b, .begin = b->token_count };
	c.flag = x->everything ? DATA_TOKEN_TRAINED : 0;
	size_t count;
	const int32_t *prefix = tokenizer_prefix(x->tokenizer, &count);
	int rc = put_tokens(&c, prefix, count, err);
	for (int i = 0; i < l->count && !rc; i++)
		rc = put_segment(&c, e, l, &l->segment[i], err);
	if (rc && !(c.cut && rc == ERR_TOO_LARGE))
		return rc;
	b->truncated += c.cut;
	int64_t trained = 0;
	for (size_t i = c.begin + 1; i < b->token_count; i++)
		trained += b->tokens[i] >> 31;
	if (trained == 0) {
		/* What it would teach was cut off: it takes no place. */
		b->token_count = c.begin;
		return 0;
	}
	b->trained += trained;
	rc = reserve(&b->lengths, &b->length_cap, b->length_count + 1, err);
	if (!rc)
		b->lengths[b->length_count++] = (uint32_t)(b->token_count - c.begin);
	return rc;
}

static int check_line(
	const struct jsonl *x, const struct jsonl_line *l, const struct json_scan *s, struct err *err)
{
	if (l->kind != x->kind)
		return json_scan_error(s, err, "this line has %s, the first line of the data %s",
			jsonl_line_word(l->kind), jsonl_line_word(x->kind));
	bool bytes = x->source->spec->data.tokenizer == SPEC_TOKENIZER_BYTES;
	if (bytes && memchr(buf_cstr(&l->text), 0, l->text.len))
		return json_scan_error(
			s, err, "the text has a zero byte (\\u0000), which ends documents with this tokenizer");
	return 0;
}

static size_t line_end(const struct data_map *m, size_t from)
{
	const unsigned char *p = memchr(m->bytes + from, '\n', m->size - from);
	return p ? (size_t)(p - m->bytes) : m->size;
}

static bool is_blank(const unsigned char *p, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (p[i] != ' ' && p[i] != '\t' && p[i] != '\r')
			return false;
	return true;
}

static int read_lines(struct jsonl *x, struct block *b, struct tokenizer_encoder *e,
	struct jsonl_line *l, struct err *err)
{
	int64_t line = b->line;
	for (size_t at = b->from, end; at < b->to; at = end + 1, line++) {
		end = line_end(b->m, at);
		if (is_blank(b->m->bytes + at, end - at))
			continue;
		if (end - at > JSONL_LINE_MAX_BYTES)
			return err_set(err, ERR_INVALID_DATA, x->source->param,
				"file %s, line %lld has %zu bytes; at most %d are read", b->m->label,
				(long long)line, end - at, JSONL_LINE_MAX_BYTES);
		struct json_scan s;
		json_scan_init(
			&s, (const char *)b->m->bytes + at, end - at, line, b->m->label, x->source->param);
		int rc = jsonl_line_read(l, &s, err);
		if (!rc)
			rc = check_line(x, l, &s, err);
		struct err why = { 0 };
		if (!rc) {
			b->documents++;
			rc = put_document(x, b, e, l, &why);
			if (rc == ERR_INVALID_DATA)
				rc = json_scan_error(&s, err, "%s", why.message);
			else if (rc && err)
				*err = why;
		}
		if (rc)
			return rc;
	}
	return 0;
}

static int read_block(void *ctx, int64_t i, struct err *err)
{
	struct jsonl *x = ctx;
	struct block *b = &x->block[i];
	cleanup(tokenizer_encoder_destroyp) struct tokenizer_encoder *e = NULL;
	struct jsonl_line *l = calloc(1, sizeof(*l));
	if (!l)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for a line");
	jsonl_line_init(l);
	int rc = tokenizer_encoder_create(x->tokenizer, &e, err);
	if (!rc)
		rc = read_lines(x, b, e, l, err);
	jsonl_line_finish(l);
	free(l);
	return rc;
}

/* Where the window goes on, or a new one begins. */
static int place(struct jsonl *x, int64_t places, struct err *err)
{
	bool packing = x->source->spec->data.packing;
	bool fits = packing && x->windows > 0 && x->used + places <= x->d->window;
	if (fits) {
		x->used += places;
		return 0;
	}
	x->windows++;
	x->used = places;
	return packing ? data_writer_put(&x->firsts, &x->documents, sizeof(x->documents), err) : 0;
}

static int append_block(struct jsonl *x, struct block *b, struct err *err)
{
	struct data_info *info = &x->d->info;
	int rc = data_writer_put(&x->tokens, b->tokens, b->token_count * sizeof(*b->tokens), err);
	for (size_t i = 0; i < b->length_count && !rc; i++) {
		rc = place(x, (int64_t)b->lengths[i] - 1, err);
		if (!rc)
			rc = data_writer_put(&x->begins, &x->token_count, sizeof(x->token_count), err);
		x->token_count += b->lengths[i];
		x->documents++;
	}
	info->documents += b->documents;
	info->truncated += b->truncated;
	info->tokens += b->trained;
	x->trained_bytes += b->trained_bytes;
	b->token_count = b->length_count = 0;
	b->documents = b->truncated = b->trained = b->trained_bytes = 0;
	return rc;
}

/* One file, in rounds of blocks. */
static int read_file(struct jsonl *x, const struct data_map *m, int blocks, struct err *err)
{
	int64_t line = 1;
	for (size_t at = 0; at < m->size;) {
		int count = 0;
		for (; count < blocks && at < m->size; count++) {
			struct block *b = &x->block[count];
			size_t end = m->size - at > BLOCK_BYTES ? line_end(m, at + BLOCK_BYTES) + 1 : m->size;
			b->m = m;
			b->from = at;
			b->to = end < m->size ? end : m->size;
			b->line = line;
			for (size_t i = at; i < b->to; i++)
				line += m->bytes[i] == '\n';
			at = b->to;
		}
		int rc = data_parallel(x->source->threads, count, read_block, x, err);
		for (int i = 0; i < count && !rc; i++)
			rc = append_block(x, &x->block[i], err);
		if (rc)
			return rc;
	}
	return 0;
}

/* The kind of the first line decides for all. */
static int find_kind(struct jsonl *x, struct err *err)
{
	const struct data_map *m = &x->d->map[0];
	int64_t line = 1;
	size_t at = 0, end;
	for (;; at = end + 1, line++) {
		end = at < m->size ? line_end(m, at) : m->size;
		if (at >= m->size)
			return err_set(
				err, ERR_INVALID_DATA, x->source->param, "file %s has no lines", m->label);
		if (!is_blank(m->bytes + at, end - at))
			break;
	}
	struct jsonl_line *l = calloc(1, sizeof(*l));
	if (!l)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for a line");
	jsonl_line_init(l);
	struct json_scan s;
	json_scan_init(&s, (const char *)m->bytes + at, end - at, line, m->label, x->source->param);
	int rc = jsonl_line_read(l, &s, err);
	x->kind = l->kind;
	jsonl_line_finish(l);
	free(l);
	return rc;
}

static int finish(struct jsonl *x, struct err *err)
{
	struct data *d = x->d;
	bool packing = x->source->spec->data.packing;
	int rc = data_writer_put(&x->begins, &x->token_count, sizeof(x->token_count), err);
	if (!rc && packing)
		rc = data_writer_put(&x->firsts, &x->documents, sizeof(x->documents), err);
	struct data_writer *w[DATA_SCRATCHES] = { &x->tokens, &x->begins, &x->firsts };
	for (int i = 0; i < DATA_SCRATCHES && !rc; i++) {
		rc = data_writer_flush(w[i], err);
		if (!rc)
			rc = data_scratch_map(&d->scratch[i], data_writer_at(w[i]), err);
	}
	if (rc)
		return rc;
	d->documents.tokens = (const uint32_t *)(const void *)d->scratch[0].bytes;
	d->documents.begin = (const int64_t *)(const void *)d->scratch[1].bytes;
	d->documents.first = packing ? (const int64_t *)(const void *)d->scratch[2].bytes : NULL;
	d->info.samples = x->windows;
	d->info.vocabulary = tokenizer_vocabulary(x->tokenizer);
	if (d->info.samples < 1)
		return err_set(err, ERR_INVALID_DATA, x->source->param,
			"file %s: in sequences of %lld tokens no document keeps a token to train on",
			d->map[0].label, (long long)d->window);
	d->info.bytes_per_token = x->source->spec->data.tokenizer == SPEC_TOKENIZER_BYTES
		? 1
		: (double)x->trained_bytes / (double)d->info.tokens;
	d->reader = &data_documents_reader;
	return 0;
}

static int read_all(struct jsonl *x, struct err *err)
{
	int blocks = x->source->threads * BLOCKS_PER_THREAD;
	struct data *d = x->d;
	struct data_writer *w[DATA_SCRATCHES] = { &x->tokens, &x->begins, &x->firsts };
	int rc = 0;
	for (int i = 0; i < DATA_SCRATCHES && !rc; i++) {
		rc = data_scratch_open(&d->scratch[i], x->source, err);
		if (!rc)
			rc = data_writer_open(w[i], &d->scratch[i], 0, err);
	}
	x->block = calloc((size_t)blocks, sizeof(*x->block));
	if (!rc && !x->block)
		rc = err_set(err, ERR_NO_MEMORY, NULL, "no memory for blocks of lines");
	for (int i = 0; i < d->map_count && !rc; i++)
		rc = read_file(x, &d->map[i], blocks, err);
	if (!rc)
		rc = finish(x, err);
	for (int i = 0; i < DATA_SCRATCHES; i++)
		data_writer_close(w[i]);
	for (int i = 0; i < blocks && x->block; i++) {
		free(x->block[i].tokens);
		free(x->block[i].lengths);
	}
	free(x->block);
	return rc;
}

int data_jsonl_open(struct data *d, const struct data_source *s, struct err *err)
{
	cleanup(tokenizer_closep) struct tokenizer *t = NULL;
	int rc = data_tokenizer_open(s, &t, err);
	if (rc)
		return rc;
	struct jsonl x = { .d = d,
		.source = s,
		.tokenizer = t,
		.end = tokenizer_end_id(t),
		.everything = d->task == SPEC_LANGUAGE_MODEL };
	if (x.end < 0)
		return err_set(err, ERR_INVALID_DATA, "data.tokenizer",
			"the tokenizer has no token that ends a document (<|endoftext|>, <|end_of_text|>, "
			"</s>, <eos>, <|im_end|> or [EOS])");
	rc = find_kind(&x, err);
	return rc ? rc : read_all(&x, err);
}

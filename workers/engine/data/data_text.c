/* SPDX-License-Identifier: Apache-2.0
 * Running text. With the byte tokenizer the files follow each other as one stream of bytes; with
 * another each is tokenized when it is opened, and their tokens follow each other. Called by
 * data.c. */
#include "core/base/utf8.h"
#include "workers/engine/data/data_private.h"
#include "workers/engine/tokenizer/tokenizer.h"

#include <math.h>
#include <stdlib.h>

enum {
	PART_BYTES = 4 << 20,  /* tokenized by one thread at a time */
	CUT_BYTES = 64 * 1024, /* looked through for a good place to cut */
};

int data_check_utf8(const struct data_map *m, const char *param, struct err *err)
{
	size_t at = utf8_valid_prefix((const char *)m->bytes, m->size);
	if (at == m->size)
		return 0;
	int64_t line = 1;
	for (size_t i = 0; i < at; i++)
		line += m->bytes[i] == '\n';
	return err_set(err, ERR_INVALID_DATA, param,
		"file %s is not UTF-8: byte 0x%02x at offset %zu (line %lld)", m->label, m->bytes[at], at,
		(long long)line);
}

static double entropy_bits(const struct data *d)
{
	int64_t count[256] = { 0 };
	for (int i = 0; i < d->map_count; i++)
		for (size_t k = 0; k < d->map[i].size; k++)
			count[d->map[i].bytes[k]]++;
	double bits = 0;
	for (int i = 0; i < 256; i++)
		if (count[i] > 0)
			bits -= (double)count[i] * log2((double)count[i] / (double)d->info.bytes);
	return bits / (double)d->info.bytes;
}

static int open_bytes(struct data *d, const struct data_source *s, struct err *err)
{
	if (d->info.bytes < d->window + 1)
		return err_set(err, ERR_INVALID_DATA, s->param,
			"the text (%s) has %lld bytes; one sample of sequence_length %lld needs %lld",
			d->map[0].label, (long long)d->info.bytes, (long long)d->window,
			(long long)d->window + 1);
	struct data_segment *segments = calloc((size_t)d->map_count + 1, sizeof(*segments));
	if (!segments)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for the data set");
	int64_t counts[SPEC_FILES_MAX];
	for (int i = 0; i < d->map_count; i++) {
		segments[i] = (struct data_segment){ .at = d->map[i].bytes, .token_bytes = 1 };
		counts[i] = (int64_t)d->map[i].size;
	}
	data_stream_attach(d, segments, counts, d->map_count);
	d->info.vocabulary = 256;
	d->info.bytes_per_token = 1;
	return 0;
}

/* A part of a file, tokenized by one thread from where a word probably begins. The parts before it
 * say where one really does; where that is another place, the part is done again. */
struct part {
	int file;
	size_t from, to, end; /* end: the boundary where it stopped */
	int64_t count;        /* of tokens */
	int64_t offset;       /* of its tokens in the scratch file */
	bool again;           /* more than its place in the scratch file holds, or it began inside of
						   * something that cannot be read from there */
};

struct tokenizing {
	struct data *d;
	const struct data_source *source;
	const struct tokenizer *tokenizer;
	struct part *part;
	int64_t count;
	int token_bytes;
	int64_t tail; /* where the scratch file has room for parts that are done again */
};

/* Where a piece of about PART_BYTES may end: between a letter and a space no usual pattern has a
 * word. */
static size_t cut(const struct data_map *m, size_t from)
{
	if (m->size - from <= PART_BYTES + CUT_BYTES)
		return m->size;
	size_t at = from + PART_BYTES, stop = at + CUT_BYTES;
	for (size_t i = at; i < stop; i++) {
		unsigned char before = m->bytes[i - 1] | 0x20, c = m->bytes[i];
		if (before >= 'a' && before <= 'z' && (c == ' ' || c == '\n'))
			return i;
	}
	while ((m->bytes[at] & 0xc0) == 0x80)
		at++;
	return at;
}

static int plan_parts(struct tokenizing *x, struct err *err)
{
	size_t most = 0;
	for (int f = 0; f < x->d->map_count; f++)
		most += x->d->map[f].size / PART_BYTES + 1;
	x->part = calloc(most, sizeof(*x->part));
	if (!x->part)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory to tokenize the text");
	for (int f = 0; f < x->d->map_count; f++) {
		const struct data_map *m = &x->d->map[f];
		bool divisible = tokenizer_divisible(x->tokenizer, (const char *)m->bytes, m->size);
		for (size_t from = 0; from < m->size;) {
			size_t to = divisible ? cut(m, from) : m->size;
			x->part[x->count++] =
				(struct part){ .file = f, .from = from, .to = to, .offset = x->tail };
			/* A token is at least a byte, but for a space put in front of each section. */
			x->tail += (int64_t)(to - from) * x->token_bytes;
			from = to;
		}
	}
	return 0;
}

/* Where the tokens of a part go. */
struct sink {
	struct tokenizing *x;
	struct part *part;
	int64_t room; /* tokens */
	struct data_writer writer;
};

static int put_tokens(void *ctx, const int32_t *ids, size_t count, struct err *err)
{
	struct sink *s = ctx;
	if (s->part->count + (int64_t)count > s->room) {
		s->part->again = true;
		return ERR_TOO_LARGE;
	}
	s->part->count += (int64_t)count;
	if (s->x->token_bytes == sizeof(int32_t))
		return data_writer_put(&s->writer, ids, count * sizeof(*ids), err);
	for (size_t i = 0; i < count; i++) {
		uint16_t id = (uint16_t)ids[i];
		int rc = data_writer_put(&s->writer, &id, sizeof(id), err);
		if (rc)
			return rc;
	}
	return 0;
}

static int tokenize(struct tokenizing *x, struct part *p, int64_t room, struct err *err)
{
	const struct data_map *m = &x->d->map[p->file];
	cleanup(tokenizer_encoder_destroyp) struct tokenizer_encoder *e = NULL;
	struct sink s = { .x = x, .part = p, .room = room };
	int rc = tokenizer_encoder_create(x->tokenizer, &e, err);
	if (!rc)
		rc = data_writer_open(&s.writer, &x->d->scratch[0], p->offset, err);
	p->count = 0;
	p->again = false;
	struct err why = { 0 };
	if (!rc && p->from == 0 && p->to == m->size) {
		rc = tokenizer_encode(e, (const char *)m->bytes, m->size, put_tokens, &s, &why);
		p->end = m->size;
	} else if (!rc) {
		rc = tokenizer_encode_part(
			e, (const char *)m->bytes, m->size, p->from, p->to, put_tokens, &s, &p->end, &why);
	}
	if (!rc)
		rc = data_writer_flush(&s.writer, &why);
	data_writer_close(&s.writer);
	if (p->again)
		return 0;
	if (rc == ERR_INVALID_DATA)
		return err_set(err, rc, x->source->param, "file %s, in the part from offset %zu on: %s",
			m->label, p->from, why.message);
	if (rc && why.code)
		*err = why;
	return rc;
}

static int tokenize_part(void *ctx, int64_t i, struct err *err)
{
	struct tokenizing *x = ctx;
	struct part *p = &x->part[i];
	struct err why = { 0 };
	int rc = tokenize(x, p, (int64_t)(p->to - p->from), &why);
	if (rc == ERR_INVALID_DATA && p->from > 0) {
		/* Where it really begins it may be read. */
		p->again = true;
		return 0;
	}
	if (rc && err)
		*err = why;
	return rc;
}

/* Each part must begin where the one before ended. */
static int join_parts(struct tokenizing *x, struct err *err)
{
	size_t expected = 0;
	for (int64_t i = 0; i < x->count; i++) {
		struct part *p = &x->part[i];
		if (i == 0 || p->file != p[-1].file)
			expected = 0;
		if (expected >= p->to) {
			p->count = 0;
			continue;
		}
		if (p->from != expected || p->again) {
			p->from = expected;
			p->offset = x->tail;
			int rc = tokenize(x, p, INT64_MAX, err);
			if (rc)
				return rc;
			x->tail += p->count * x->token_bytes;
		}
		expected = p->end;
	}
	return 0;
}

static int attach_parts(struct tokenizing *x, struct err *err)
{
	struct data *d = x->d;
	int rc = data_scratch_map(&d->scratch[0], x->tail, err);
	if (rc)
		return rc;
	struct data_segment *segments = calloc((size_t)x->count + 1, sizeof(*segments));
	cleanup(freep) int64_t *counts = calloc((size_t)x->count, sizeof(*counts));
	if (!segments || !counts) {
		free(segments);
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for the data set");
	}
	for (int64_t i = 0; i < x->count; i++) {
		segments[i] = (struct data_segment){ .at = d->scratch[0].bytes + x->part[i].offset,
			.token_bytes = x->token_bytes };
		counts[i] = x->part[i].count;
	}
	data_stream_attach(d, segments, counts, x->count);
	if (d->info.samples < 1)
		return err_set(err, ERR_INVALID_DATA, x->source->param,
			"the text (%s) has %lld tokens; one sample of sequence_length %lld needs %lld",
			d->map[0].label, (long long)d->stream.segment[d->stream.count].begin,
			(long long)d->window, (long long)d->window + 1);
	d->info.bytes_per_token = (double)d->info.bytes / (double)d->info.tokens;
	return 0;
}

static int open_tokenized(struct data *d, const struct data_source *s, struct err *err)
{
	cleanup(tokenizer_closep) struct tokenizer *t = NULL;
	int rc = data_tokenizer_open(s, &t, err);
	if (rc)
		return rc;
	d->info.vocabulary = tokenizer_vocabulary(t);
	struct tokenizing x = { .d = d, .source = s, .tokenizer = t };
	x.token_bytes = d->info.vocabulary <= UINT16_MAX + 1 ? 2 : 4;
	rc = data_scratch_open(&d->scratch[0], s, err);
	if (!rc)
		rc = plan_parts(&x, err);
	if (!rc)
		rc = data_parallel(s->threads, x.count, tokenize_part, &x, err);
	if (!rc)
		rc = join_parts(&x, err);
	if (!rc)
		rc = attach_parts(&x, err);
	free(x.part);
	return rc;
}

int data_text_open(struct data *d, const struct data_source *s, struct err *err)
{
	for (int i = 0; i < d->map_count; i++) {
		int rc = data_check_utf8(&d->map[i], s->param, err);
		if (rc)
			return rc;
	}
	d->info.entropy_bits_per_byte = entropy_bits(d);
	return s->spec->data.tokenizer == SPEC_TOKENIZER_BYTES ? open_bytes(d, s, err)
														   : open_tokenized(d, s, err);
}

/* SPDX-License-Identifier: Apache-2.0
 * Text to ids: sections between added tokens, pieces between matches of the patterns, words. The
 * end of a section is looked for only as far as needed: a match that reaches the end of what was
 * looked at is tried again with more. So a text of any size takes little memory. One owner each. */
#include "workers/engine/tokenizer/tokenizer_private.h"

#include <stdlib.h>
#include <string.h>

enum {
	LOOK_BYTES = 64 * 1024,                 /* of a section, at first */
	LEAD_BYTES = 4096,                      /* of a section that gets a space in front, at first */
	NORMAL_BYTES = 256 * 1024,              /* normalized at a time */
	OUT_IDS = 4096,                         /* collected for the sink */
	MARGIN = 2 * TOKENIZER_ADDED_BYTES_MAX, /* where more text may change what is found */
};

struct tokenizer_encoder {
	const struct tokenizer *t;
	struct tokenizer_bpe *bpe;
	struct tokenizer_regex_room *room;
	struct buf lead, normal;
	struct buf spaced[TOKENIZER_STEPS_MAX];
	int32_t out[OUT_IDS];
	size_t out_count;
	tokenizer_sink_fn sink;
	void *ctx;
};

/* A text, or the normal form of one as far as it was made. */
struct source {
	const char *text;
	size_t have;
	bool final;
	const char *raw; /* what is still to be normalized */
	size_t raw_bytes;
};

/* What was looked at behind a place: [place, end) has no added token. */
struct look {
	size_t end;
	bool final; /* the section ends there */
	bool token; /* because of this one */
	struct tokenizer_match match;
};

/* A piece of a section: what lies before a match, and the match. */
struct piece {
	const char *text;
	size_t begin, end;
};

int tokenizer_encoder_create(
	const struct tokenizer *t, struct tokenizer_encoder **ret, struct err *err)
{
	cleanup(tokenizer_encoder_destroyp) struct tokenizer_encoder *e = calloc(1, sizeof(*e));
	if (!e)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for an encoder of the tokenizer");
	e->t = t;
	buf_init(&e->lead, SIZE_MAX / 2);
	buf_init(&e->normal, SIZE_MAX / 2);
	for (int i = 0; i < TOKENIZER_STEPS_MAX; i++)
		buf_init(&e->spaced[i], SIZE_MAX / 2);
	int rc = tokenizer_regex_room_create(&e->room, err);
	if (!rc)
		rc = tokenizer_bpe_create(t, &e->bpe, err);
	if (!rc)
		*ret = take_ptr(e);
	return rc;
}

void tokenizer_encoder_destroy(struct tokenizer_encoder *e)
{
	if (!e)
		return;
	tokenizer_bpe_destroy(e->bpe);
	tokenizer_regex_room_destroy(e->room);
	buf_finish(&e->lead);
	buf_finish(&e->normal);
	for (int i = 0; i < TOKENIZER_STEPS_MAX; i++)
		buf_finish(&e->spaced[i]);
	free(e);
}

void tokenizer_encoder_destroyp(struct tokenizer_encoder **e)
{
	tokenizer_encoder_destroy(*e);
	*e = NULL;
}

static int flush(struct tokenizer_encoder *e, struct err *err)
{
	size_t count = e->out_count;
	e->out_count = 0;
	return count > 0 ? e->sink(e->ctx, e->out, count, err) : 0;
}

static int emit(struct tokenizer_encoder *e, const int32_t *ids, size_t count, struct err *err)
{
	if (count > OUT_IDS - e->out_count) {
		int rc = flush(e, err);
		if (rc)
			return rc;
		if (count > OUT_IDS)
			return e->sink(e->ctx, ids, count, err);
	}
	for (size_t i = 0; i < count; i++)
		e->out[e->out_count + i] = ids[i];
	e->out_count += count;
	return 0;
}

static int word(struct tokenizer_encoder *e, const char *text, size_t bytes, struct err *err)
{
	const int32_t *ids;
	size_t count;
	int rc = tokenizer_bpe_word(e->bpe, text, bytes, &ids, &count, err);
	return rc ? rc : emit(e, ids, count, err);
}

/* The next match in text[at..bytes); final: the text ends there. Negative: an error. */
static int find(struct tokenizer_encoder *e, const struct tokenizer_step *s, const char *text,
	size_t bytes, size_t at, bool final, struct piece *ret, struct err *err)
{
	int found = tokenizer_regex_find(
		s->pattern, e->room, text, bytes, at, final, &ret->begin, &ret->end, err);
	if (found == TOKENIZER_REGEX_FOUND)
		ret->text = text;
	return found;
}

static int pieces(
	struct tokenizer_encoder *e, int level, const char *text, size_t bytes, struct err *err);

/* What a match leaves of text[from..match end): the gap before it and itself. */
static int leave(
	struct tokenizer_encoder *e, int level, size_t from, const struct piece *m, struct err *err)
{
	const struct tokenizer_step *s = &e->t->step[level];
	int rc = 0;
	if (m->begin > from && !s->drop_gaps)
		rc = pieces(e, level + 1, m->text + from, m->begin - from, err);
	if (!rc && m->end > m->begin && !s->drop_matches)
		rc = pieces(e, level + 1, m->text + m->begin, m->end - m->begin, err);
	return rc;
}

/* Applies the steps from `level` on to a piece that is complete. */
static int pieces(
	struct tokenizer_encoder *e, int level, const char *text, size_t bytes, struct err *err)
{
	if (level == e->t->step_count)
		return word(e, text, bytes, err);
	const struct tokenizer_step *s = &e->t->step[level];
	if (s->prefix_space) {
		if (text[0] == ' ')
			return pieces(e, level + 1, text, bytes, err);
		struct buf *b = &e->spaced[level];
		buf_reset(b);
		buf_char(b, ' ');
		if (buf_append(b, text, bytes))
			return err_set(err, ERR_NO_MEMORY, NULL, "no memory for a piece of the text");
		return pieces(e, level + 1, b->data, b->len, err);
	}
	for (size_t at = 0; at < bytes;) {
		struct piece m = { .text = text };
		int found = find(e, s, text, bytes, at, true, &m, err);
		if (found < 0)
			return found;
		if (found == TOKENIZER_REGEX_NONE)
			m.begin = m.end = bytes;
		int rc = leave(e, level, at, &m, err);
		if (rc)
			return rc;
		at = m.end;
	}
	return 0;
}

/* Normalizes more; keeps what is behind *at, which moves with it. */
static int extend(struct tokenizer_encoder *e, struct source *s, size_t *at, struct err *err)
{
	struct buf *b = &e->normal;
	if (*at > NORMAL_BYTES) {
		buf_consume(b, *at);
		*at = 0;
	}
	size_t cut = s->raw_bytes > NORMAL_BYTES ? tokenizer_nfc_cut(s->raw, s->raw_bytes, NORMAL_BYTES)
											 : s->raw_bytes;
	int rc = tokenizer_nfc(s->raw, cut, b);
	if (rc == ERR_INVALID_DATA)
		return err_set(err, rc, NULL,
			"more than %d bytes of combining marks follow each other: too many to normalize",
			TOKENIZER_NFC_RUN_MAX_BYTES);
	if (rc)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory to normalize a text");
	s->raw += cut;
	s->raw_bytes -= cut;
	s->final = s->raw_bytes == 0;
	s->text = buf_cstr(b);
	s->have = b->len;
	return 0;
}

/* Looks `bytes` ahead of *at for the next added token. */
static int look(struct tokenizer_encoder *e, struct source *s, const struct tokenizer_trie *trie,
	size_t *at, size_t bytes, struct look *ret, struct err *err)
{
	for (;;) {
		size_t limit = s->final ? s->have : s->have > MARGIN ? s->have - MARGIN : 0;
		size_t end = bytes < s->have - *at ? *at + bytes : s->have;
		/* Not behind white space, which a token that strips its left would take; nor inside of a
		 * character. */
		end = tokenizer_spaces_end(s->text, s->have, end);
		end += end < s->have;
		while (end < s->have && ((unsigned char)s->text[end] & 0xc0) == 0x80)
			end++;
		bool enough = s->final || end < limit;
		struct look x = { .end = end, .final = s->final && end == s->have };
		if (enough)
			x.token = tokenizer_trie_find(e->t, trie, s->text, s->have, *at, end, &x.match);
		if (enough && (!x.token || s->final || x.match.end < limit)) {
			if (x.token) {
				x.end = x.match.begin;
				x.final = true;
			}
			*ret = x;
			return 0;
		}
		int rc = extend(e, s, at, err);
		if (rc)
			return rc;
	}
}

/* The first piece of a section that gets a space in front. */
static int lead(struct tokenizer_encoder *e, const char *text, size_t bytes, bool final,
	struct piece *ret, struct err *err)
{
	for (size_t take = LEAD_BYTES;; take *= 2) {
		take = take < bytes ? take : bytes;
		while (take < bytes && ((unsigned char)text[take] & 0xc0) == 0x80)
			take++;
		buf_reset(&e->lead);
		buf_char(&e->lead, ' ');
		if (buf_append(&e->lead, text, take))
			return err_set(err, ERR_NO_MEMORY, NULL, "no memory for a piece of the text");
		int found =
			find(e, &e->t->step[0], e->lead.data, e->lead.len, 0, final && take == bytes, ret, err);
		if (found != TOKENIZER_REGEX_MORE || take == bytes)
			return found;
	}
}

/* Sections without a pattern are one word. */
static int whole(
	struct tokenizer_encoder *e, const char *text, size_t bytes, bool spaced, struct err *err)
{
	if (!spaced)
		return word(e, text, bytes, err);
	buf_reset(&e->lead);
	buf_char(&e->lead, ' ');
	if (buf_append(&e->lead, text, bytes))
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for a piece of the text");
	return word(e, e->lead.data, e->lead.len, err);
}

/* One match and the gap before it. *ret_bytes: of the text that were used up; TOKENIZER_REGEX_MORE:
 * none. */
static int advance(struct tokenizer_encoder *e, const char *text, size_t bytes, bool final,
	bool spaced, size_t *ret_bytes, struct err *err)
{
	if (e->t->step_count == 0) {
		if (!final && bytes <= TOKENIZER_WORD_MAX_BYTES)
			return TOKENIZER_REGEX_MORE;
		*ret_bytes = bytes;
		return whole(e, text, bytes, spaced, err);
	}
	struct piece m = { .text = text };
	int found = spaced ? lead(e, text, bytes, final, &m, err)
					   : find(e, &e->t->step[0], text, bytes, 0, final, &m, err);
	if (found < 0 || found == TOKENIZER_REGEX_MORE)
		return found;
	if (spaced)
		m.text = e->lead.data;
	if (found == TOKENIZER_REGEX_NONE)
		m.begin = m.end = bytes + spaced;
	*ret_bytes = m.end - spaced;
	return leave(e, 0, 0, &m, err);
}

/* A source from *at on, up to the first boundary at or behind `to`. */
static int sections(struct tokenizer_encoder *e, struct source *s,
	const struct tokenizer_trie *trie, size_t *at, size_t to, struct err *err)
{
	bool begins = true; /* a section */
	struct look x;
	int rc = look(e, s, trie, at, LOOK_BYTES, &x, err);
	while (!rc && *at < to) {
		if (*at == x.end && x.final) {
			if (!x.token)
				break;
			rc = emit(e, &x.match.id, 1, err);
			*at = x.match.end;
			begins = true;
			if (!rc)
				rc = look(e, s, trie, at, LOOK_BYTES, &x, err);
			continue;
		}
		size_t used = 0;
		const char *text = s->text + *at;
		bool spaced = begins && e->t->lead_space && text[0] != ' ';
		int got = advance(e, text, x.end - *at, x.final, spaced, &used, err);
		if (got < 0)
			return got;
		if (got == TOKENIZER_REGEX_MORE) {
			size_t more = (x.end - *at) * 2;
			rc = look(e, s, trie, at, more > LOOK_BYTES ? more : LOOK_BYTES, &x, err);
			continue;
		}
		*at += used;
		begins = false;
	}
	return rc;
}

static int normalize_and_encode(
	struct tokenizer_encoder *e, const char *text, size_t bytes, struct err *err)
{
	struct source s = { .raw = text, .raw_bytes = bytes };
	size_t at = 0;
	buf_reset(&e->normal);
	int rc = extend(e, &s, &at, err);
	return rc ? rc : sections(e, &s, &e->t->normalized, &at, SIZE_MAX, err);
}

/* Where normalizing changes something: the tokens found before it split the text first. */
static int encode_changed(
	struct tokenizer_encoder *e, const char *text, size_t bytes, struct err *err)
{
	for (size_t at = 0; at < bytes;) {
		struct tokenizer_match m = { .begin = bytes, .end = bytes };
		bool token = tokenizer_trie_find(e->t, &e->t->raw, text, bytes, at, bytes, &m);
		int rc = m.begin > at ? normalize_and_encode(e, text + at, m.begin - at, err) : 0;
		if (!rc && token)
			rc = emit(e, &m.id, 1, err);
		if (rc)
			return rc;
		at = m.end;
	}
	return 0;
}

static int encode_bytes(
	struct tokenizer_encoder *e, const char *text, size_t bytes, struct err *err)
{
	for (size_t i = 0; i < bytes; i++) {
		int32_t id = (unsigned char)text[i];
		int rc = emit(e, &id, 1, err);
		if (rc)
			return rc;
	}
	return 0;
}

static int run(struct tokenizer_encoder *e, const char *text, size_t bytes, size_t from, size_t to,
	bool changed, size_t *ret_end, struct err *err)
{
	size_t at = from, stop = to < bytes ? to : bytes;
	int rc = 0;
	e->out_count = 0;
	if (e->t->bytes_only) {
		rc = encode_bytes(e, text + from, stop - from, err);
		at = stop;
	} else if (changed) {
		rc = encode_changed(e, text, bytes, err);
		at = bytes;
	} else if (from < stop) {
		struct source s = { .text = text, .have = bytes, .final = true };
		rc = sections(e, &s, &e->t->all, &at, stop, err);
	}
	if (!rc)
		rc = flush(e, err);
	if (!rc)
		*ret_end = at;
	return rc;
}

bool tokenizer_divisible(const struct tokenizer *t, const char *text, size_t bytes)
{
	if (t->bytes_only)
		return true;
	if (t->lead_space || t->word_char || t->step_count == 0)
		return false;
	return !t->nfc || tokenizer_nfc_prefix(text, bytes) == bytes;
}

int tokenizer_encode(struct tokenizer_encoder *e, const char *text, size_t bytes,
	tokenizer_sink_fn sink, void *ctx, struct err *err)
{
	size_t end;
	e->sink = sink;
	e->ctx = ctx;
	bool changed = e->t->nfc && tokenizer_nfc_prefix(text, bytes) < bytes;
	return run(e, text, bytes, 0, bytes, changed, &end, err);
}

int tokenizer_encode_part(struct tokenizer_encoder *e, const char *text, size_t bytes, size_t from,
	size_t to, tokenizer_sink_fn sink, void *ctx, size_t *ret_end, struct err *err)
{
	e->sink = sink;
	e->ctx = ctx;
	return run(e, text, bytes, from, to, false, ret_end, err);
}

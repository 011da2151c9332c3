/* SPDX-License-Identifier: Apache-2.0
 * Reads tokenizer.json: finds its members, then takes them in the order in which they need each
 * other, whatever the file's. Called by tokenizer.c. */
#include "workers/engine/data/json_scan.h"
#include "workers/engine/tokenizer/tokenizer_private.h"

#include <stdlib.h>
#include <string.h>

enum { MERGES_MAX = 1 << 23, TOKEN_BYTES_MAX = 1 << 20 };

/* Where the value of a member begins. */
struct member {
	const char *name;
	bool found;
	struct json_scan at;
};

static int refuse(const struct tokenizer *t, struct err *err, const char *what)
{
	return err_set(err, ERR_INVALID_DATA, t->param, "file %s: %s is not supported", t->label, what);
}

/* Reads an object's members into the list and skips over the values. Names that are not in the list
 * are passed over. */
static int find_members(struct json_scan *s, struct member *members, int count, struct err *err)
{
	cleanup(buf_finish) struct buf key = { 0 };
	buf_init(&key, TOKEN_BYTES_MAX);
	int rc = json_scan_enter(s, '{', err);
	for (bool more; !rc;) {
		rc = json_scan_key(s, &key, &more, err);
		if (rc || !more)
			break;
		for (int i = 0; i < count; i++) {
			if (strcmp(buf_cstr(&key), members[i].name) != 0)
				continue;
			if (members[i].found)
				return json_scan_error(s, err, "a second member \"%s\"", members[i].name);
			members[i].found = true;
			members[i].at = *s;
		}
		rc = json_scan_skip(s, err);
	}
	return rc;
}

static int read_vocab(struct tokenizer *t, struct json_scan *s, struct err *err)
{
	cleanup(buf_finish) struct buf key = { 0 };
	buf_init(&key, TOKEN_BYTES_MAX);
	int rc = json_scan_enter(s, '{', err);
	while (!rc) {
		bool more;
		int64_t id;
		rc = json_scan_key(s, &key, &more, err);
		if (rc || !more)
			break;
		rc = json_scan_i64(s, &id, err);
		if (!rc)
			rc = tokenizer_vocab_put(t, buf_cstr(&key), key.len, id, false, err);
	}
	return rc ? rc : tokenizer_vocab_finish(t, err);
}

/* The id of one side of a merge, by its text in the file's alphabet, appended decoded to `both`. */
static int side(struct tokenizer *t, struct json_scan *s, const char *text, size_t bytes,
	struct buf *both, int32_t *ret, struct err *err)
{
	size_t begin = both->len;
	for (size_t i = 0, step; i < bytes; i += step) {
		int byte = tokenizer_alphabet(text + i, bytes - i, &step);
		if (byte < 0)
			return json_scan_error(s, err, "a merge of \"%.*s\", which is not in the vocabulary",
				bytes > 64 ? 64 : (int)bytes, text);
		buf_char(both, (char)byte);
	}
	int32_t id = both->failed ? -1 : tokenizer_vocab_find(t, both->data + begin, both->len - begin);
	if (id < 0)
		return json_scan_error(s, err, "a merge of \"%.*s\", which is not in the vocabulary",
			bytes > 64 ? 64 : (int)bytes, text);
	*ret = id;
	return 0;
}

/* "a b" or ["a", "b"]: the text of both with one space between, in `out`. */
static int read_pair(struct json_scan *s, struct buf *out, size_t *ret_left, struct err *err)
{
	buf_reset(out);
	if (json_scan_peek(s) == JSON_SCAN_STRING) {
		int rc = json_scan_string(s, out, err);
		const char *space = rc ? NULL : memchr(buf_cstr(out), ' ', out->len);
		if (rc)
			return rc;
		if (!space || memchr(space + 1, ' ', out->len - (size_t)(space + 1 - out->data)))
			return json_scan_error(s, err, "a merge that is not two tokens");
		*ret_left = (size_t)(space - out->data);
		return 0;
	}
	bool more;
	int rc = json_scan_enter(s, '[', err);
	for (int i = 0; i < 2 && !rc; i++) {
		rc = json_scan_item(s, &more, err);
		if (!rc && !more)
			return json_scan_error(s, err, "a merge that is not two tokens");
		if (!rc)
			rc = json_scan_string(s, out, err);
		if (!rc && i == 0) {
			*ret_left = out->len;
			buf_char(out, ' ');
		}
	}
	if (!rc)
		rc = json_scan_item(s, &more, err);
	if (!rc && more)
		return json_scan_error(s, err, "a merge that is not two tokens");
	return rc;
}

static int read_merge(struct tokenizer *t, struct json_scan *s, struct buf *text, struct buf *both,
	uint32_t rank, struct err *err)
{
	size_t left_bytes = 0;
	int32_t left = 0, right = 0;
	int rc = read_pair(s, text, &left_bytes, err);
	if (rc)
		return rc;
	buf_reset(both);
	const char *p = buf_cstr(text);
	rc = side(t, s, p, left_bytes, both, &left, err);
	if (!rc)
		rc = side(t, s, p + left_bytes + 1, text->len - left_bytes - 1, both, &right, err);
	if (rc)
		return rc;
	int32_t id = tokenizer_vocab_find(t, both->data, both->len);
	if (id < 0)
		return json_scan_error(
			s, err, "merge %u makes a token that is not in the vocabulary", rank);
	tokenizer_merges_put(&t->merges, left, right, rank, id);
	return 0;
}

static int read_merges(struct tokenizer *t, struct json_scan *s, struct err *err)
{
	struct json_scan again = *s;
	int64_t count = 0;
	bool more;
	int rc = json_scan_enter(s, '[', err);
	while (!rc) {
		rc = json_scan_item(s, &more, err);
		if (rc || !more)
			break;
		if (++count > MERGES_MAX)
			return json_scan_error(s, err, "more than %d merges", MERGES_MAX);
		rc = json_scan_skip(s, err);
	}
	if (!rc)
		rc = tokenizer_merges_init(&t->merges, count, err);
	if (!rc)
		rc = json_scan_enter(&again, '[', err);
	cleanup(buf_finish) struct buf text = { 0 };
	cleanup(buf_finish) struct buf both = { 0 };
	buf_init(&text, TOKEN_BYTES_MAX);
	buf_init(&both, TOKEN_BYTES_MAX);
	for (uint32_t rank = 0; !rc; rank++) {
		rc = json_scan_item(&again, &more, err);
		if (rc || !more)
			break;
		rc = read_merge(t, &again, &text, &both, rank, err);
	}
	return rc;
}

/* null, false or "": as if it were not there. */
static int must_be_empty(
	const struct tokenizer *t, struct member *m, const char *what, struct err *err)
{
	if (!m->found || json_scan_peek(&m->at) == JSON_SCAN_NULL)
		return 0;
	bool value = true;
	int rc = 0;
	cleanup(buf_finish) struct buf text = { 0 };
	buf_init(&text, TOKEN_BYTES_MAX);
	if (json_scan_peek(&m->at) == JSON_SCAN_BOOL) {
		rc = json_scan_bool(&m->at, &value, err);
	} else if (json_scan_peek(&m->at) == JSON_SCAN_STRING) {
		rc = json_scan_string(&m->at, &text, err);
		value = text.len > 0;
	}
	return rc ? rc : value ? refuse(t, err, what) : 0;
}

enum { TYPE, VOCAB, MERGES, IGNORE_MERGES, DROPOUT, PREFIX, SUFFIX, MODEL_MEMBERS };

static int read_model(struct tokenizer *t, struct json_scan *s, struct err *err)
{
	struct member m[MODEL_MEMBERS] = { [TYPE].name = "type",
		[VOCAB].name = "vocab",
		[MERGES].name = "merges",
		[IGNORE_MERGES].name = "ignore_merges",
		[DROPOUT].name = "dropout",
		[PREFIX].name = "continuing_subword_prefix",
		[SUFFIX].name = "end_of_word_suffix" };
	int rc = find_members(s, m, MODEL_MEMBERS, err);
	if (rc)
		return rc;
	if (m[TYPE].found) {
		cleanup(buf_finish) struct buf type = { 0 };
		buf_init(&type, TOKEN_BYTES_MAX);
		rc = json_scan_string(&m[TYPE].at, &type, err);
		if (rc)
			return rc;
		if (strcmp(buf_cstr(&type), "BPE") != 0)
			return refuse(t, err, "a model.type other than BPE");
	}
	if (!m[VOCAB].found || !m[MERGES].found)
		return json_scan_error(s, err, "model has no vocab or no merges: this is no BPE model");
	rc = must_be_empty(t, &m[DROPOUT], "model.dropout", err);
	if (!rc)
		rc = must_be_empty(t, &m[PREFIX], "model.continuing_subword_prefix", err);
	if (!rc)
		rc = must_be_empty(t, &m[SUFFIX], "model.end_of_word_suffix", err);
	if (!rc && m[IGNORE_MERGES].found)
		rc = json_scan_bool(&m[IGNORE_MERGES].at, &t->ignore_merges, err);
	if (!rc)
		rc = read_vocab(t, &m[VOCAB].at, err);
	return rc ? rc : read_merges(t, &m[MERGES].at, err);
}

enum { A_ID, A_CONTENT, A_SPECIAL, A_LSTRIP, A_RSTRIP, A_SINGLE, A_NORMALIZED, ADDED_MEMBERS };

static int read_flag(struct member *m, bool *ret, struct err *err)
{
	return m->found ? json_scan_bool(&m->at, ret, err) : 0;
}

/* The id that the library gives a token which the model does not have: what follows the largest. */
static int64_t next_id(const struct tokenizer *t)
{
	int64_t next = t->model_tokens;
	for (int i = 0; i < t->added_count; i++)
		if (t->added[i].id >= next)
			next = t->added[i].id + 1;
	return next;
}

/* What is looked for: behind the normalizer its normal form. */
static int find_form(
	const struct tokenizer *t, const struct tokenizer_added *a, struct buf *form, struct err *err)
{
	buf_init(form, TOKENIZER_ADDED_BYTES_MAX * 4);
	size_t bytes = strlen(a->content);
	int rc = a->normalized && t->nfc ? tokenizer_nfc(a->content, bytes, form)
									 : buf_append(form, a->content, bytes);
	return rc ? err_set(err, ERR_NO_MEMORY, NULL, "no memory for the tokenizer's added tokens") : 0;
}

static int put_added(
	struct tokenizer *t, struct json_scan *s, struct tokenizer_added *a, struct err *err)
{
	size_t bytes = strlen(a->content);
	int64_t known = tokenizer_vocab_text_id(t, a->content, bytes);
	int64_t expected = known >= 0 ? known : next_id(t);
	if (a->id != expected)
		return json_scan_error(s, err,
			"added token \"%s\" has id %d, its place in the vocabulary gives it %lld", a->content,
			(int)a->id, (long long)expected);
	int rc = tokenizer_vocab_put(t, a->content, bytes, a->id, true, err);
	cleanup(buf_finish) struct buf form = { 0 };
	if (!rc)
		rc = find_form(t, a, &form, err);
	if (!rc)
		rc = tokenizer_trie_put(
			a->normalized ? &t->normalized : &t->raw, form.data, form.len, t->added_count, err);
	if (!rc)
		rc = tokenizer_trie_put(&t->all, form.data, form.len, t->added_count, err);
	return rc;
}

/* No token that is found before the normalizer may lie over one that is found behind it. */
static int check_overlaps(const struct tokenizer *t, const struct json_scan *s, struct err *err)
{
	for (int i = 0; i < t->added_count; i++) {
		const struct tokenizer_added *a = &t->added[i];
		cleanup(buf_finish) struct buf form = { 0 };
		int rc = find_form(t, a, &form, err);
		if (rc)
			return rc;
		if (tokenizer_trie_overlaps(a->normalized ? &t->raw : &t->normalized, form.data, form.len))
			return json_scan_error(s, err,
				"added token \"%s\" can overlap another whose \"normalized\" differs, which is "
				"not supported",
				a->content);
	}
	return 0;
}

static int read_flags(struct member *m, struct tokenizer_added *a, struct err *err)
{
	int rc = read_flag(&m[A_SPECIAL], &a->special, err);
	a->normalized = !a->special;
	if (!rc)
		rc = read_flag(&m[A_LSTRIP], &a->lstrip, err);
	if (!rc)
		rc = read_flag(&m[A_RSTRIP], &a->rstrip, err);
	if (!rc)
		rc = read_flag(&m[A_SINGLE], &a->single_word, err);
	return rc ? rc : read_flag(&m[A_NORMALIZED], &a->normalized, err);
}

static int read_added(struct tokenizer *t, struct json_scan *s, struct err *err)
{
	struct member m[ADDED_MEMBERS] = { [A_ID].name = "id",
		[A_CONTENT].name = "content",
		[A_SPECIAL].name = "special",
		[A_LSTRIP].name = "lstrip",
		[A_RSTRIP].name = "rstrip",
		[A_SINGLE].name = "single_word",
		[A_NORMALIZED].name = "normalized" };
	int rc = find_members(s, m, ADDED_MEMBERS, err);
	if (rc)
		return rc;
	if (!m[A_ID].found || !m[A_CONTENT].found)
		return json_scan_error(s, err, "an added token without id or content");
	cleanup(buf_finish) struct buf content = { 0 };
	buf_init(&content, TOKENIZER_ADDED_BYTES_MAX);
	int64_t id;
	struct tokenizer_added a = { 0 };
	rc = json_scan_i64(&m[A_ID].at, &id, err);
	if (!rc && (id < 0 || id >= TOKENIZER_TOKENS_MAX))
		rc = json_scan_error(&m[A_ID].at, err, "an id of %lld", (long long)id);
	if (!rc)
		rc = json_scan_string(&m[A_CONTENT].at, &content, err);
	if (!rc && memchr(buf_cstr(&content), 0, content.len))
		rc = json_scan_error(&m[A_CONTENT].at, err, "an added token with a zero byte");
	if (rc || content.len == 0)
		return rc;
	rc = read_flags(m, &a, err);
	if (rc)
		return rc;
	if (a.single_word && a.normalized)
		return json_scan_error(s, err,
			"added token \"%s\" is single_word and normalized, which is not supported",
			buf_cstr(&content));
	if (tokenizer_added_id(t, buf_cstr(&content)) >= 0)
		return json_scan_error(s, err, "added token \"%s\" comes twice", buf_cstr(&content));
	if (a.single_word && !t->word_char)
		rc = tokenizer_pattern_word_char(t, err);
	if (rc)
		return rc;
	size_t ignored;
	a.id = (int32_t)id;
	a.content = buf_take(&content, &ignored);
	if (!a.content)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for the tokenizer's added tokens");
	rc = put_added(t, s, &a, err);
	t->added[t->added_count++] = a;
	return rc;
}

static int read_all_added(struct tokenizer *t, struct json_scan *s, struct err *err)
{
	t->added = calloc(TOKENIZER_ADDED_MAX, sizeof(*t->added));
	if (!t->added)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for the tokenizer's added tokens");
	int rc = json_scan_enter(s, '[', err);
	while (!rc) {
		bool more;
		rc = json_scan_item(s, &more, err);
		if (rc || !more)
			break;
		if (t->added_count == TOKENIZER_ADDED_MAX)
			return json_scan_error(s, err, "more than %d added tokens", TOKENIZER_ADDED_MAX);
		rc = read_added(t, s, err);
	}
	return rc ? rc : check_overlaps(t, s, err);
}

int tokenizer_json_read(struct tokenizer *t, const char *text, size_t bytes, struct err *err)
{
	/* In the order in which they need each other. */
	static const struct {
		const char *name;
		int (*read)(struct tokenizer *t, struct json_scan *s, struct err *err);
		bool required;
	} part[] = {
		{ "model", read_model, true },
		{ "normalizer", tokenizer_json_normalizer, false },
		{ "added_tokens", read_all_added, false },
		{ "pre_tokenizer", tokenizer_json_pre_tokenizer, true },
		{ "post_processor", tokenizer_json_post_processor, false },
		{ "decoder", tokenizer_json_decoder, false },
	};
	struct member m[ARRAY_LEN(part)] = { 0 };
	struct json_scan s;
	json_scan_init(&s, text, bytes, 1, t->label, t->param);
	for (size_t i = 0; i < ARRAY_LEN(part); i++)
		m[i].name = part[i].name;
	int rc = find_members(&s, m, ARRAY_LEN(part), err);
	if (!rc)
		rc = json_scan_end(&s, err);
	for (size_t i = 0; i < ARRAY_LEN(part) && !rc; i++) {
		bool none = !m[i].found || json_scan_peek(&m[i].at) == JSON_SCAN_NULL;
		if (none && part[i].required)
			return err_set(err, ERR_INVALID_DATA, t->param,
				"file %s has no \"%s\": only byte-level BPE tokenizers are supported", t->label,
				part[i].name);
		if (!none)
			rc = part[i].read(t, &m[i].at, err);
	}
	return rc;
}

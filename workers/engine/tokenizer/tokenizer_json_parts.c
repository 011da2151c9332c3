/* SPDX-License-Identifier: Apache-2.0
 * The members of tokenizer.json that say what happens before and behind the model: each is an
 * object with a "type", which may be a Sequence of others. Called by tokenizer_json.c. */
#include "workers/engine/data/json_scan.h"
#include "workers/engine/tokenizer/tokenizer_private.h"

#include <string.h>

enum { TEXT_MAX = 64 * 1024, SEQUENCE_DEPTH_MAX = 4, PART_MEMBERS_MAX = 8 };

struct part_member {
	const char *name;
	bool found;
	struct json_scan at;
};

struct part {
	char type[64];
	struct part_member m[PART_MEMBERS_MAX];
	int count;
	const struct json_scan *where;
};

static int unsupported(
	const struct tokenizer *t, const char *member, const char *type, struct err *err)
{
	return err_set(err, ERR_INVALID_DATA, t->param,
		"file %s: %s of type %s is not supported (byte-level BPE only)", t->label, member, type);
}

static struct part_member *member(struct part *p, const char *name)
{
	for (int i = 0; i < p->count; i++)
		if (strcmp(p->m[i].name, name) == 0)
			return &p->m[i];
	return NULL;
}

/* Reads an object: its type, and where the named members begin. */
static int read_part(
	struct json_scan *s, const char *const *names, struct part *ret, struct err *err)
{
	*ret = (struct part){ .where = s };
	for (; names[ret->count]; ret->count++)
		ret->m[ret->count].name = names[ret->count];
	cleanup(buf_finish) struct buf key = { 0 };
	cleanup(buf_finish) struct buf type = { 0 };
	buf_init(&key, TEXT_MAX);
	buf_init(&type, sizeof(ret->type) - 1);
	int rc = json_scan_enter(s, '{', err);
	while (!rc) {
		bool more;
		rc = json_scan_key(s, &key, &more, err);
		if (rc || !more)
			break;
		struct part_member *m = member(ret, buf_cstr(&key));
		if (m) {
			m->found = true;
			m->at = *s;
		}
		if (strcmp(buf_cstr(&key), "type") == 0) {
			buf_reset(&type);
			rc = json_scan_string(s, &type, err);
		} else {
			rc = json_scan_skip(s, err);
		}
	}
	if (!rc)
		memcpy(ret->type, buf_cstr(&type), type.len + 1);
	return rc;
}

static int read_bool(struct part *p, const char *name, bool fallback, bool *ret, struct err *err)
{
	struct part_member *m = member(p, name);
	*ret = fallback;
	return m->found ? json_scan_bool(&m->at, ret, err) : 0;
}

typedef int (*part_fn)(struct tokenizer *t, struct json_scan *s, int depth, struct err *err);

/* Each of an array. */
static int read_sequence(
	struct tokenizer *t, struct part *p, const char *name, part_fn fn, int depth, struct err *err)
{
	struct part_member *m = member(p, name);
	if (!m->found)
		return json_scan_error(p->where, err, "a Sequence without %s", name);
	if (depth == SEQUENCE_DEPTH_MAX)
		return json_scan_error(p->where, err, "Sequences in more than %d levels", depth);
	bool more;
	int rc = json_scan_enter(&m->at, '[', err);
	while (!rc) {
		rc = json_scan_item(&m->at, &more, err);
		if (rc || !more)
			break;
		rc = fn(t, &m->at, depth + 1, err);
	}
	return rc;
}

static int add_step(struct tokenizer *t, struct tokenizer_step step, struct err *err)
{
	if (t->step_count == TOKENIZER_STEPS_MAX) {
		tokenizer_regex_destroy(step.pattern);
		return err_set(err, ERR_INVALID_DATA, t->param,
			"file %s: pre_tokenizer has more than %d steps", t->label, TOKENIZER_STEPS_MAX);
	}
	/* At the very beginning it is a matter of the text, not of its pieces. */
	if (step.prefix_space && t->step_count == 0)
		t->lead_space = true;
	else
		t->step[t->step_count++] = step;
	return 0;
}

static int byte_level(struct tokenizer *t, struct part *p, struct err *err)
{
	bool prefix, regex;
	int rc = read_bool(p, "add_prefix_space", true, &prefix, err);
	if (!rc)
		rc = read_bool(p, "use_regex", true, &regex, err);
	if (!rc && prefix)
		rc = add_step(t, (struct tokenizer_step){ .prefix_space = true }, err);
	if (rc || !regex)
		return rc;
	struct tokenizer_step step = { 0 };
	rc = tokenizer_pattern_compile(
		t, tokenizer_gpt2_pattern, strlen(tokenizer_gpt2_pattern), &step.pattern, err);
	return rc ? rc : add_step(t, step, err);
}

/* {"Regex": "..."} or {"String": "..."} */
static int split_pattern(
	struct tokenizer *t, struct part_member *m, struct tokenizer_regex **ret, struct err *err)
{
	static const char *const names[] = { "Regex", "String", NULL };
	struct part pattern;
	int rc = read_part(&m->at, names, &pattern, err);
	if (rc)
		return rc;
	cleanup(buf_finish) struct buf text = { 0 };
	buf_init(&text, TEXT_MAX);
	bool regex = pattern.m[0].found;
	if (regex == pattern.m[1].found)
		return json_scan_error(&m->at, err, "a pattern that is neither Regex nor String");
	rc = json_scan_string(&pattern.m[regex ? 0 : 1].at, &text, err);
	if (rc)
		return rc;
	return regex ? tokenizer_pattern_compile(t, buf_cstr(&text), text.len, ret, err)
				 : tokenizer_pattern_literal(t, buf_cstr(&text), text.len, ret, err);
}

static int split(struct tokenizer *t, struct part *p, struct err *err)
{
	struct part_member *pattern = member(p, "pattern"), *behavior = member(p, "behavior");
	if (!pattern->found || !behavior->found)
		return json_scan_error(p->where, err, "a Split without pattern or behavior");
	cleanup(buf_finish) struct buf word = { 0 };
	buf_init(&word, TEXT_MAX);
	bool invert;
	int rc = json_scan_string(&behavior->at, &word, err);
	if (!rc)
		rc = read_bool(p, "invert", false, &invert, err);
	if (rc)
		return rc;
	bool removed = strcmp(buf_cstr(&word), "Removed") == 0;
	if (!removed && strcmp(buf_cstr(&word), "Isolated") != 0)
		return json_scan_error(&behavior->at, err,
			"pre_tokenizer: a Split that is neither Isolated nor Removed is not supported");
	struct tokenizer_step step = { .drop_matches = removed && !invert,
		.drop_gaps = removed && invert };
	rc = split_pattern(t, pattern, &step.pattern, err);
	return rc ? rc : add_step(t, step, err);
}

static int digits(struct tokenizer *t, struct part *p, struct err *err)
{
	bool single;
	int rc = read_bool(p, "individual_digits", false, &single, err);
	if (rc)
		return rc;
	const char *pattern = single ? "\\p{N}" : "\\p{N}+";
	struct tokenizer_step step = { 0 };
	rc = tokenizer_pattern_compile(t, pattern, strlen(pattern), &step.pattern, err);
	return rc ? rc : add_step(t, step, err);
}

static int pre_tokenizer(struct tokenizer *t, struct json_scan *s, int depth, struct err *err)
{
	static const char *const names[] = { "pretokenizers", "add_prefix_space", "use_regex",
		"pattern", "behavior", "invert", "individual_digits", NULL };
	struct part p;
	int rc = read_part(s, names, &p, err);
	if (rc)
		return rc;
	if (t->byte_level)
		return err_set(err, ERR_INVALID_DATA, t->param,
			"file %s: pre_tokenizer: a step behind ByteLevel is not supported", t->label);
	if (strcmp(p.type, "Sequence") == 0)
		return read_sequence(t, &p, "pretokenizers", pre_tokenizer, depth, err);
	if (strcmp(p.type, "Split") == 0)
		return split(t, &p, err);
	if (strcmp(p.type, "Digits") == 0)
		return digits(t, &p, err);
	if (strcmp(p.type, "ByteLevel") != 0)
		return unsupported(t, "a pre_tokenizer", p.type, err);
	rc = byte_level(t, &p, err);
	t->byte_level = true;
	return rc;
}

int tokenizer_json_pre_tokenizer(struct tokenizer *t, struct json_scan *s, struct err *err)
{
	int rc = pre_tokenizer(t, s, 0, err);
	if (!rc && !t->byte_level)
		return err_set(err, ERR_INVALID_DATA, t->param,
			"file %s: pre_tokenizer has no ByteLevel: only byte-level BPE is supported", t->label);
	return rc;
}

static int normalizer(struct tokenizer *t, struct json_scan *s, int depth, struct err *err)
{
	static const char *const names[] = { "normalizers", NULL };
	struct part p;
	int rc = read_part(s, names, &p, err);
	if (rc)
		return rc;
	if (strcmp(p.type, "Sequence") == 0)
		return read_sequence(t, &p, "normalizers", normalizer, depth, err);
	if (strcmp(p.type, "NFC") != 0)
		return unsupported(t, "a normalizer", p.type, err);
	t->nfc = true;
	return 0;
}

int tokenizer_json_normalizer(struct tokenizer *t, struct json_scan *s, struct err *err)
{
	return normalizer(t, s, 0, err);
}

static int decoder(struct tokenizer *t, struct json_scan *s, int depth, struct err *err)
{
	static const char *const names[] = { "decoders", NULL };
	struct part p;
	int rc = read_part(s, names, &p, err);
	if (rc)
		return rc;
	if (strcmp(p.type, "Sequence") == 0)
		return read_sequence(t, &p, "decoders", decoder, depth, err);
	return strcmp(p.type, "ByteLevel") == 0 ? 0 : unsupported(t, "a decoder", p.type, err);
}

int tokenizer_json_decoder(struct tokenizer *t, struct json_scan *s, struct err *err)
{
	return decoder(t, s, 0, err);
}

static int put_id(
	const struct tokenizer *t, int32_t *ids, size_t *count, int64_t id, struct err *err)
{
	if (*count == TOKENIZER_EXTRA_MAX || id < 0 || id >= t->vocabulary)
		return err_set(err, ERR_INVALID_DATA, t->param,
			"file %s: post_processor adds token %lld, which is unknown, or more than %d", t->label,
			(long long)id, TOKENIZER_EXTRA_MAX);
	ids[(*count)++] = (int32_t)id;
	return 0;
}

/* Ids found by one post-processor, around the text. */
struct around {
	int32_t before[TOKENIZER_EXTRA_MAX], behind[TOKENIZER_EXTRA_MAX];
	size_t before_count, behind_count;
	bool text; /* the text itself came */
};

static int put_around(const struct tokenizer *t, struct around *a, int64_t id, struct err *err)
{
	return a->text ? put_id(t, a->behind, &a->behind_count, id, err)
				   : put_id(t, a->before, &a->before_count, id, err);
}

/* A later processor's tokens lie outside of an earlier one's. */
static int wrap(struct tokenizer *t, const struct around *a, struct err *err)
{
	if (t->prefix_count + a->before_count > TOKENIZER_EXTRA_MAX ||
		t->suffix_count + a->behind_count > TOKENIZER_EXTRA_MAX)
		return err_set(err, ERR_INVALID_DATA, t->param,
			"file %s: post_processor adds more than %d tokens", t->label, TOKENIZER_EXTRA_MAX);
	memmove(t->prefix + a->before_count, t->prefix, t->prefix_count * sizeof(t->prefix[0]));
	memcpy(t->prefix, a->before, a->before_count * sizeof(t->prefix[0]));
	memcpy(t->suffix + t->suffix_count, a->behind, a->behind_count * sizeof(t->suffix[0]));
	t->prefix_count += a->before_count;
	t->suffix_count += a->behind_count;
	return 0;
}

/* special_tokens: {name: {"ids": [...]}}: adds the ids of one name. */
static int special_ids(const struct tokenizer *t, const struct json_scan *from, const char *name,
	struct around *a, struct err *err)
{
	static const char *const names[] = { "ids", NULL };
	cleanup(buf_finish) struct buf key = { 0 };
	buf_init(&key, TEXT_MAX);
	struct json_scan s = *from;
	bool more;
	int rc = json_scan_enter(&s, '{', err);
	while (!rc) {
		rc = json_scan_key(&s, &key, &more, err);
		if (rc)
			break;
		if (!more)
			return json_scan_error(&s, err, "special_tokens has no \"%s\"", name);
		if (strcmp(buf_cstr(&key), name) != 0) {
			rc = json_scan_skip(&s, err);
			continue;
		}
		struct part p;
		rc = read_part(&s, names, &p, err);
		if (!rc && !p.m[0].found)
			return json_scan_error(&s, err, "the special token \"%s\" has no ids", name);
		if (!rc)
			rc = json_scan_enter(&p.m[0].at, '[', err);
		while (!rc) {
			int64_t id;
			rc = json_scan_item(&p.m[0].at, &more, err);
			if (rc || !more)
				return rc;
			rc = json_scan_i64(&p.m[0].at, &id, err);
			if (!rc)
				rc = put_around(t, a, id, err);
		}
	}
	return rc;
}

/* One item of a template: {"SpecialToken": {"id": name}} or {"Sequence": {"id": "A"}}. */
static int template_item(const struct tokenizer *t, struct json_scan *s,
	const struct part_member *special, struct around *a, struct err *err)
{
	static const char *const kinds[] = { "SpecialToken", "Sequence", NULL };
	static const char *const ids[] = { "id", NULL };
	struct part item, inner;
	int rc = read_part(s, kinds, &item, err);
	if (rc)
		return rc;
	bool is_special = item.m[0].found;
	if (is_special == item.m[1].found)
		return json_scan_error(s, err, "an item that is neither SpecialToken nor Sequence");
	rc = read_part(&item.m[is_special ? 0 : 1].at, ids, &inner, err);
	if (rc)
		return rc;
	if (!inner.m[0].found)
		return json_scan_error(s, err, "an item of a template without id");
	cleanup(buf_finish) struct buf id = { 0 };
	buf_init(&id, TEXT_MAX);
	rc = json_scan_string(&inner.m[0].at, &id, err);
	if (rc)
		return rc;
	if (!is_special) {
		if (a->text || strcmp(buf_cstr(&id), "A") != 0)
			return json_scan_error(s, err, "a template that is not of one sequence A");
		a->text = true;
		return 0;
	}
	if (!special->found)
		return json_scan_error(s, err, "a template without special_tokens");
	return special_ids(t, &special->at, buf_cstr(&id), a, err);
}

static int template(struct tokenizer *t, struct part *p, struct err *err)
{
	struct part_member *single = member(p, "single");
	if (!single->found)
		return json_scan_error(p->where, err, "a template without single");
	struct around a = { 0 };
	bool more;
	int rc = json_scan_enter(&single->at, '[', err);
	while (!rc) {
		rc = json_scan_item(&single->at, &more, err);
		if (rc || !more)
			break;
		rc = template_item(t, &single->at, member(p, "special_tokens"), &a, err);
	}
	if (!rc && !a.text)
		return json_scan_error(p->where, err, "a template that is not of one sequence A");
	return rc ? rc : wrap(t, &a, err);
}

/* ["</s>", 2] */
static int word_and_id(struct part *p, const char *name, int64_t *ret, struct err *err)
{
	struct part_member *m = member(p, name);
	if (!m->found)
		return json_scan_error(p->where, err, "a post-processor without %s", name);
	bool more;
	int rc = json_scan_enter(&m->at, '[', err);
	if (!rc)
		rc = json_scan_item(&m->at, &more, err);
	if (!rc && more)
		rc = json_scan_skip(&m->at, err);
	if (!rc && more)
		rc = json_scan_item(&m->at, &more, err);
	if (!rc && !more)
		return json_scan_error(&m->at, err, "%s is not a pair of token and id", name);
	return rc ? rc : json_scan_i64(&m->at, ret, err);
}

static int class_and_separator(struct tokenizer *t, struct part *p, struct err *err)
{
	int64_t class, separator;
	int rc = word_and_id(p, "cls", &class, err);
	if (!rc)
		rc = word_and_id(p, "sep", &separator, err);
	struct around a = { 0 };
	if (!rc)
		rc = put_around(t, &a, class, err);
	a.text = true;
	if (!rc)
		rc = put_around(t, &a, separator, err);
	return rc ? rc : wrap(t, &a, err);
}

static int post_processor(struct tokenizer *t, struct json_scan *s, int depth, struct err *err)
{
	static const char *const names[] = { "processors", "single", "special_tokens", "cls", "sep",
		NULL };
	struct part p;
	int rc = read_part(s, names, &p, err);
	if (rc)
		return rc;
	if (strcmp(p.type, "Sequence") == 0)
		return read_sequence(t, &p, "processors", post_processor, depth, err);
	if (strcmp(p.type, "ByteLevel") == 0)
		return 0; /* offsets only */
	if (strcmp(p.type, "TemplateProcessing") == 0)
		return template(t, &p, err);
	if (strcmp(p.type, "RobertaProcessing") == 0 || strcmp(p.type, "BertProcessing") == 0)
		return class_and_separator(t, &p, err);
	return unsupported(t, "a post_processor", p.type, err);
}

int tokenizer_json_post_processor(struct tokenizer *t, struct json_scan *s, struct err *err)
{
	return post_processor(t, s, 0, err);
}

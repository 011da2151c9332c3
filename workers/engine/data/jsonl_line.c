/* SPDX-License-Identifier: Apache-2.0
 * Lines of jsonl: what they may hold, and the one template of conversations. Called by
 * data_jsonl.c. */
#include "workers/engine/data/jsonl_line.h"

#include <string.h>

enum { KEY_MAX = 4096, TURN_NONE = -1, TURN_SYSTEM, TURN_USER, TURN_ASSISTANT };

void jsonl_line_init(struct jsonl_line *l)
{
	buf_init(&l->text, (size_t)JSONL_LINE_MAX_BYTES * 2);
	buf_init(&l->key, KEY_MAX);
	buf_init(&l->word, JSONL_LINE_MAX_BYTES);
}

void jsonl_line_finish(struct jsonl_line *l)
{
	buf_finish(&l->text);
	buf_finish(&l->key);
	buf_finish(&l->word);
}

const char *jsonl_line_word(enum jsonl_kind kind)
{
	static const char *const words[] = { "nothing", "\"text\"", "\"prompt\" and \"completion\"",
		"\"messages\"" };
	return words[kind];
}

static int read_string(struct json_scan *s, struct buf *out, const char *name, struct err *err)
{
	enum json_scan_kind kind = json_scan_peek(s);
	if (kind != JSON_SCAN_STRING)
		return json_scan_error(s, err, "\"%s\" is %s, not a string", name, json_scan_word(kind));
	return json_scan_string(s, out, err);
}

/* What was put into the text since the last segment. */
static int end_segment(
	struct jsonl_line *l, const struct json_scan *s, bool trained, struct err *err)
{
	size_t begin = l->count > 0 ? l->segment[l->count - 1].end : 0;
	if (l->text.len == begin && !trained)
		return 0;
	if (l->count == JSONL_SEGMENTS_MAX)
		return json_scan_error(s, err, "more than %d turns", JSONL_SEGMENTS_MAX);
	l->segment[l->count++] =
		(struct jsonl_segment){ .begin = begin, .end = l->text.len, .trained = trained };
	return 0;
}

/* "role" and "content" of one message, the content into word. */
static int read_message(struct jsonl_line *l, struct json_scan *s, int *ret_turn, struct err *err)
{
	static const char *const roles[] = { "system", "user", "assistant" };
	int turn = TURN_NONE;
	bool content = false, more;
	int rc = json_scan_enter(s, '{', err);
	while (!rc) {
		rc = json_scan_key(s, &l->key, &more, err);
		if (rc || !more)
			break;
		const char *key = buf_cstr(&l->key);
		if (strcmp(key, "role") == 0 && turn == TURN_NONE) {
			struct buf role = { 0 };
			buf_init(&role, KEY_MAX);
			rc = read_string(s, &role, "role", err);
			for (int i = 0; i < 3 && !rc; i++)
				if (strcmp(buf_cstr(&role), roles[i]) == 0)
					turn = i;
			if (!rc && turn == TURN_NONE)
				rc = json_scan_error(s, err, "role \"%.64s\"; roles are system, user and assistant",
					buf_cstr(&role));
			buf_finish(&role);
		} else if (strcmp(key, "content") == 0 && !content) {
			content = true;
			buf_reset(&l->word);
			rc = read_string(s, &l->word, "content", err);
		} else {
			rc = json_scan_error(
				s, err, "a message has \"role\" and \"content\", once each, not \"%.64s\"", key);
		}
	}
	if (!rc && (turn == TURN_NONE || !content))
		return json_scan_error(s, err, "a message without \"role\" or \"content\"");
	if (!rc)
		*ret_turn = turn;
	return rc;
}

static int put_message(struct jsonl_line *l, struct json_scan *s, int turn, struct err *err)
{
	static const char *const heads[] = { "<|system|>\n", "<|user|>\n", "<|assistant|>\n" };
	if (l->count > 0 && l->text.len == l->segment[l->count - 1].end)
		buf_char(&l->text, '\n'); /* behind the end token of a turn */
	buf_str(&l->text, heads[turn]);
	if (turn != TURN_ASSISTANT) {
		buf_append(&l->text, l->word.data, l->word.len);
		buf_char(&l->text, '\n');
		return 0;
	}
	if (l->word.len == 0)
		return json_scan_error(s, err, "the assistant says nothing");
	int rc = end_segment(l, s, false, err);
	buf_append(&l->text, l->word.data, l->word.len);
	return rc ? rc : end_segment(l, s, true, err);
}

static int read_messages(struct jsonl_line *l, struct json_scan *s, struct err *err)
{
	int last = TURN_NONE;
	bool more, answered = false;
	int rc = json_scan_enter(s, '[', err);
	while (!rc) {
		int turn = TURN_NONE;
		rc = json_scan_item(s, &more, err);
		if (rc || !more)
			break;
		rc = read_message(l, s, &turn, err);
		if (rc)
			break;
		bool fits = turn == TURN_SYSTEM ? last == TURN_NONE
			: turn == TURN_USER         ? last != TURN_USER
										: last == TURN_USER;
		if (!fits)
			return json_scan_error(s, err,
				"the turns are: system if at all, then user and assistant in turn; this one is out "
				"of turn");
		rc = put_message(l, s, turn, err);
		last = turn;
		answered |= turn == TURN_ASSISTANT;
	}
	if (!rc && !answered)
		return json_scan_error(s, err, "no turn of the assistant: there is nothing to learn");
	return rc ? rc : end_segment(l, s, false, err);
}

/* Which members a line has, and where. */
enum { M_TEXT, M_PROMPT, M_COMPLETION, M_MESSAGES, M_COUNT };
struct members {
	bool found[M_COUNT];
	struct json_scan at[M_COUNT];
};

static int find_members(
	struct jsonl_line *l, struct json_scan *s, struct members *m, struct err *err)
{
	static const char *const names[] = { "text", "prompt", "completion", "messages" };
	static const char *const refused[] = { "tools", "functions", "chosen", "rejected", "images" };
	bool more;
	int rc = json_scan_enter(s, '{', err);
	while (!rc) {
		rc = json_scan_key(s, &l->key, &more, err);
		if (rc || !more)
			break;
		const char *key = buf_cstr(&l->key);
		for (int i = 0; i < M_COUNT; i++) {
			if (strcmp(key, names[i]) != 0)
				continue;
			if (m->found[i])
				return json_scan_error(s, err, "a second member \"%s\"", key);
			m->found[i] = true;
			m->at[i] = *s;
		}
		for (size_t i = 0; i < ARRAY_LEN(refused); i++)
			if (strcmp(key, refused[i]) == 0)
				return json_scan_error(s, err, "member \"%s\" is not supported", key);
		rc = json_scan_skip(s, err);
	}
	return rc ? rc : json_scan_end(s, err);
}

static int kind_of(
	struct jsonl_line *l, const struct json_scan *s, const struct members *m, struct err *err)
{
	bool pair = m->found[M_PROMPT] && m->found[M_COMPLETION];
	bool half = m->found[M_PROMPT] != m->found[M_COMPLETION];
	if (m->found[M_TEXT] + pair + m->found[M_MESSAGES] != 1 || half)
		return json_scan_error(s, err,
			"a line has \"text\", or \"prompt\" and \"completion\", or \"messages\", and only one "
			"of them");
	l->kind = pair ? JSONL_PAIR : m->found[M_TEXT] ? JSONL_TEXT : JSONL_MESSAGES;
	return 0;
}

static int read_line(struct jsonl_line *l, struct json_scan *s, struct err *err)
{
	struct members m = { 0 };
	l->count = 0;
	buf_reset(&l->text);
	int rc = find_members(l, s, &m, err);
	if (!rc)
		rc = kind_of(l, s, &m, err);
	if (rc)
		return rc;
	if (l->kind == JSONL_MESSAGES)
		return read_messages(l, &m.at[M_MESSAGES], err);
	if (l->kind == JSONL_PAIR) {
		rc = read_string(&m.at[M_PROMPT], &l->text, "prompt", err);
		if (!rc)
			rc = end_segment(l, s, false, err);
	}
	int last = l->kind == JSONL_PAIR ? M_COMPLETION : M_TEXT;
	const char *name = l->kind == JSONL_PAIR ? "completion" : "text";
	size_t before = l->text.len;
	if (!rc)
		rc = read_string(&m.at[last], &l->text, name, err);
	if (!rc && l->text.len == before)
		return json_scan_error(&m.at[last], err, "\"%s\" is empty", name);
	return rc ? rc : end_segment(l, s, true, err);
}

int jsonl_line_read(struct jsonl_line *l, struct json_scan *s, struct err *err)
{
	int rc = read_line(l, s, err);
	/* A failed buffer is empty: the segments lie outside of it. */
	if (!rc && l->text.failed)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for a line");
	return rc;
}

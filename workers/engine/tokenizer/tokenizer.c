/* SPDX-License-Identifier: Apache-2.0
 * Opening and closing tokenizers, and what does not need an encoder: sizes, special ids, decoding.
 */
#include "workers/engine/tokenizer/tokenizer.h"

#include "core/base/file.h"
#include "workers/engine/tokenizer/tokenizer_private.h"

#include <stdlib.h>
#include <string.h>

enum { BYTES = 256 };

static int create(struct tokenizer **ret, struct err *err)
{
	*ret = calloc(1, sizeof(**ret));
	return *ret ? 0 : err_set(err, ERR_NO_MEMORY, NULL, "no memory for the tokenizer");
}

int tokenizer_open(
	const char *path, const char *label, const char *param, struct tokenizer **ret, struct err *err)
{
	cleanup(freep) char *text = NULL;
	size_t bytes;
	int rc = file_read(path, TOKENIZER_FILE_MAX_BYTES, &text, &bytes, err);
	if (rc)
		return rc;
	cleanup(tokenizer_closep) struct tokenizer *t = NULL;
	rc = create(&t, err);
	if (rc)
		return rc;
	t->label = label;
	t->param = param;
	rc = tokenizer_json_read(t, text, bytes, err);
	if (rc)
		return rc;
	t->label = t->param = NULL;
	*ret = take_ptr(t);
	return 0;
}

int tokenizer_open_bytes(struct tokenizer **ret, struct err *err)
{
	struct tokenizer *t;
	int rc = create(&t, err);
	if (rc)
		return rc;
	t->bytes_only = true;
	t->vocabulary = BYTES;
	*ret = t;
	return 0;
}

void tokenizer_close(struct tokenizer *t)
{
	if (!t)
		return;
	for (int i = 0; i < t->step_count; i++)
		tokenizer_regex_destroy(t->step[i].pattern);
	tokenizer_regex_destroy(t->word_char);
	free(t->raw.node);
	free(t->normalized.node);
	free(t->all.node);
	free(t->text);
	free(t->begin);
	free(t->length);
	free(t->plain);
	free(t->table.slot);
	free(t->merges.slot);
	for (int i = 0; i < t->added_count; i++)
		free(t->added[i].content);
	free(t->added);
	free(t);
}

void tokenizer_closep(struct tokenizer **t)
{
	tokenizer_close(*t);
	*t = NULL;
}

int64_t tokenizer_vocabulary(const struct tokenizer *t)
{
	return t->vocabulary;
}

size_t tokenizer_token_bytes(const struct tokenizer *t, int32_t id)
{
	if (id < 0 || id >= t->vocabulary)
		return 0;
	return t->bytes_only ? 1 : t->begin[id] == UINT32_MAX ? 0 : t->length[id];
}

int32_t tokenizer_added_id(const struct tokenizer *t, const char *text)
{
	for (int i = 0; i < t->added_count; i++)
		if (strcmp(t->added[i].content, text) == 0)
			return t->added[i].id;
	return -1;
}

int32_t tokenizer_end_id(const struct tokenizer *t)
{
	static const char *const names[] = { "<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>",
		"<|im_end|>", "[EOS]" };
	if (t->bytes_only)
		return 0;
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		int32_t id = tokenizer_added_id(t, names[i]);
		if (id >= 0)
			return id;
	}
	return -1;
}

const int32_t *tokenizer_prefix(const struct tokenizer *t, size_t *ret_count)
{
	*ret_count = t->prefix_count;
	return t->prefix;
}

const int32_t *tokenizer_suffix(const struct tokenizer *t, size_t *ret_count)
{
	*ret_count = t->suffix_count;
	return t->suffix;
}

static bool is_special(const struct tokenizer *t, int32_t id)
{
	for (int i = 0; i < t->added_count; i++)
		if (t->added[i].id == id)
			return t->added[i].special;
	return false;
}

void tokenizer_decode(
	const struct tokenizer *t, const int32_t *ids, size_t count, bool skip_special, struct buf *out)
{
	for (size_t i = 0; i < count; i++) {
		int32_t id = ids[i];
		if (id < 0 || id >= t->vocabulary)
			continue;
		if (t->bytes_only)
			buf_char(out, (char)id);
		else if (t->begin[id] != UINT32_MAX && !(skip_special && is_special(t, id)))
			buf_append(out, t->text + t->begin[id], t->length[id]);
	}
}

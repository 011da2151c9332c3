/* SPDX-License-Identifier: Apache-2.0
 * Tokenizer files. tokenizer.json has been checked by the engine's tokenizer when the data were
 * opened; here it is copied, and looked into for names. */
#include "workers/trainer/hf_tokenizer.h"

#include "core/json/reader.h"
#include "core/json/writer.h"
#include "workers/trainer/json_slice.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SMALL_TEXT_MAX = 64 * 1024, UTF8_MAX = 3, CHAT_TEMPLATE_MAX = 512 };

/* By preference; the ends are tokenizer_end_id's. GPT-2 has one token for both ends. */
static const char *const eos_names[] = { "<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>",
	"<|im_end|>", "[EOS]", NULL };
static const char *const bos_names[] = { "<|begin_of_text|>", "<s>", "<bos>", "<|endoftext|>",
	NULL };
static const char *const pad_names[] = { "<pad>", "<|pad|>", "[PAD]", "<|finetune_right_pad_id|>",
	NULL };

static int64_t find_token(
	const struct json_val *added, const char *const *names, char ret_text[static HF_TOKEN_MAX])
{
	for (; *names != NULL; names++)
		for (size_t i = 0; i < json_array_len(added); i++) {
			const struct json_val *v = json_array_at(added, i);
			if (strcmp(json_str_or(json_get(v, "content"), ""), *names) != 0)
				continue;
			snprintf(ret_text, HF_TOKEN_MAX, "%s", *names);
			return json_i64_or(json_get(v, "id"), -1);
		}
	return -1;
}

static int find_tokens(struct hf_tokenizer *t, struct err *err)
{
	cleanup(json_doc_freep) struct json_doc *doc = NULL;
	struct json_slice added;
	if (!json_slice_member((struct json_slice){ t->text, t->bytes }, "added_tokens", &added))
		return 0;
	int rc = json_doc_parse(added.at, added.bytes, HF_TOKENIZER_BYTES_MAX, &doc, err);
	if (rc < 0)
		return rc;
	const struct json_val *list = json_doc_root(doc);
	t->ids.eos = find_token(list, eos_names, t->eos);
	t->ids.bos = find_token(list, bos_names, t->bos);
	t->ids.pad = find_token(list, pad_names, t->pad);
	return 0;
}

/* ------------------------------------------------------------------------------ bytes */

/* GPT-2's alphabet: printable bytes stand for themselves, the others for U+0100 and up. */
static void byte_char(int byte, char ret[static UTF8_MAX])
{
	unsigned code = 0x100;
	for (int b = 0; b <= byte; b++) {
		bool printable = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
		if (b == byte && printable)
			code = (unsigned)byte;
		else if (b < byte && !printable)
			code++;
	}
	if (code < 0x80)
		snprintf(ret, UTF8_MAX, "%c", (char)code);
	else
		snprintf(ret, UTF8_MAX, "%c%c", (char)(0xc0 | code >> 6), (char)(0x80 | (code & 63)));
}

static void put_byte_level(struct json_writer *w, const char *key)
{
	json_key(w, key);
	json_begin_object(w);
	json_field_str(w, "type", "ByteLevel");
	json_field_bool(w, "add_prefix_space", false);
	json_field_bool(w, "trim_offsets", true);
	json_field_bool(w, "use_regex", false);
	json_end_object(w);
}

static void write_bytes(struct buf *out)
{
	struct json_writer w;
	json_writer_init(&w, out);
	json_begin_object(&w);
	json_field_str(&w, "version", "1.0");
	json_field_null(&w, "truncation");
	json_field_null(&w, "padding");
	json_key(&w, "added_tokens");
	json_begin_array(&w);
	json_end_array(&w);
	json_field_null(&w, "normalizer");
	put_byte_level(&w, "pre_tokenizer");
	json_field_null(&w, "post_processor");
	put_byte_level(&w, "decoder");
	json_key(&w, "model");
	json_begin_object(&w);
	json_field_str(&w, "type", "BPE");
	json_field_null(&w, "dropout");
	json_field_null(&w, "unk_token");
	json_field_null(&w, "continuing_subword_prefix");
	json_field_null(&w, "end_of_word_suffix");
	json_field_bool(&w, "fuse_unk", false);
	json_field_bool(&w, "byte_fallback", false);
	json_key(&w, "vocab");
	json_begin_object(&w);
	for (int b = 0; b < 256; b++) {
		char name[UTF8_MAX];
		byte_char(b, name);
		json_field_i64(&w, name, b);
	}
	json_end_object(&w);
	json_key(&w, "merges");
	json_begin_array(&w);
	json_end_array(&w);
	json_end_object(&w);
	json_end_object(&w);
	buf_char(out, '\n');
}

int hf_tokenizer_open(
	const struct job_spec *spec, const char *path, struct hf_tokenizer *ret, struct err *err)
{
	struct hf_tokenizer t = { .ids = { -1, -1, -1 } };
	if (spec->data.tokenizer == SPEC_TOKENIZER_BYTES) { /* whatever lies beside the model */
		struct buf text;
		buf_init(&text, SMALL_TEXT_MAX);
		write_bytes(&text);
		t.text = buf_take(&text, &t.bytes);
		if (t.text == NULL)
			return err_set(err, ERR_NO_MEMORY, NULL, "no memory for a tokenizer");
		t.ids.eos = 0; /* ends a document, as the engine's tokenizer has it */
	} else if (path != NULL) {
		int rc = file_read(path, HF_TOKENIZER_BYTES_MAX, &t.text, &t.bytes, err);
		if (rc == 0)
			rc = find_tokens(&t, err);
		if (rc < 0) {
			free(t.text);
			return rc;
		}
	}
	*ret = t;
	return 0;
}

void hf_tokenizer_close(struct hf_tokenizer *t)
{
	free(t->text);
	t->text = NULL;
	t->bytes = 0;
}

/* ------------------------------------------------------------------------------ files */

static void put_specials(struct json_writer *w, const struct hf_tokenizer *t)
{
	if (t->bos[0] != '\0')
		json_field_str(w, "bos_token", t->bos);
	if (t->eos[0] != '\0')
		json_field_str(w, "eos_token", t->eos);
	if (t->pad[0] != '\0')
		json_field_str(w, "pad_token", t->pad);
	if (strcmp(t->bos, "<|endoftext|>") == 0)
		json_field_str(w, "unk_token", t->bos);
}

/* The form in which conversations are trained on (docs/data.md), for transformers'
 * apply_chat_template. */
static void put_chat_template(struct json_writer *w, const struct hf_tokenizer *t)
{
	char text[CHAT_TEMPLATE_MAX];
	snprintf(text, sizeof(text),
		"{%% for message in messages %%}{%% if not loop.first %%}{{ '\\n' }}{%% endif %%}"
		"{{ '<|' + message['role'] + '|>\\n' + message['content'] }}"
		"{%% if message['role'] == 'assistant' %%}{{ %s }}{%% endif %%}{%% endfor %%}"
		"{%% if add_generation_prompt %%}{{ '\\n<|assistant|>\\n' }}{%% endif %%}",
		t->eos[0] != '\0'     ? "eos_token"
			: t->ids.eos == 0 ? "'\\x00'"
							  : "''");
	json_field_str(w, "chat_template", text);
}

static int write_config(const struct hf_tokenizer *t, const struct job_spec *spec, bool gpt2,
	struct folder *f, struct err *err)
{
	struct json_writer w;
	cleanup(buf_finish) struct buf text;
	buf_init(&text, SMALL_TEXT_MAX);
	json_writer_init(&w, &text);
	json_begin_object(&w);
	json_field_bool(&w, "add_prefix_space", false);
	put_specials(&w, t);
	if (spec->task == SPEC_FINE_TUNE)
		put_chat_template(&w, t);
	json_field_bool(&w, "clean_up_tokenization_spaces", false);
	json_field_i64(&w, "model_max_length", spec->model.n_positions);
	json_field_str(&w, "tokenizer_class", gpt2 ? "GPT2Tokenizer" : "PreTrainedTokenizerFast");
	json_end_object(&w);
	buf_char(&text, '\n');
	int rc = folder_add_text(f, "tokenizer_config.json", &text, err);
	if (rc < 0)
		return rc;
	buf_reset(&text);
	json_writer_init(&w, &text);
	json_begin_object(&w);
	put_specials(&w, t);
	json_end_object(&w);
	buf_char(&text, '\n');
	return folder_add_text(f, "special_tokens_map.json", &text, err);
}

/* A merge is "left right" or ["left", "right"]. */
static void put_merge(struct buf *out, const struct json_val *v)
{
	const char *left = json_str_or(v, NULL);
	if (left == NULL) {
		left = json_str_or(json_array_at(v, 0), "");
		buf_printf(out, "%s %s\n", left, json_str_or(json_array_at(v, 1), ""));
		return;
	}
	buf_printf(out, "%s\n", left);
}

/* The two files of GPT-2's own tokenizer, when they can be told from tokenizer.json. */
static int write_gpt2(
	const struct hf_tokenizer *t, struct folder *f, bool *ret_written, struct err *err)
{
	struct json_slice model, vocab, merges;
	cleanup(json_doc_freep) struct json_doc *doc = NULL;
	cleanup(buf_finish) struct buf text;
	buf_init(&text, HF_TOKENIZER_BYTES_MAX);
	if (!json_slice_member((struct json_slice){ t->text, t->bytes }, "model", &model) ||
		!json_slice_member(model, "vocab", &vocab) ||
		!json_slice_member(model, "merges", &merges) ||
		json_doc_parse(merges.at, merges.bytes, HF_TOKENIZER_BYTES_MAX, &doc, NULL) < 0)
		return 0;
	const struct json_val *list = json_doc_root(doc);
	buf_str(&text, "#version: 0.2\n");
	for (size_t i = 0; i < json_array_len(list); i++)
		put_merge(&text, json_array_at(list, i));
	int rc = folder_add_bytes(f, "vocab.json", vocab.at, vocab.bytes, err);
	if (rc == 0)
		rc = folder_add_text(f, "merges.txt", &text, err);
	*ret_written = rc == 0;
	return rc;
}

int hf_tokenizer_write(
	const struct hf_tokenizer *t, const struct job_spec *spec, struct folder *f, struct err *err)
{
	bool gpt2 = false;
	if (t->text == NULL)
		return 0;
	int rc = folder_add_bytes(f, "tokenizer.json", t->text, t->bytes, err);
	if (rc == 0 && spec->data.tokenizer == SPEC_TOKENIZER_GPT2)
		rc = write_gpt2(t, f, &gpt2, err);
	return rc < 0 ? rc : write_config(t, spec, gpt2, f, err);
}

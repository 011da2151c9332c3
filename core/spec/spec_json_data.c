/* SPDX-License-Identifier: Apache-2.0
 * Reads `data`: the files' format, tokens, columns, augmentation; and settles the vocabulary, which
 * may follow from the tokenizer. Called by spec_json.c after the model. */
#include "core/spec/spec_json_private.h"

#include <stdio.h>
#include <string.h>

enum { SEQUENCE_DEFAULT = 256 };

static enum spec_format default_format(enum spec_task task)
{
	switch (task) {
	case SPEC_LANGUAGE_MODEL: return SPEC_FORMAT_TEXT;
	case SPEC_FINE_TUNE: return SPEC_FORMAT_JSONL;
	case SPEC_CLICK_THROUGH: return SPEC_FORMAT_CSV;
	default: return SPEC_FORMAT_IDX;
	}
}

static void read_tokenizer(struct json_obj *o, struct spec_data *d)
{
	const char *word = NULL;
	json_obj_str(o, "tokenizer", 1, SPEC_ID_MAX - 1, &word);
	if (!word)
		return;
	memset(d->tokenizer_file, 0, sizeof(d->tokenizer_file));
	if (strcmp(word, "bytes") == 0) {
		d->tokenizer = SPEC_TOKENIZER_BYTES;
	} else if (strcmp(word, "gpt2") == 0) {
		d->tokenizer = SPEC_TOKENIZER_GPT2;
	} else if (strncmp(word, "file_", 5) == 0 && spec_json_id_ok(word)) {
		d->tokenizer = SPEC_TOKENIZER_FILE;
		memcpy(d->tokenizer_file, word, strlen(word) + 1);
	} else {
		json_obj_fail(o, ERR_INVALID_VALUE, "tokenizer",
			"%s.tokenizer must be bytes, gpt2 or the id of an uploaded tokenizer.json, not "
			"\"%.64s\"",
			o->path, word);
	}
}

static void read_tokens(struct json_obj *o, struct job_spec *spec)
{
	struct spec_data *d = &spec->data;
	read_tokenizer(o, d);
	json_obj_i64(o, "sequence_length", 1, spec->model.n_positions, &d->sequence_length);
	json_obj_bool(o, "packing", &d->packing);
	if (!o->code && d->tokenizer == SPEC_TOKENIZER_NONE && d->format != SPEC_FORMAT_TOKENS)
		json_obj_fail(o, ERR_MISSING_FIELD, "tokenizer",
			"%s.tokenizer is required: the base was trained on tokens without one", o->path);
	if (!d->packing && d->format != SPEC_FORMAT_JSONL)
		json_obj_fail(o, ERR_INVALID_VALUE, "packing", "%s.packing: %s is always packed; give true",
			o->path, spec_format_word(d->format));
}

static void refuse_tokens(struct json_obj *o)
{
	spec_json_refuse(o, "tokenizer", "only language models read tokens");
	spec_json_refuse(o, "sequence_length", "only language models read sequences");
	spec_json_refuse(o, "packing", "only language models read sequences");
}

/* Names are compared with the header's bytes. */
static bool column_ok(const char *name)
{
	size_t len = strlen(name);
	for (const char *p = name; *p; p++) {
		if ((unsigned char)*p < 0x20 || *p == 0x7F)
			return false;
	}
	return len > 0 && len < SPEC_COLUMN_MAX;
}

static void read_categorical(struct json_obj *o, struct spec_data *d)
{
	const struct json_val *list = NULL;
	json_obj_array(o, "categorical", SPEC_TABLES_MAX, &list);
	for (size_t i = 0; i < json_array_len(list); i++) {
		const char *name = json_str_or(json_array_at(list, i), NULL);
		bool again = name && strcmp(name, d->label_column) == 0;
		for (size_t k = 0; k < i && name; k++)
			again |= strcmp(name, d->categorical[k]) == 0;
		if (!name || !column_ok(name) || again) {
			json_obj_fail(o, name ? ERR_INVALID_VALUE : ERR_INVALID_TYPE, "categorical",
				"%s.categorical[%zu] must be a column's name of 1 to %d bytes, not the label's and "
				"each at most once",
				o->path, i, SPEC_COLUMN_MAX - 1);
			return;
		}
		memcpy(d->categorical[i], name, strlen(name) + 1);
	}
	d->categorical_count = (int)json_array_len(list);
}

static void read_columns(struct json_obj *o, struct job_spec *spec)
{
	struct spec_data *d = &spec->data;
	const char *label = NULL;
	bool click = spec->task == SPEC_CLICK_THROUGH;
	if (d->format != SPEC_FORMAT_CSV) {
		spec_json_refuse(o, "label_column", "only csv files have columns with names");
		spec_json_refuse(o, "categorical", "only csv files have columns with names");
		return;
	}
	if (click)
		(void)snprintf(d->label_column, sizeof(d->label_column), "label");
	json_obj_str(o, "label_column", 1, SPEC_COLUMN_MAX - 1, &label);
	if (label && !column_ok(label))
		json_obj_fail(o, ERR_INVALID_VALUE, "label_column",
			"%s.label_column must not hold control characters", o->path);
	else if (label) {
		memset(d->label_column, 0, sizeof(d->label_column));
		memcpy(d->label_column, label, strlen(label) + 1);
	}
	if (click) {
		json_obj_need(o, "categorical");
		read_categorical(o, d);
	} else {
		spec_json_refuse(o, "categorical", "only click_through has tables to look values up in");
	}
}

static void read_augmentation(struct json_obj *o, struct job_spec *spec)
{
	if (spec->task != SPEC_IMAGE_CLASSIFICATION) {
		spec_json_refuse(o, "flip", "only images can be flipped");
		spec_json_refuse(o, "crop_padding", "only images can be cropped");
		return;
	}
	json_obj_bool(o, "flip", &spec->data.flip);
	json_obj_i64(o, "crop_padding", 0, SPEC_CROP_PADDING_MAX, &spec->data.crop_padding);
}

static void read_fields(struct json_obj *o, struct job_spec *spec, const struct spec_base *base)
{
	struct spec_data *d = &spec->data;
	int format = d->format;
	spec_json_word_or_auto(o, "format", spec_json_format_words, &format);
	d->format = (enum spec_format)format;
	json_obj_bool(o, "shuffle", &d->shuffle);
	/* Files of tokens need no tokenizer; a base's is passed on all the same. */
	if (d->format == SPEC_FORMAT_TOKENS && !base)
		d->tokenizer = SPEC_TOKENIZER_NONE;
	if (spec_is_language(spec))
		read_tokens(o, spec);
	else
		refuse_tokens(o);
	read_columns(o, spec);
	read_augmentation(o, spec);
}

/* A vocabulary that was left out, and one that is too small for the tokenizer. */
static void settle_vocabulary(struct json_obj *o, struct job_spec *spec, bool tokenizer_given)
{
	int64_t *size = &spec->model.vocab_size;
	int64_t least = spec->data.tokenizer == SPEC_TOKENIZER_BYTES ? SPEC_VOCAB_BYTES
		: spec->data.tokenizer == SPEC_TOKENIZER_GPT2            ? SPEC_VOCAB_GPT2
																 : 0;
	if (o->code || !spec_is_language(spec))
		return;
	if (*size == 0 && least == 0) {
		spec_json_fail_in(o, "model.config", "vocab_size",
			"the size of the vocabulary is not known from the tokenizer: give it");
		return;
	}
	if (*size == 0)
		*size = least;
	if (*size >= least)
		return;
	const char *word = spec->data.tokenizer == SPEC_TOKENIZER_BYTES ? "bytes" : "gpt2";
	if (tokenizer_given)
		spec_json_fail_in(o, "data", "tokenizer",
			"%s has %lld tokens, the model's vocabulary only %lld", word, (long long)least,
			(long long)*size);
	else
		spec_json_fail_in(o, "model.config", "vocab_size",
			"the tokenizer %s has %lld tokens, the vocabulary only %lld", word, (long long)least,
			(long long)*size);
}

void spec_json_data_read(struct json_obj *o, struct job_spec *spec, const struct spec_base *base)
{
	struct json_obj part;
	bool language = spec_is_language(spec);
	int64_t positions = spec->model.n_positions;
	struct spec_data *d = &spec->data;
	if (o->code)
		return;
	d->format = default_format(spec->task);
	d->shuffle = true;
	if (language) {
		d->tokenizer = SPEC_TOKENIZER_BYTES;
		d->sequence_length = positions < SEQUENCE_DEFAULT ? positions : SEQUENCE_DEFAULT;
		d->packing = true;
	}
	if (language && base) {
		d->tokenizer = base->tokenizer;
		memcpy(d->tokenizer_file, base->tokenizer_file, sizeof(d->tokenizer_file));
	}
	if (!spec_json_open_part(o, "data", &part)) {
		part = (struct json_obj){ .err = o->err }; /* what an empty object reads as */
		json_obj_path(o, "data", part.path);
	}
	bool tokenizer_given = json_obj_has(&part, "tokenizer");
	read_fields(&part, spec, base);
	spec_json_close_part(o, &part);
	settle_vocabulary(o, spec, tokenizer_given);
}

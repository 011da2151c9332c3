/* SPDX-License-Identifier: Apache-2.0
 * The rules that hold between the parts of a spec, each error at the field that is to change.
 * Called by spec_json.c. */
#include "core/spec/spec_json_private.h"

#include <stdio.h>
#include <string.h>

enum { PAIR_FILES = 2, WORDS_MAX = 96 };

#define BIT(x) (1u << (x))

/* What each task trains, and reads. */
static const unsigned FAMILIES[SPEC_TASK_COUNT] = {
	[SPEC_LANGUAGE_MODEL] = BIT(SPEC_GPT2) | BIT(SPEC_LLAMA),
	[SPEC_FINE_TUNE] = BIT(SPEC_GPT2) | BIT(SPEC_LLAMA),
	[SPEC_IMAGE_CLASSIFICATION] = BIT(SPEC_MLP) | BIT(SPEC_CNN),
	[SPEC_REGRESSION] = BIT(SPEC_MLP),
	[SPEC_CLASSIFICATION] = BIT(SPEC_MLP),
	[SPEC_CLICK_THROUGH] = BIT(SPEC_DLRM),
};
static const unsigned FORMATS[SPEC_TASK_COUNT] = {
	[SPEC_LANGUAGE_MODEL] =
		BIT(SPEC_FORMAT_TEXT) | BIT(SPEC_FORMAT_JSONL) | BIT(SPEC_FORMAT_TOKENS),
	[SPEC_FINE_TUNE] = BIT(SPEC_FORMAT_JSONL),
	[SPEC_IMAGE_CLASSIFICATION] =
		BIT(SPEC_FORMAT_IDX) | BIT(SPEC_FORMAT_NPY) | BIT(SPEC_FORMAT_IMAGE_TAR),
	[SPEC_REGRESSION] = BIT(SPEC_FORMAT_IDX) | BIT(SPEC_FORMAT_CSV) | BIT(SPEC_FORMAT_NPY),
	[SPEC_CLASSIFICATION] = BIT(SPEC_FORMAT_IDX) | BIT(SPEC_FORMAT_CSV) | BIT(SPEC_FORMAT_NPY),
	[SPEC_CLICK_THROUGH] = BIT(SPEC_FORMAT_CSV),
};

static void list_words(unsigned set, const char *const *words, char ret[static WORDS_MAX])
{
	size_t used = 0;
	ret[0] = '\0';
	for (int i = 0; words[i] && used < WORDS_MAX; i++) {
		if (set & BIT(i))
			used +=
				(size_t)snprintf(ret + used, WORDS_MAX - used, "%s%s", used ? ", " : "", words[i]);
	}
}

/* What follows reads the fields of the family. */
void spec_json_check_family(struct json_obj *o, const struct job_spec *spec)
{
	char words[WORDS_MAX];
	if (FAMILIES[spec->task] & BIT(spec->model.family))
		return;
	list_words(FAMILIES[spec->task], spec_json_family_words, words);
	json_obj_fail(o, ERR_INVALID_VALUE, "model",
		"%s.model: the task %s cannot train the family %s; it trains: %s", o->path,
		spec_task_word(spec->task), spec_family_word(spec->model.family), words);
}

static void check_pair(
	struct json_obj *o, enum spec_format format, const char *key, int count, bool may_be_none)
{
	const char *name = format == SPEC_FORMAT_IDX ? "IDX" : "npy";
	if (count != PAIR_FILES && !(may_be_none && count == 0))
		json_obj_fail(o, ERR_INVALID_VALUE, key,
			"%s.%s must name two %s files, one of samples and one of labels%s; it names %d",
			o->path, key, name, may_be_none ? ", or none" : "", count);
}

static void check_files(struct json_obj *o, const struct job_spec *spec)
{
	enum spec_format format = spec->data.format;
	if (spec->training_file_count == 0)
		json_obj_fail(o, ERR_INVALID_VALUE, "training_file",
			"%s.training_file must name at least one file", o->path);
	if (format != SPEC_FORMAT_IDX && format != SPEC_FORMAT_NPY)
		return;
	check_pair(o, format, "training_file", spec->training_file_count, false);
	check_pair(o, format, "validation_file", spec->validation_file_count, true);
}

static void check_format(struct json_obj *o, const struct job_spec *spec)
{
	char words[WORDS_MAX];
	if (FORMATS[spec->task] & BIT(spec->data.format))
		return;
	list_words(FORMATS[spec->task], spec_json_format_words, words);
	spec_json_fail_in(o, "data", "format", "the task %s reads files of %s, not of %s",
		spec_task_word(spec->task), words, spec_format_word(spec->data.format));
}

static void check_columns(struct json_obj *o, const struct job_spec *spec)
{
	int count = spec->data.categorical_count;
	if (count != spec->model.table_count)
		spec_json_fail_in(o, "data", "categorical",
			"%d columns for %d tables: name one for each table, in their order", count,
			spec->model.table_count);
}

static void check_recomputation(struct json_obj *o, const struct job_spec *spec)
{
	if (spec->checkpointing != SPEC_KEEP_ALL && !spec_is_language(spec))
		json_obj_fail(o, ERR_INVALID_VALUE, "activation_checkpointing",
			"%s.activation_checkpointing: only gpt2 and llama are recomputed by layer, not %s; "
			"give \"none\"",
			o->path, spec_family_word(spec->model.family));
}

static void check_sizes(struct json_obj *o, const struct job_spec *spec)
{
	const struct spec_model *m = &spec->model;
	int64_t batch = spec->hyper.batch_size;
	if (batch * spec->data.sequence_length > SPEC_BATCH_TOKENS_MAX)
		spec_json_fail_in(o, "hyperparameters", "batch_size",
			"%lld sequences of %lld tokens are more than %d tokens", (long long)batch,
			(long long)spec->data.sequence_length, SPEC_BATCH_TOKENS_MAX);
	if (batch * m->in_channels * m->in_height * m->in_width > SPEC_BATCH_VALUES_MAX)
		spec_json_fail_in(o, "hyperparameters", "batch_size",
			"%lld samples of %lld x %lld x %lld are more than %lld values", (long long)batch,
			(long long)m->in_channels, (long long)m->in_height, (long long)m->in_width,
			(long long)SPEC_BATCH_VALUES_MAX);
}

void spec_json_check_all(struct json_obj *o, const struct job_spec *spec)
{
	if (o->code)
		return;
	check_format(o, spec);
	check_files(o, spec);
	check_columns(o, spec);
	check_recomputation(o, spec);
	check_sizes(o, spec);
}

/* SPDX-License-Identifier: Apache-2.0
 * What the spec_json_*.c files share: the words of the enums and the readers of the parts. */
#pragma once

#include "core/json/reader.h"
#include "core/spec/spec.h"

enum {
	SPEC_HIDDEN_UNITS_MAX = 64 * 1024,
	SPEC_CHANNEL_MAX = 4096,
	SPEC_BLOCKS_MAX = 16,
	SPEC_BATCH_MAX = 64 * 1024,
	SPEC_STEPS_MAX = 1000 * 1000 * 1000,
	/* Products that plans multiply by widths, bytes and layers without leaving 64 bits. */
	SPEC_BATCH_TOKENS_MAX = 64 * 1024 * 1024,
	SPEC_SAMPLE_VALUES_MAX = 16 * 1024 * 1024,
};
static const int64_t SPEC_BATCH_VALUES_MAX = 4LL * 1024 * 1024 * 1024;

/* NULL-terminated, in the order of the enum. */
extern const char *const spec_json_task_words[];
extern const char *const spec_json_family_words[];
extern const char *const spec_json_format_words[];
extern const char *const spec_json_tokenizer_words[]; /* SPEC_TOKENIZER_NONE has none: null */
extern const char *const spec_json_optimizer_words[];
extern const char *const spec_json_schedule_words[];
extern const char *const spec_json_precision_words[];
extern const char *const spec_json_priority_words[]; /* of priority + 1 */

/* Refuses a field that the documented form has and this version has not: it may only be absent or
 * null. */
void spec_json_refuse(struct json_obj *o, const char *key, const char *supported);
/* "auto" under the key; marks it as seen. */
bool spec_json_is_auto(struct json_obj *o, const char *key);
/* Like json_obj_word, but "auto" leaves *ret alone, and the error says "auto" too. */
void spec_json_word_or_auto(
	struct json_obj *o, const char *key, const char *const *words, int *ret);

/* Each reads one member of the job object into its part of the spec; o sticks. */
void spec_json_model_read(struct json_obj *o, struct job_spec *spec);
void spec_json_hyper_read(struct json_obj *o, struct job_spec *spec);
void spec_json_run_read(struct json_obj *o, struct job_spec *spec);

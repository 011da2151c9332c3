/* SPDX-License-Identifier: Apache-2.0
 * What the spec_json_*.c files share: the words of the enums and the readers of the parts. */
#pragma once

#include "core/json/reader.h"
#include "core/spec/spec.h"
#include "core/spec/spec_json.h"

enum {
	SPEC_HIDDEN_UNITS_MAX = 64 * 1024,
	SPEC_CHANNEL_MAX = 4096,
	SPEC_BLOCKS_MAX = 16, /* blocks_per_stage; a residual stage has up to SPEC_LAYERS_MAX */
	SPEC_BATCH_MAX = 64 * 1024,
	SPEC_STEPS_MAX = 1000 * 1000 * 1000,
	SPEC_VOCAB_BYTES = 256,  /* of the tokenizer "bytes" */
	SPEC_VOCAB_GPT2 = 50257, /* of the tokenizer "gpt2" */
	SPEC_TABLE_ROWS_MAX = 1000 * 1000 * 1000,
	SPEC_LORA_RANK_MAX = 1024,
	SPEC_CROP_PADDING_MAX = 64,
	SPEC_DEVICES_MAX = 256, /* of one job; what one group of ranks may hold (workers/comm) */
	/* Products that plans multiply by widths, bytes and layers without leaving 64 bits. */
	SPEC_BATCH_TOKENS_MAX = 64 * 1024 * 1024,
	SPEC_SAMPLE_VALUES_MAX = 16 * 1024 * 1024,
};
static const int64_t SPEC_BATCH_VALUES_MAX = 4LL * 1024 * 1024 * 1024;

/* NULL-terminated, in the order of the enum. */
extern const char *const spec_json_task_words[];
extern const char *const spec_json_family_words[];
extern const char *const spec_json_format_words[];
extern const char *const spec_json_block_words[];
extern const char *const spec_json_stem_words[];
extern const char *const spec_json_optimizer_words[];
extern const char *const spec_json_schedule_words[];
extern const char *const spec_json_precision_words[];
extern const char *const spec_json_checkpointing_words[];
extern const char *const spec_json_priority_words[]; /* of priority + 1 */

/* Refuses a field that has no meaning here: it may only be absent or null. */
void spec_json_refuse(struct json_obj *o, const char *key, const char *why);
/* "auto" under the key; marks it as seen. */
bool spec_json_is_auto(struct json_obj *o, const char *key);
/* Like json_obj_word, but "auto" leaves *ret alone, and the error says "auto" too. */
void spec_json_word_or_auto(
	struct json_obj *o, const char *key, const char *const *words, int *ret);
void spec_json_need_i64(
	struct json_obj *o, const char *key, int64_t min, int64_t max, int64_t *ret);
/* A list of numbers from 1 to max; *ret_count stays when it is absent. */
void spec_json_widths(struct json_obj *o, const char *key, size_t max_count, int64_t max,
	int64_t *ret, int *ret_count);
/* Opens a nested object when it is given; false when there is nothing to read. close_part hands its
 * error up. */
bool spec_json_open_part(struct json_obj *o, const char *key, struct json_obj *ret_part);
void spec_json_close_part(struct json_obj *o, struct json_obj *part);
/* Like json_obj_fail at a field of a part that is closed already ("model.config", "vocab_size");
 * the path leads the text. */
void spec_json_fail_in(struct json_obj *o, const char *part, const char *key, const char *fmt, ...)
	printf_like(4, 5);
/* An id is also a name of a file in the agent's folder: no slash, no leading dot. */
bool spec_json_id_ok(const char *id);

/* Each reads one member of the job object into its part of the spec; o sticks. In this order: what
 * follows reads what comes before. */
void spec_json_model_read(struct json_obj *o, struct job_spec *spec, const struct spec_base *base);
void spec_json_lora_read(struct json_obj *o, struct job_spec *spec);
void spec_json_data_read(struct json_obj *o, struct job_spec *spec, const struct spec_base *base);
void spec_json_run_read(struct json_obj *o, struct job_spec *spec);
void spec_json_parallel_read(struct json_obj *o, struct job_spec *spec);
void spec_json_hyper_read(struct json_obj *o, struct job_spec *spec);

/* The config's fields of a family. */
void spec_json_gpt2_read(struct json_obj *o, struct spec_model *m);
void spec_json_llama_read(struct json_obj *o, struct spec_model *m);
void spec_json_dlrm_read(struct json_obj *o, struct spec_model *m);
void spec_json_cnn_read(struct json_obj *o, struct spec_model *m);
void spec_json_mlp_read(struct json_obj *o, struct spec_model *m);

/* Ranks that share each batch, 1 or more. */
int64_t spec_json_parallel_data(const struct job_spec *spec);
/* Several devices, and nobody has said how they share the job (o: the whole spec). */
bool spec_json_parallel_open(const struct json_val *o, const struct job_spec *spec);

/* What absent and "auto" mean for this task, family and optimizer (spec_json_auto.c). */
enum spec_optimizer spec_json_auto_optimizer(const struct job_spec *spec);
void spec_json_auto_numbers(const struct job_spec *spec, struct spec_hyper *ret);
int64_t spec_json_auto_batch(const struct job_spec *spec);
int64_t spec_json_auto_micro_batch(const struct job_spec *spec);
/* What it is a divisor within. */
int64_t spec_json_auto_micro_batch_most(const struct job_spec *spec);
enum spec_precision spec_json_auto_precision(const struct job_spec *spec);
/* A field that is absent reads as "auto". The first tasks and families have fixed defaults instead,
 * which specs rely on. */
bool spec_json_absent_is_auto(const struct job_spec *spec);

/* The rules between the parts. check_family right after the model, check_all at the end. */
void spec_json_check_family(struct json_obj *o, const struct job_spec *spec);
void spec_json_check_all(struct json_obj *o, const struct job_spec *spec);

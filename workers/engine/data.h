/* SPDX-License-Identifier: Apache-2.0
 * Training data: files mapped read-only, checked completely when opened, then copied into the
 * plan's batch buffers in a seeded order. Used by the engine and by the trainer's validate mode.
 * An open data set is read-only: threads may share it. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "core/spec/spec.h"
#include "workers/plan/plan.h"

#include <stdint.h>

struct data;

/* One file of the spec. All strings are borrowed for the call. */
struct data_file {
	const char *path;  /* what is opened (a path; /proc/self/fd/N works) */
	const char *label; /* what errors call it: the customer's file name or id */
};

/* What was found. */
struct data_info {
	int64_t samples; /* language: full windows or packed sequences; images: images; tables: rows */
	int64_t tokens;  /* language: predicted (valid) tokens, a text's last, partial window's too;
					  * otherwise 0 */
	int64_t bytes;   /* of all files, as they lie on the disk */
	int64_t documents; /* jsonl: lines; otherwise 0 */
	int64_t truncated; /* jsonl: documents cut at sequence_length */
	int64_t channels, height, width;
	int64_t classes;              /* 1 + the largest label; regression: outputs; clicks: 0 */
	int64_t vocabulary;           /* 1 + the largest token id; bytes: 256 */
	double entropy_bits_per_byte; /* text: order-0 entropy of the text itself; otherwise 0 */
	double bytes_per_token;       /* text bytes a predicted token stands for; bytes: 1 */
};

/* Where data sets may put what they derive (tokens of a text, decoded images): a folder of the
 * attempt. The files are unlinked while they are mapped. NULL: in TMPDIR, or /tmp. */
struct data_options {
	const char *scratch_dir;
	const char *tokenizer_path; /* tokenizer.json, when the spec's tokenizer is GPT2 or FILE */
	int threads;                /* for tokenizing and decoding at opening; 0 = 1 */
};

/* Maps and checks the files. The spec says task, format, sequence length, and (where not 0) the
 * shape and number of classes that must be found. Errors are INVALID_DATA with file, position and
 * what was expected, param "training_file" or "validation_file" (`param`); IO when a file cannot be
 * read. Text: files are concatenated; each must be UTF-8. IDX and npy: one file of samples, one of
 * labels (IDX told apart by their magic; npy and regression: the first is the samples). csv, jsonl,
 * tokens, image tars: files follow each other. options may be NULL (bytes, no scratch). */
int data_open(const struct job_spec *spec, const struct data_file *files, int count,
	const char *param, const struct data_options *options, struct data **ret,
	struct err *err) must_check;
void data_close(struct data *d);
void data_closep(struct data **d);
const struct data_info *data_info(const struct data *d);

/* The whole of validation mode: opens everything the spec names, checks that training and
 * validation agree, and tells the counts. validation_count may be 0. */
int data_validate(const struct job_spec *spec, const struct data_file *training, int training_count,
	const struct data_file *validation, int validation_count, const struct data_options *options,
	struct plan_dataset *ret, struct err *err) must_check;
/* Whether two open sets can be trained on and validated with together: shapes, targets, classes. */
int data_agree(
	const struct data *training, const struct data *validation, struct err *err) must_check;
/* The counts of open sets, for plan_set_dataset. validation may be NULL. */
void data_dims(
	const struct data *training, const struct data *validation, struct plan_dataset *ret);

/* The index of the sample at a position of the endless training stream: epoch = position / samples;
 * within an epoch each sample comes exactly once, in an order that depends on (seed, epoch) alone.
 * shuffle false: file order. */
int64_t data_sample_at(int64_t samples, uint64_t seed, bool shuffle, int64_t position);
/* Loss rows of a sample that count: tokens with a label; 1 where a sample is a row. index as in
 * data_read. */
int64_t data_valid_rows(const struct data *d, int64_t index);

/* The host-visible buffers of one micro-batch, row-major; NULL where the plan has none. */
struct data_batch {
	int64_t samples;    /* slots of the batch; needed where there are bags */
	void *input;        /* int32 tokens [samples, T], or fp32 [samples, height, width, channels],
						 * or fp32 dense features [samples, dense] */
	void *labels;       /* int32, -1 = no loss here: [samples, T] or [samples]; fp32 [samples,
						 * outputs] for regression; fp32 0 or 1 [samples] for click_through, NaN =
						 * no loss */
	int32_t *positions; /* [samples, T] of each token inside its document */
	int32_t *starts;    /* [samples, T]: index within the sequence where the token's document
						 * begins: attention sees [starts[i], i] */
	int32_t *bags;      /* [tables, samples, lookups] row ids, -1 = none */
};

/* Fills slot `slot` of the batch with the sample (index < samples; the validation of a running text
 * may also read the last, partial window at index == samples, its missing labels -1). `draw` keys
 * the augmentation of training images; 0: none. */
void data_read(
	const struct data *d, int64_t index, int64_t slot, uint64_t draw, const struct data_batch *b);
/* Marks a slot as empty: zero input, labels ignored. */
void data_blank(const struct data *d, int64_t slot, const struct data_batch *b);
/* Samples that an evaluation reads: samples, plus one for a text's partial window. */
int64_t data_evaluation_samples(const struct data *d);

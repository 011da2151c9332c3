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
	int64_t samples; /* language model: full windows; images: images */
	int64_t tokens;  /* language model: predicted tokens (bytes - 1); otherwise 0 */
	int64_t bytes;   /* of all files */
	int64_t channels, height, width;
	int64_t classes;              /* 1 + the largest label; regression: outputs */
	double entropy_bits_per_byte; /* text: order-0 entropy of the text itself; otherwise 0 */
};

/* Maps and checks the files. The spec says task, format, sequence length, and (where not 0) the
 * shape and number of classes that must be found. Errors are INVALID_DATA with file, position and
 * what was expected, param "training_file" or "validation_file" (`param`); IO when a file cannot be
 * read. Text: files are concatenated; each must be UTF-8. IDX: one file of samples, one of labels,
 * told apart by their magic (regression: the first is the samples). */
int data_open(const struct job_spec *spec, const struct data_file *files, int count,
	const char *param, struct data **ret, struct err *err) must_check;
void data_close(struct data *d);
void data_closep(struct data **d);
const struct data_info *data_info(const struct data *d);

/* The whole of validation mode: opens everything the spec names, checks that training and
 * validation agree, and tells the counts. validation_count may be 0. */
int data_validate(const struct job_spec *spec, const struct data_file *training, int training_count,
	const struct data_file *validation, int validation_count, struct plan_dataset *ret,
	struct err *err) must_check;
/* The counts of open sets, for plan_set_dataset. validation may be NULL. */
void data_dims(
	const struct data *training, const struct data *validation, struct plan_dataset *ret);

/* The index of the sample at a position of the endless training stream: epoch = position / samples;
 * within an epoch each sample comes exactly once, in an order that depends on (seed, epoch) alone.
 * shuffle false: file order. */
int64_t data_sample_at(int64_t samples, uint64_t seed, bool shuffle, int64_t position);

/* Fills rows of the plan's host-visible batch buffers with the sample (index < samples; a language
 * model's validation may also read the last, partial window at index == samples, its missing labels
 * -1). `slot` is the place in the micro-batch. */
void data_read(const struct data *d, int64_t index, int64_t slot, void *input, void *labels);
/* Marks a slot as empty: zero input, labels ignored. */
void data_blank(const struct data *d, int64_t slot, void *input, void *labels);
/* Samples that an evaluation reads: samples, plus one for a language model's partial window. */
int64_t data_evaluation_samples(const struct data *d);

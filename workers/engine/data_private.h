/* SPDX-License-Identifier: Apache-2.0
 * What the data files share: mapped files and the two formats behind data.h. */
#pragma once

#include "workers/engine/data.h"

#include <stddef.h>

struct data_map {
	const unsigned char *bytes;
	size_t size;
	char label[SPEC_NAME_MAX * 2];
};

struct data {
	enum spec_task task;
	enum spec_format format;
	struct data_info info;
	int map_count;
	struct data_map map[SPEC_FILES_MAX];
	/* text */
	int64_t window;                    /* sequence_length */
	int64_t begin[SPEC_FILES_MAX + 1]; /* stream position where each file starts */
	/* idx */
	const struct data_map *samples, *labels;
	int64_t sample_header, label_header; /* bytes before the first item */
	int sample_type, label_type;         /* IDX element types */
	int64_t features;                    /* elements of one sample */
};

/* Checks everything and fills info; the files are mapped. */
int data_text_open(struct data *d, const char *param, struct err *err) must_check;
void data_text_read(const struct data *d, int64_t index, int32_t *tokens, int32_t *labels);
int data_idx_open(
	struct data *d, const struct job_spec *spec, const char *param, struct err *err) must_check;
void data_idx_read(const struct data *d, int64_t index, int64_t slot, float *input, void *labels);

/* SPDX-License-Identifier: Apache-2.0
 * The job spec, resolved: plain data, no "auto" left. The server's create handler and the trainer
 * read it from JSON (spec_json.h); workers/plan compiles it. This header needs nothing but
 * core/base, so plan and engine may include it. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"

#include <stdbool.h>
#include <stdint.h>

enum spec_task {
	SPEC_LANGUAGE_MODEL,
	SPEC_IMAGE_CLASSIFICATION,
	SPEC_REGRESSION,
	SPEC_CLASSIFICATION
};
enum spec_family { SPEC_MLP, SPEC_CNN, SPEC_GPT2 };
enum spec_format { SPEC_FORMAT_TEXT, SPEC_FORMAT_IDX };
enum spec_tokenizer { SPEC_TOKENIZER_NONE, SPEC_TOKENIZER_BYTES };
enum spec_optimizer { SPEC_ADAMW, SPEC_SGD };
enum spec_schedule { SPEC_CONSTANT, SPEC_LINEAR, SPEC_COSINE };
enum spec_precision { SPEC_FP32 };

enum {
	SPEC_FILES_MAX = 8,
	SPEC_LAYERS_MAX = 256,
	SPEC_NAME_CHARS_MAX = 64,
	SPEC_NAME_MAX = SPEC_NAME_CHARS_MAX * 4 + 1, /* bytes of UTF-8 */
	SPEC_ID_MAX = 64,
	SPEC_REGIONS_MAX = 8,
	SPEC_REGION_MAX = 32,
	SPEC_CHANNELS_MAX = 8,
};

/* model.config; which members count depends on the family. */
struct spec_model {
	enum spec_family family;
	/* gpt2 */
	int64_t n_layer, n_head, n_embd, n_positions, vocab_size;
	/* mlp: hidden[hidden_count] units with ReLU; cnn: channels[channel_count], one stage each:
	 * conv3x3-ReLU-conv3x3-ReLU -maxpool2 (blocks_per_stage convolutions), then a hidden fully
	 * connected layer (0 = none) and the classifier */
	int64_t hidden[SPEC_LAYERS_MAX];
	int hidden_count;
	int64_t channels[SPEC_CHANNELS_MAX];
	int channel_count;
	int64_t blocks_per_stage;
	/* mlp and cnn: input shape and classes (regression: outputs); "auto" is resolved from the data
	 * at validation */
	int64_t in_channels, in_height, in_width, n_classes;
};

struct spec_data {
	enum spec_format format;
	enum spec_tokenizer tokenizer;
	int64_t sequence_length; /* language_model */
	bool shuffle;
};

struct spec_hyper {
	double epochs;
	int64_t max_steps; /* 0 = from epochs */
	int64_t batch_size, micro_batch_size;
	enum spec_optimizer optimizer;
	enum spec_schedule schedule;
	double learning_rate, min_lr_ratio;
	int64_t warmup_steps;
	double weight_decay, beta1, beta2, eps, momentum, grad_clip; /* grad_clip 0 = off */
	double dropout, label_smoothing;
};

struct spec_limits {
	int64_t max_runtime_s;   /* 0 = none */
	int64_t max_cost_micros; /* millionths of the currency; 0 = none */
};

struct job_spec {
	char name[SPEC_NAME_MAX];
	enum spec_task task;
	struct spec_model model;
	char training_file[SPEC_FILES_MAX]
					  [SPEC_ID_MAX]; /* IDX: images then labels, told apart by their magic */
	int training_file_count;
	char validation_file[SPEC_FILES_MAX][SPEC_ID_MAX];
	int validation_file_count;
	struct spec_data data;
	struct spec_hyper hyper;
	enum spec_precision precision;
	char instance_type[SPEC_ID_MAX];
	int64_t device_count;
	int64_t checkpoint_every_steps; /* 0 = only the last */
	int64_t checkpoint_keep;
	int64_t evaluation_every_steps; /* 0 = only at the end */
	char residency[SPEC_REGIONS_MAX][SPEC_REGION_MAX];
	int residency_count;
	struct spec_limits limits;
	int priority; /* -1 low, 0 normal, 1 high */
	int64_t seed;
};

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
	SPEC_FINE_TUNE, /* supervised: loss on the completions only */
	SPEC_IMAGE_CLASSIFICATION,
	SPEC_REGRESSION,
	SPEC_CLASSIFICATION,
	SPEC_CLICK_THROUGH,
	SPEC_TASK_COUNT,
};
enum spec_family { SPEC_MLP, SPEC_CNN, SPEC_GPT2, SPEC_LLAMA, SPEC_DLRM, SPEC_FAMILY_COUNT };
enum spec_format {
	SPEC_FORMAT_TEXT,
	SPEC_FORMAT_IDX,
	SPEC_FORMAT_JSONL,
	SPEC_FORMAT_CSV,
	SPEC_FORMAT_NPY,
	SPEC_FORMAT_IMAGE_TAR,
	SPEC_FORMAT_TOKENS,
	SPEC_FORMAT_COUNT,
};
/* FILE: data.tokenizer_file is a tokenizer.json (a file id). GPT2 is the same with the published
 * vocabulary, which the yard has under that name. */
enum spec_tokenizer {
	SPEC_TOKENIZER_NONE,
	SPEC_TOKENIZER_BYTES,
	SPEC_TOKENIZER_GPT2,
	SPEC_TOKENIZER_FILE,
	SPEC_TOKENIZER_COUNT,
};
enum spec_optimizer { SPEC_ADAMW, SPEC_SGD };
enum spec_schedule { SPEC_CONSTANT, SPEC_LINEAR, SPEC_COSINE };
/* TF32: all is fp32, but products round their operands to 10 bits of mantissa, on devices that can.
 */
enum spec_precision { SPEC_FP32, SPEC_BF16, SPEC_FP16, SPEC_TF32, SPEC_PRECISION_COUNT };
enum spec_checkpointing { SPEC_KEEP_ALL, SPEC_SELECTIVE, SPEC_FULL };
/* cnn: PLAIN stages end in a max pool; the others are residual networks (He et al. 2015; the
 * bottleneck strides in its 3x3 convolution). */
enum spec_block { SPEC_BLOCK_PLAIN, SPEC_BLOCK_BASIC, SPEC_BLOCK_BOTTLENECK };
/* cnn, residual: 3x3 stride 1, or 7x7 stride 2 and a 3x3 max pool of stride 2. */
enum spec_stem { SPEC_STEM_3, SPEC_STEM_7 };

enum {
	SPEC_FILES_MAX = 8,
	SPEC_LAYERS_MAX = 256,
	SPEC_NAME_CHARS_MAX = 64,
	SPEC_NAME_MAX = SPEC_NAME_CHARS_MAX * 4 + 1, /* bytes of UTF-8 */
	SPEC_ID_MAX = 64,
	SPEC_REGIONS_MAX = 8,
	SPEC_REGION_MAX = 32,
	SPEC_CHANNELS_MAX = 8,
	SPEC_TABLES_MAX = 64,
	SPEC_COLUMN_MAX = 65, /* bytes of a column's name, with the end */
	SPEC_TARGETS_MAX = 16,
	SPEC_TARGET_MAX = 32,
};

/* model.config; which members count depends on the family. */
struct spec_model {
	enum spec_family family;
	/* gpt2 and llama. The JSON names of llama are Hugging Face's: num_hidden_layers,
	 * num_attention_heads, num_key_value_heads, hidden_size, intermediate_size,
	 * max_position_embeddings, vocab_size, rms_norm_eps, rope_theta, tie_word_embeddings. */
	int64_t n_layer, n_head, n_embd, n_positions, vocab_size;
	int64_t n_kv_head; /* llama; = n_head without grouping */
	int64_t n_inner;   /* width of the mlp; gpt2: 4 * n_embd */
	double norm_eps;   /* 1e-5 */
	double rope_theta; /* llama: 10000 */
	bool tied;         /* the head is the token embedding; gpt2: always */
	/* mlp: hidden[hidden_count] units with ReLU; cnn: channels[channel_count], one stage each.
	 * PLAIN: blocks_per_stage times conv3x3-ReLU, then maxpool2; hidden fully connected layers and
	 * the classifier. BASIC, BOTTLENECK: stage s has blocks[s] blocks, channels[s] wide (times 4
	 * for a bottleneck's output), stages after the first halve the image; batch norm after each
	 * convolution; global average pool and the classifier. */
	int64_t hidden[SPEC_LAYERS_MAX];
	int hidden_count;
	int64_t channels[SPEC_CHANNELS_MAX];
	int channel_count;
	int64_t blocks_per_stage;
	enum spec_block block;
	enum spec_stem stem;
	int64_t blocks[SPEC_CHANNELS_MAX];
	/* dlrm: dense features through bottom[] (the last = embedding_dim) with ReLU, table_count
	 * tables of sum-pooled bags of up to `lookups` ids, pairwise dot products, then top[] with
	 * ReLU and one logit. hidden[] is bottom. */
	int64_t dense_features, embedding_dim, lookups;
	int64_t table_rows[SPEC_TABLES_MAX];
	int table_count;
	int64_t top[SPEC_LAYERS_MAX];
	int top_count;
	/* mlp and cnn: input shape and classes (regression: outputs); "auto" is resolved from the data
	 * at validation */
	int64_t in_channels, in_height, in_width, n_classes;
};

/* LoRA (Hu et al. 2021): rank 0 = every weight is trained. The base's weights are frozen. */
struct spec_lora {
	int64_t rank;
	double alpha, dropout;
	char target[SPEC_TARGETS_MAX][SPEC_TARGET_MAX]; /* last component of a module's name */
	int target_count;
};

struct spec_data {
	enum spec_format format;
	enum spec_tokenizer tokenizer;
	char tokenizer_file[SPEC_ID_MAX]; /* FILE */
	int64_t sequence_length;          /* language_model, fine_tune */
	bool shuffle;
	/* jsonl: several documents share one sequence; attention and positions stay inside each */
	bool packing;
	/* csv: names from the header; "" = the last column (click_through: "label") */
	char label_column[SPEC_COLUMN_MAX];
	char categorical[SPEC_TABLES_MAX][SPEC_COLUMN_MAX]; /* click_through: one a table */
	int categorical_count;
	/* images, training only */
	bool flip;            /* left-right with probability 1/2 */
	int64_t crop_padding; /* random crop of the image padded by so many zeros; 0 = none */
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
	double ema_decay;         /* a moving average of the weights, kept beside them; 0 = none */
	bool stochastic_rounding; /* bf16: of the masters, into what operations read */
};

/* A mesh of ranks, one a device: data * tensor * pipeline = device_count. 0 stands for 1. */
struct spec_parallel {
	int64_t data, tensor, pipeline;
	/* What the ranks of the data axis keep a part of each (Rajbhandari et al. 2020): 0 nothing, 1
	 * the optimizer's state, 2 gradients too, 3 weights too. */
	int64_t zero_stage;
	/* Not of the job's JSON: gradients are reduced in pieces of about so many bytes; 0 =
	 * PLAN_BUCKET_BYTES. */
	int64_t bucket_bytes;
	/* Stages on each rank of the pipeline axis, dealt out in turn (Narayanan et al. 2021); 0 = 1.
	 */
	int64_t interleave;
	/* An attempt that has too few devices may be shared by any divisor of data that is not less;
	 * 0 = by data only. */
	int64_t min_data;
};

struct spec_limits {
	int64_t max_runtime_s;   /* 0 = none */
	int64_t max_cost_micros; /* millionths of the currency; 0 = none */
};

struct job_spec {
	char name[SPEC_NAME_MAX];
	enum spec_task task;
	struct spec_model model;
	char base[SPEC_ID_MAX]; /* model or checkpoint that training starts from; "" = fresh weights.
							 * The resolved spec has its config in `model` */
	struct spec_lora lora;
	char training_file[SPEC_FILES_MAX]
					  [SPEC_ID_MAX]; /* IDX: images then labels, told apart by their magic */
	int training_file_count;
	char validation_file[SPEC_FILES_MAX][SPEC_ID_MAX];
	int validation_file_count;
	struct spec_data data;
	struct spec_hyper hyper;
	enum spec_precision precision;
	enum spec_checkpointing checkpointing;
	char instance_type[SPEC_ID_MAX];
	int64_t device_count;
	struct spec_parallel parallel;
	int64_t checkpoint_every_steps; /* 0 = only the last */
	int64_t checkpoint_keep;
	int64_t evaluation_every_steps; /* 0 = only at the end */
	char residency[SPEC_REGIONS_MAX][SPEC_REGION_MAX];
	int residency_count;
	struct spec_limits limits;
	int priority; /* -1 low, 0 normal, 1 high */
	int64_t seed;
};

/* What a spec leaves to the cost model, where several devices share the job: until it is settled
 * (workers/plan/scale_choose.h) the spec has its first choice, data parallel. */
struct spec_open {
	bool mesh; /* parallelism is "auto" or left out; when it is not, nothing is open */
	bool micro_batch, checkpointing;
	int64_t micro_batch_most; /* what a rank may take at a time, where micro_batch is open */
};

/* Trains on sequences of tokens: its rows are tokens, its samples windows or documents. */
static inline bool spec_is_language(const struct job_spec *s)
{
	return s->model.family == SPEC_GPT2 || s->model.family == SPEC_LLAMA;
}

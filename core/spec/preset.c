/* SPDX-License-Identifier: Apache-2.0
 * The presets as a table. A new one is a row. Shapes are the published ones, where there are any;
 * preset_test.c recomputes each count of parameters. */
#include "core/spec/preset.h"

#include <string.h>

/* What all GPT-2s share is filled in here, so that a row shows its shape. */
#define GPT2(layers, heads, width, positions, vocabulary)                                  \
	{                                                                                      \
		.family = SPEC_GPT2, .n_layer = (layers), .n_head = (heads), .n_kv_head = (heads), \
		.n_embd = (width), .n_inner = 4 * (width), .n_positions = (positions),             \
		.vocab_size = (vocabulary), .norm_eps = 1e-5, .tied = true                         \
	}
#define LLAMA(layers, heads, kv_heads, width, inner, positions, vocabulary, theta, is_tied)    \
	{                                                                                          \
		.family = SPEC_LLAMA, .n_layer = (layers), .n_head = (heads), .n_kv_head = (kv_heads), \
		.n_embd = (width), .n_inner = (inner), .n_positions = (positions),                     \
		.vocab_size = (vocabulary), .norm_eps = 1e-5, .rope_theta = (theta), .tied = (is_tied) \
	}
#define RESNET(kind, the_stem, side, classes, ...)                                      \
	{                                                                                   \
		.family = SPEC_CNN, .block = (kind), .stem = (the_stem), .channel_count = 4,    \
		.channels = { 64, 128, 256, 512 }, .blocks = { __VA_ARGS__ }, .in_channels = 3, \
		.in_height = (side), .in_width = (side), .n_classes = (classes)                 \
	}
#define ROWS_13(rows) rows, rows, rows, rows, rows, rows, rows, rows, rows, rows, rows, rows, rows

static const struct preset PRESETS[] = {
	{ "gpt2-tiny", "GPT-2 of 4 layers, 128 wide, over bytes: minutes on a CPU", SPEC_LANGUAGE_MODEL,
		858880, GPT2(4, 4, 128, 256, 256) },
	{ "gpt2-124m", "GPT-2 small: 12 layers, 768 wide, 1,024 positions", SPEC_LANGUAGE_MODEL,
		124439808, GPT2(12, 12, 768, 1024, 50257) },
	{ "gpt2-350m", "GPT-2 medium: 24 layers, 1,024 wide, 1,024 positions", SPEC_LANGUAGE_MODEL,
		354823168, GPT2(24, 16, 1024, 1024, 50257) },
	{ "gpt2-774m", "GPT-2 large: 36 layers, 1,280 wide, 1,024 positions", SPEC_LANGUAGE_MODEL,
		774030080, GPT2(36, 20, 1280, 1024, 50257) },
	{ "gpt2-1.5b", "GPT-2 XL: 48 layers, 1,600 wide, 1,024 positions", SPEC_LANGUAGE_MODEL,
		1557611200, GPT2(48, 25, 1600, 1024, 50257) },
	{ "llama-tiny", "Llama of 4 layers, 128 wide, grouped queries, over bytes: minutes on a CPU",
		SPEC_LANGUAGE_MODEL, 771200, LLAMA(4, 4, 2, 128, 352, 256, 256, 10000, true) },
	{ "llama-15m", "Llama for short stories: 6 layers, 288 wide, 256 positions",
		SPEC_LANGUAGE_MODEL, 15191712, LLAMA(6, 6, 6, 288, 768, 256, 32000, 10000, true) },
	{ "llama-110m", "Llama for short stories: 12 layers, 768 wide, 1,024 positions",
		SPEC_LANGUAGE_MODEL, 109529856, LLAMA(12, 12, 12, 768, 2048, 1024, 32000, 10000, true) },
	{ "llama-1b", "Shape of Llama 3.2 1B, with 8,192 positions (RoPE is not rescaled)",
		SPEC_LANGUAGE_MODEL, 1235814400, LLAMA(16, 32, 8, 2048, 8192, 8192, 128256, 500000, true) },
	{ "llama-7b", "Shape of Llama 2 7B: 32 layers, 4,096 wide, 4,096 positions",
		SPEC_LANGUAGE_MODEL, 6738415616,
		LLAMA(32, 32, 32, 4096, 11008, 4096, 32000, 10000, false) },
	{ "llama-8b", "Shape of Llama 3.1 8B, with 8,192 positions (RoPE is not rescaled)",
		SPEC_LANGUAGE_MODEL, 8030261248,
		LLAMA(32, 32, 8, 4096, 14336, 8192, 128256, 500000, false) },
	{ "llama-13b", "Shape of Llama 2 13B: 40 layers, 5,120 wide, 4,096 positions",
		SPEC_LANGUAGE_MODEL, 13015864320,
		LLAMA(40, 40, 40, 5120, 13824, 4096, 32000, 10000, false) },
	{ "llama-70b", "Shape of Llama 2 70B: 80 layers, 8,192 wide, 8 key-value heads",
		SPEC_LANGUAGE_MODEL, 68976648192,
		LLAMA(80, 64, 8, 8192, 28672, 4096, 32000, 10000, false) },
	{ "mnist-cnn", "Two stages of 3x3 convolutions for 28x28 grey images in 10 classes",
		SPEC_IMAGE_CLASSIFICATION, 421642,
		{ .family = SPEC_CNN,
			.channels = { 32, 64 },
			.channel_count = 2,
			.blocks_per_stage = 1,
			.hidden = { 128 },
			.hidden_count = 1,
			.in_channels = 1,
			.in_height = 28,
			.in_width = 28,
			.n_classes = 10 } },
	{ "resnet-18", "ResNet-18 for 224x224 images in 1,000 classes", SPEC_IMAGE_CLASSIFICATION,
		11689512, RESNET(SPEC_BLOCK_BASIC, SPEC_STEM_7, 224, 1000, 2, 2, 2, 2) },
	{ "resnet-18-cifar", "ResNet-18 with a 3x3 stem for 32x32 images in 10 classes",
		SPEC_IMAGE_CLASSIFICATION, 11173962,
		RESNET(SPEC_BLOCK_BASIC, SPEC_STEM_3, 32, 10, 2, 2, 2, 2) },
	{ "resnet-50", "ResNet-50 for 224x224 images in 1,000 classes", SPEC_IMAGE_CLASSIFICATION,
		25557032, RESNET(SPEC_BLOCK_BOTTLENECK, SPEC_STEM_7, 224, 1000, 3, 4, 6, 3) },
	{ "mnist-mlp", "Two hidden layers for 28x28 grey images in 10 classes",
		SPEC_IMAGE_CLASSIFICATION, 235146,
		{ .family = SPEC_MLP,
			.hidden = { 256, 128 },
			.hidden_count = 2,
			.in_channels = 1,
			.in_height = 28,
			.in_width = 28,
			.n_classes = 10 } },
	{ "dlrm-small", "DLRM: 13 dense features, 26 tables of 100,000 x 64, 4 look-ups each",
		SPEC_CLICK_THROUGH, 166899521,
		{ .family = SPEC_DLRM,
			.dense_features = 13,
			.embedding_dim = 64,
			.lookups = 4,
			.table_rows = { ROWS_13(100000), ROWS_13(100000) },
			.table_count = 26,
			.hidden = { 512, 256, 64 },
			.hidden_count = 3,
			.top = { 512, 256 },
			.top_count = 2 } },
	{ "dlrm-large", "DLRM with the tables of Criteo's display advertising set: 33.8 million rows",
		SPEC_CLICK_THROUGH, 540677217,
		{ .family = SPEC_DLRM,
			.dense_features = 13,
			.embedding_dim = 16,
			.lookups = 1,
			.table_rows = { 1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683,
				8351593, 3194, 27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105,
				142572 },
			.table_count = 26,
			.hidden = { 512, 256, 64, 16 },
			.hidden_count = 4,
			.top = { 512, 256 },
			.top_count = 2 } },
};

const struct preset *preset_all(size_t *ret_count)
{
	*ret_count = ARRAY_LEN(PRESETS);
	return PRESETS;
}

const struct preset *preset_find(const char *name)
{
	for (size_t i = 0; i < ARRAY_LEN(PRESETS); i++) {
		if (strcmp(PRESETS[i].name, name) == 0)
			return &PRESETS[i];
	}
	return NULL;
}

/* SPDX-License-Identifier: Apache-2.0
 * The presets as a table. A new one is a row. */
#include "core/spec/preset.h"

#include <string.h>

static const struct preset PRESETS[] = {
	{
		.name = "gpt2-tiny",
		.summary = "GPT-2 of 4 layers, 128 wide, over bytes: minutes on a CPU",
		.task = SPEC_LANGUAGE_MODEL,
		.model = { .family = SPEC_GPT2,
			.n_layer = 4,
			.n_head = 4,
			.n_embd = 128,
			.n_positions = 256,
			.vocab_size = 256 },
	},
	{
		.name = "gpt2-124m",
		.summary = "GPT-2 small: 12 layers, 768 wide, 1024 positions",
		.task = SPEC_LANGUAGE_MODEL,
		.model = { .family = SPEC_GPT2,
			.n_layer = 12,
			.n_head = 12,
			.n_embd = 768,
			.n_positions = 1024,
			.vocab_size = 50257 },
	},
	{
		.name = "mnist-cnn",
		.summary = "Two stages of 3x3 convolutions for 28x28 grey images in 10 classes",
		.task = SPEC_IMAGE_CLASSIFICATION,
		.model = { .family = SPEC_CNN,
			.channels = { 32, 64 },
			.channel_count = 2,
			.blocks_per_stage = 1,
			.hidden = { 128 },
			.hidden_count = 1,
			.in_channels = 1,
			.in_height = 28,
			.in_width = 28,
			.n_classes = 10 },
	},
	{
		.name = "mnist-mlp",
		.summary = "Two hidden layers for 28x28 grey images in 10 classes",
		.task = SPEC_IMAGE_CLASSIFICATION,
		.model = { .family = SPEC_MLP,
			.hidden = { 256, 128 },
			.hidden_count = 2,
			.in_channels = 1,
			.in_height = 28,
			.in_width = 28,
			.n_classes = 10 },
	},
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

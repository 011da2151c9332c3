/* SPDX-License-Identifier: Apache-2.0
 * The tokenizer's files beside a model, as transformers reads them: tokenizer.json as it was given,
 * tokenizer_config.json, special_tokens_map.json, and for GPT-2 vocab.json and merges.txt. A model
 * of bytes gets a tokenizer.json whose ids are the bytes. Called by the hf_model files. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "core/spec/spec.h"
#include "workers/trainer/folder.h"
#include "workers/trainer/hf_config.h"

#include <stddef.h>

enum {
	HF_TOKENIZER_BYTES_MAX = 64 * 1024 * 1024,
	HF_TOKEN_MAX = 64, /* bytes of a special token's text, with the end */
};

/* Read once; zero-initialised is a model without a tokenizer. */
struct hf_tokenizer {
	char *text; /* tokenizer.json; NULL: none */
	size_t bytes;
	struct hf_tokens ids;
	char bos[HF_TOKEN_MAX], eos[HF_TOKEN_MAX], pad[HF_TOKEN_MAX]; /* "": none */
};

/* path: tokenizer.json; NULL: bytes, or nothing, as the spec says. Special tokens are found by the
 * names that the field gives them. */
int hf_tokenizer_open(const struct job_spec *spec, const char *path, struct hf_tokenizer *ret,
	struct err *err) must_check;
void hf_tokenizer_close(struct hf_tokenizer *t);
/* Adds the files to the folder; nothing when there is no tokenizer. */
int hf_tokenizer_write(const struct hf_tokenizer *t, const struct job_spec *spec, struct folder *f,
	struct err *err) must_check;

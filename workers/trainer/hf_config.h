/* SPDX-License-Identifier: Apache-2.0
 * config.json and generation_config.json as Hugging Face's transformers write and read them. gpt2,
 * llama and residual networks with a 7x7 stem are transformers' own classes; the other families
 * have a model_type of ours, "trainyard-…", with the job spec's config inside. Pure but for reading
 * the file. */
#pragma once

#include "core/base/attr.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/spec/spec.h"
#include "workers/plan/plan.h"

#include <stdint.h>

/* Ids of special tokens; -1 = the vocabulary has none. */
struct hf_tokens {
	int64_t bos, eos, pad;
};

/* The plan says what the spec leaves to the data. tokens: language models only. */
void hf_config_write(const struct job_spec *spec, const struct plan *plan,
	const struct hf_tokens *tokens, struct buf *out);
/* generation_config.json of a language model. */
void hf_config_write_generation(const struct hf_tokens *tokens, struct buf *out);

/* The model that <dir>/config.json describes. INVALID_DATA names the field that this engine cannot
 * be ("rope_scaling"). */
int hf_config_read(const char *dir, struct spec_model *ret, struct err *err) must_check;
/* INVALID_VALUE naming the first field of the spec's config that the files' config contradicts.
 * What the spec leaves open (0) is filled in from the files. */
int hf_config_agree(
	struct spec_model *spec, const struct spec_model *files, struct err *err) must_check;

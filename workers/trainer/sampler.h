/* SPDX-License-Identifier: Apache-2.0
 * Chooses the next token from logits. A choice is a function of the seed and the token's place, so
 * the same prompt and seed give the same text. Pure. */
#pragma once

#include <stdint.h>

struct sampler {
	double temperature; /* 0: the largest logit */
	int64_t top_k;      /* 0: all */
	int64_t seed;
};

/* logits are changed. place: of the token in the text. */
int32_t sampler_pick(const struct sampler *s, int64_t place, float *logits, int64_t count);

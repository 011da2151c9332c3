/* SPDX-License-Identifier: Apache-2.0
 * Softmax with cross-entropy of one row of logits; the gradient replaces them. Used by
 * softmax_xent.c and classifier.c. */
#pragma once

#include "workers/engine/cpu/ops/act.h"

#include <math.h>

/* What is asked of a row, and what comes out. */
struct softmax_row {
	int64_t classes;
	int32_t label; /* -1: ignored */
	float scale, smoothing;
	float loss, hit;
};

/* The largest logit; NaN are passed over (the sum of exponentials is NaN then). */
CPU_INLINE float softmax_max(const act_t *x, int64_t n)
{
	simd_f32 max[4];
	for (int k = 0; k < 4; k++)
		max[k] = simd_set(-INFINITY);
	int64_t i = 0;
	for (; i + 4 * SIMD_WIDTH <= n; i += 4 * SIMD_WIDTH)
		for (int k = 0; k < 4; k++)
			max[k] = simd_max(act_load(x + i + k * SIMD_WIDTH), max[k]);
	for (; i < n; i += SIMD_WIDTH) {
		simd_f32 v =
			simd_select(simd_first(n - i), act_load_upto(x + i, n - i), simd_set(-INFINITY));
		max[0] = simd_max(v, max[0]);
	}
	return simd_max_lane(simd_max(simd_max(max[0], max[1]), simd_max(max[2], max[3])));
}

/* Sums of e^(x - max) and of x. */
CPU_INLINE void softmax_sums(const act_t *x, int64_t n, float max, float *total, float *all)
{
	simd_f32 sum[2] = { 0 }, plain[2] = { 0 };
	int64_t i = 0;
	for (; i + 2 * SIMD_WIDTH <= n; i += 2 * SIMD_WIDTH)
		for (int k = 0; k < 2; k++) {
			simd_f32 v = act_load(x + i + k * SIMD_WIDTH);
			sum[k] += simd_exp(v - max);
			plain[k] += v;
		}
	for (; i < n; i += SIMD_WIDTH) {
		simd_f32 v = act_load_upto(x + i, n - i);
		sum[0] += simd_select(simd_first(n - i), simd_exp(v - max), simd_set(0));
		plain[0] += v;
	}
	*total = simd_sum(sum[0] + sum[1]);
	*all = simd_sum(plain[0] + plain[1]);
}

/* Whether the label's logit is the first largest one. */
CPU_INLINE bool softmax_hit(const act_t *x, int32_t label, float max)
{
	if (!(act_get(x + label) >= max))
		return false;
	simd_i32 found = { 0 };
	for (int64_t i = 0; i < label; i += SIMD_WIDTH)
		found |= (act_load_upto(x + i, label - i) >= max) & simd_first(label - i);
	for (int i = 0; i < SIMD_WIDTH; i++)
		if (found[i])
			return false;
	return true;
}

CPU_INLINE void softmax_row(struct softmax_row *s, act_t *x)
{
	int64_t n = s->classes;
	s->loss = s->hit = 0;
	if (s->label < 0) {
		if (s->scale > 0)
			memset(x, 0, (size_t)n * sizeof(*x));
		return;
	}
	float max = softmax_max(x, n), total, all, e = s->smoothing, label = act_get(x + s->label);
	softmax_sums(x, n, max, &total, &all);
	s->hit = softmax_hit(x, s->label, max) ? 1.0f : 0.0f;
	s->loss = max + logf(total) - (1.0f - e) * label - e * all / (float)n;
	if (!(s->scale > 0))
		return;
	float scale = s->scale, share = scale / total, even = e / (float)n * scale;
	for (int64_t i = 0; i < n; i += SIMD_WIDTH) {
		simd_f32 v = simd_exp(act_load_upto(x + i, n - i) - max) * share - even;
		act_store_upto(x + i, v, n - i);
	}
	/* Not read back from x, which may be rounded. */
	float own = simd_exp(simd_set(label - max))[0] * share - even - (1.0f - e) * scale;
	act_set(x + s->label, own);
}

/* SPDX-License-Identifier: Apache-2.0
 * AdamW and SGD over the flat parameters, one pass over memory. */
#include "workers/engine/cpu/isa.h"

#include <math.h>

void CPU_FN(adamw_update)(const struct backend_update *d)
{
	float b1 = d->beta1, b2 = d->beta2, c1 = d->correct1, c2 = d->correct2;
	float lr = d->learning_rate, eps = d->eps, gs = d->grad_scale;
	float *restrict w = d->w, *restrict m = d->m, *restrict v = d->v;
	const float *restrict g = d->g;
	for (int s = 0; s < d->segment_count; s++) {
		int64_t begin = d->segments[s].begin, end = d->segments[s].end;
		float shrink = lr * d->segments[s].decay;
#pragma omp parallel for simd schedule(static) if (end - begin > CPU_PARALLEL_MIN)
		for (int64_t i = begin; i < end; i++) {
			float gi = g[i] * gs;
			float mi = b1 * m[i] + (1.0f - b1) * gi;
			float vi = b2 * v[i] + (1.0f - b2) * gi * gi;
			m[i] = mi;
			v[i] = vi;
			w[i] -= lr * (mi * c1) / (sqrtf(vi * c2) + eps) + shrink * w[i];
		}
	}
}

void CPU_FN(sgd_update)(const struct backend_update *d)
{
	float lr = d->learning_rate, gs = d->grad_scale, mu = d->momentum;
	float *restrict w = d->w, *restrict m = d->m;
	const float *restrict g = d->g;
	for (int s = 0; s < d->segment_count; s++) {
		int64_t begin = d->segments[s].begin, end = d->segments[s].end;
		float decay = d->segments[s].decay;
		if (!m) {
#pragma omp parallel for simd schedule(static) if (end - begin > CPU_PARALLEL_MIN)
			for (int64_t i = begin; i < end; i++)
				w[i] -= lr * (g[i] * gs + decay * w[i]);
			continue;
		}
#pragma omp parallel for simd schedule(static) if (end - begin > CPU_PARALLEL_MIN)
		for (int64_t i = begin; i < end; i++) {
			m[i] = mu * m[i] + g[i] * gs + decay * w[i];
			w[i] -= lr * m[i];
		}
	}
}

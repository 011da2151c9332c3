/* SPDX-License-Identifier: Apache-2.0
 * Sampling from a softmax. */
#include "workers/trainer/sampler.h"

#include <math.h>

static uint64_t mix(uint64_t z)
{
	z += UINT64_C(0x9e3779b97f4a7c15);
	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

static int32_t largest(const float *logits, int64_t count)
{
	int64_t best = 0;
	for (int64_t i = 1; i < count; i++)
		if (logits[i] > logits[best])
			best = i;
	return (int32_t)best;
}

/* Cuts every logit off that is not among the k largest; of equal ones the first stay. */
static void keep_largest(float *logits, int64_t count, int64_t k)
{
	float low = INFINITY;
	int64_t above = 0;
	for (int64_t found = 0; found < k;) { /* the k-th largest value, from the top */
		float next = -INFINITY;
		int64_t same = 0;
		for (int64_t i = 0; i < count; i++) {
			if (logits[i] < low && logits[i] > next) {
				next = logits[i];
				same = 0;
			}
			same += logits[i] == next;
		}
		if (same == 0)
			return;
		above = found;
		found += same;
		low = next;
	}
	for (int64_t i = 0, left = k - above; i < count; i++)
		if (logits[i] < low || (logits[i] == low && left-- <= 0))
			logits[i] = -INFINITY;
}

int32_t sampler_pick(const struct sampler *s, int64_t place, float *logits, int64_t count)
{
	int32_t best = largest(logits, count);
	if (s->temperature <= 0)
		return best;
	if (s->top_k > 0 && s->top_k < count)
		keep_largest(logits, count, s->top_k);
	double sum = 0, top = logits[best];
	for (int64_t i = 0; i < count; i++)
		sum += exp(((double)logits[i] - top) / s->temperature);
	uint64_t bits = mix(mix((uint64_t)s->seed) ^ (uint64_t)place);
	double left = (double)(bits >> 11) * 0x1.0p-53 * sum;
	int32_t last = best;
	for (int64_t i = 0; i < count; i++) {
		double share = exp(((double)logits[i] - top) / s->temperature);
		if (share > 0)
			last = (int32_t)i;
		left -= share;
		if (left < 0)
			return last;
	}
	return last;
}

/* SPDX-License-Identifier: Apache-2.0
 * The exact area under the ROC curve from ranks. Called by engine_evaluate.c; needs no memory
 * beside the keys. */
#include "workers/engine/engine_private.h"

enum { LABEL_BITS = 32 };

/* The score's order as an unsigned number above, the label in bit 0. Both zeros are one score. */
uint64_t engine_auc_key(float score, bool label)
{
	union {
		float f;
		uint32_t u;
	} v = { .f = score + 0.0f };
	uint32_t order = v.u & 0x80000000u ? ~v.u : v.u | 0x80000000u;
	return (uint64_t)order << LABEL_BITS | label;
}

/* Radix exchange from one bit downwards: at most 32 deep. */
static void sort(uint64_t *keys, int64_t count, int bit)
{
	while (count > 1 && bit >= LABEL_BITS) {
		int64_t low = 0, high = count;
		while (low < high) {
			if (keys[low] >> bit & 1) {
				uint64_t swap = keys[--high];
				keys[high] = keys[low];
				keys[low] = swap;
			} else {
				low++;
			}
		}
		bit--;
		sort(keys, low, bit);
		keys += low;
		count -= low;
	}
}

double engine_auc(uint64_t *keys, int64_t count)
{
	sort(keys, count, 63);
	double positives = 0, negatives = 0, pairs = 0;
	for (int64_t i = 0; i < count;) {
		double hits = 0;
		int64_t begin = i;
		for (; i < count && keys[i] >> LABEL_BITS == keys[begin] >> LABEL_BITS; i++)
			hits += (double)(keys[i] & 1);
		double misses = (double)(i - begin) - hits;
		pairs += hits * (negatives + misses / 2);
		positives += hits;
		negatives += misses;
	}
	return positives > 0 && negatives > 0 ? pairs / (positives * negatives) : 0.5;
}

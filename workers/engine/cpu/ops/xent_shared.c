/* SPDX-License-Identifier: Apache-2.0
 * Softmax with cross-entropy where ranks have some of the classes each: what a rank says of a row
 * of its logits, and the loss and gradient from what all say. Called through the backend's table.
 */
#include "workers/engine/cpu/ops/softmax_row.h"

enum statistic { LARGEST, TOTAL, PLAIN, LABEL, HIT };
_Static_assert(HIT + 1 == PLAN_STATISTICS, "a row's numbers are those of plan_op.h");

/* The label among the own classes, -1: it is another rank's. */
static int64_t own_label(const struct backend_xent_shared *d, int64_t row)
{
	int64_t label = d->labels[row] - d->first;
	return label >= 0 && label < d->own ? label : -1;
}

void CPU_FN(xent_statistics)(const struct backend_xent_shared *d)
{
#pragma omp parallel for schedule(static) if (d->rows * d->own > CPU_PARALLEL_MIN)
	for (int64_t r = 0; r < d->rows; r++) {
		const act_t *x = (const act_t *)d->logits + r * d->own;
		float *s = d->own_statistics + r * PLAN_STATISTICS;
		memset(s, 0, PLAN_STATISTICS * sizeof(*s));
		if (d->labels[r] < 0)
			continue;
		int64_t label = own_label(d, r);
		s[LARGEST] = softmax_max(x, d->own);
		softmax_sums(x, d->own, s[LARGEST], &s[TOTAL], &s[PLAIN]);
		s[LABEL] = label >= 0 ? act_get(x + label) : 0;
		s[HIT] = label >= 0 && softmax_hit(x, (int32_t)label, s[LARGEST]) ? 1.0f : 0.0f;
	}
}

/* What all ranks together say of a row, in the order of ranks. A NaN is passed over by the largest
 * and stays in the total. */
static void merge(const struct backend_xent_shared *d, int64_t row, float *all)
{
	const int64_t step = d->rows * PLAN_STATISTICS;
	const float *first = d->statistics + row * PLAN_STATISTICS;
	memset(all, 0, PLAN_STATISTICS * sizeof(*all));
	all[LARGEST] = -INFINITY;
	for (int64_t k = 0; k < d->ranks; k++) {
		const float *s = first + k * step;
		if (s[LARGEST] > all[LARGEST]) {
			all[LARGEST] = s[LARGEST];
			all[HIT] = s[HIT];
		}
		all[PLAIN] += s[PLAIN];
		all[LABEL] += s[LABEL];
	}
	for (int64_t k = 0; k < d->ranks; k++) {
		const float *s = first + k * step;
		if (s[LARGEST] > -INFINITY)
			all[TOTAL] += s[TOTAL] * expf(s[LARGEST] - all[LARGEST]);
		else
			all[TOTAL] += s[TOTAL];
	}
}

static void gradient(const struct backend_xent_shared *d, int64_t row, const float *all)
{
	act_t *x = (act_t *)d->logits + row * d->own;
	float max = all[LARGEST], e = d->smoothing, share = d->scale / all[TOTAL];
	float even = e / (float)d->classes * d->scale;
	int64_t label = own_label(d, row);
	for (int64_t i = 0; i < d->own; i += SIMD_WIDTH) {
		simd_f32 v = simd_exp(act_load_upto(x + i, d->own - i) - max) * share - even;
		act_store_upto(x + i, v, d->own - i);
	}
	/* Not read back from x, which may be rounded. */
	if (label >= 0)
		act_set(x + label,
			simd_exp(simd_set(all[LABEL] - max))[0] * share - even - (1.0f - e) * d->scale);
}

void CPU_FN(xent_shared)(const struct backend_xent_shared *d)
{
#pragma omp parallel for schedule(static) if (d->rows * d->own > CPU_PARALLEL_MIN)
	for (int64_t r = 0; r < d->rows; r++) {
		float all[PLAN_STATISTICS], e = d->smoothing;
		d->row_loss[r] = d->row_hit[r] = 0;
		if (d->labels[r] < 0) {
			if (d->scale > 0)
				memset((act_t *)d->logits + r * d->own, 0, (size_t)d->own * sizeof(act_t));
			continue;
		}
		merge(d, r, all);
		d->row_hit[r] = all[HIT];
		d->row_loss[r] = all[LARGEST] + logf(all[TOTAL]) - (1.0f - e) * all[LABEL] -
			e * all[PLAIN] / (float)d->classes;
		if (d->scale > 0)
			gradient(d, r, all);
	}
}

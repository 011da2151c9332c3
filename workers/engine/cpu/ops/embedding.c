/* SPDX-License-Identifier: Apache-2.0
 * Token and position embedding. Backward walks the rows in order inside slices of the columns, so
 * rows with the same token add up in one order, without atomics, whatever the slices; its cost does
 * not depend on the vocabulary. Called through the backend's table. */
#include "workers/engine/cpu/ops/act.h"

#include <omp.h>

CPU_INLINE simd_f32 weight_load(bool is_f32, const void *w, int64_t at, int64_t n)
{
	return is_f32 ? simd_load_upto((const float *)w + at, n)
				  : act_load_upto((const act_t *)w + at, n);
}

void CPU_FN(embedding_forward)(const struct backend_embedding *d)
{
	int64_t c = d->c;
	bool is_f32 = d->w_type == PLAN_F32;
#pragma omp parallel for schedule(static) if (d->rows * c > CPU_PARALLEL_MIN)
	for (int64_t r = 0; r < d->rows; r++) {
		int64_t token = d->tokens[r] - d->first;
		bool own = token >= 0 && token < d->v;
		int64_t position = (d->positions ? d->positions[r] : r % d->t) * c;
		act_t *y = (act_t *)d->y + r * c;
		for (int64_t i = 0; i < c; i += SIMD_WIDTH) {
			simd_f32 v = own ? weight_load(is_f32, d->wte, token * c + i, c - i) : simd_set(0);
			if (d->wpe)
				v += weight_load(is_f32, d->wpe, position + i, c - i);
			act_store_upto(y + i, v, c - i);
		}
	}
}

CPU_INLINE void add_slice(float *to, const act_t *dy, int64_t n)
{
	for (int64_t i = 0; i < n; i += SIMD_WIDTH)
		simd_store_upto(
			to + i, simd_load_upto(to + i, n - i) + act_load_upto(dy + i, n - i), n - i);
}

/* The row of a token's gradient, -1: it is another rank's, or nobody's. */
CPU_INLINE int64_t gradient_row(const struct backend_embedding *d, int64_t r)
{
	int64_t token = d->tokens[r] - d->first;
	return d->dwte && token >= 0 && token < d->v ? token : -1;
}

void CPU_FN(embedding_backward)(const struct backend_embedding *d)
{
	enum { SLICE = 64, NARROW = 16, AHEAD = 8 };
	int64_t c = d->c;
	int64_t slice = c < SLICE * omp_get_max_threads() ? NARROW : SLICE;
#pragma omp parallel for schedule(static) if (d->rows * c > CPU_PARALLEL_MIN)
	for (int64_t c0 = 0; c0 < c; c0 += slice) {
		int64_t n = c - c0 < slice ? c - c0 : slice;
		for (int64_t r = 0; r < d->rows; r++) {
			const act_t *dy = (const act_t *)d->dy + r * c + c0;
			int64_t row = gradient_row(d, r);
			int64_t ahead = r + AHEAD < d->rows ? gradient_row(d, r + AHEAD) : -1;
			for (int64_t i = 0; i < n && ahead >= 0; i += NARROW)
				__builtin_prefetch(d->dwte + ahead * c + c0 + i, 1);
			if (row >= 0)
				add_slice(d->dwte + row * c + c0, dy, n);
			if (d->dwpe)
				add_slice(d->dwpe + (d->positions ? d->positions[r] : r % d->t) * c + c0, dy, n);
		}
	}
}

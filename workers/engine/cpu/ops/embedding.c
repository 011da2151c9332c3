/* SPDX-License-Identifier: Apache-2.0
 * Token and position embedding. Backward walks the rows in order inside slices of the columns, so
 * rows with the same token add up in one order. */
#include "workers/engine/cpu/isa.h"

void CPU_FN(embedding_forward)(const struct backend_embedding *d)
{
	int64_t c = d->c;
#pragma omp parallel for schedule(static) if (d->rows * c > CPU_PARALLEL_MIN)
	for (int64_t r = 0; r < d->rows; r++) {
		const float *token = d->wte + (int64_t)d->tokens[r] * c;
		const float *position = d->wpe + r % d->t * c;
		float *y = d->y + r * c;
#pragma omp simd
		for (int64_t i = 0; i < c; i++)
			y[i] = token[i] + position[i];
	}
}

void CPU_FN(embedding_backward)(const struct backend_embedding *d)
{
	enum { SLICE = 64 };
	int64_t c = d->c;
#pragma omp parallel for schedule(static) if (d->rows * c > CPU_PARALLEL_MIN)
	for (int64_t c0 = 0; c0 < c; c0 += SLICE) {
		int64_t n = c - c0 < SLICE ? c - c0 : SLICE;
		for (int64_t r = 0; r < d->rows; r++) {
			const float *dy = d->dy + r * c + c0;
			float *token = d->dwte + (int64_t)d->tokens[r] * c + c0;
			float *position = d->dwpe + r % d->t * c + c0;
#pragma omp simd
			for (int64_t i = 0; i < n; i++) {
				token[i] += dy[i];
				position[i] += dy[i];
			}
		}
	}
}

/* SPDX-License-Identifier: Apache-2.0
 * Softmax with cross-entropy; the gradient replaces the logits. Called through the backend's
 * table. */
#include "workers/engine/cpu/ops/softmax_row.h"

void CPU_FN(softmax_xent)(const struct backend_softmax_xent *d)
{
	int64_t n = d->classes;
#pragma omp parallel for schedule(static) if (d->rows * n > CPU_PARALLEL_MIN)
	for (int64_t r = 0; r < d->rows; r++) {
		struct softmax_row row = {
			.classes = n, .label = d->labels[r], .scale = d->scale, .smoothing = d->smoothing
		};
		softmax_row(&row, (act_t *)d->logits + r * n);
		d->row_loss[r] = row.loss;
		d->row_hit[r] = row.hit;
	}
}

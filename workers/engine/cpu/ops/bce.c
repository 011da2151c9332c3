/* SPDX-License-Identifier: Apache-2.0
 * Binary cross-entropy of logits; the gradient replaces the logit. */
#include "workers/engine/cpu/ops/act.h"

#include <math.h>

void CPU_FN(bce_loss)(const struct backend_regress *d)
{
#pragma omp parallel for schedule(static) if (d->rows > CPU_PARALLEL_MIN)
	for (int64_t r = 0; r < d->rows; r++) {
		act_t *at = (act_t *)d->y + r;
		double y = (double)act_get(at), target = (double)d->targets[r];
		bool ignored = isnan(target);
		/* log(1 + e^y) - target y, without e^y where it overflows. */
		double small = exp(-fabs(y));
		double loss = (y > 0 ? y : 0) + log1p(small) - target * y;
		double p = y > 0 ? 1 / (1 + small) : small / (1 + small);
		d->row_loss[r] = ignored ? 0.0f : (float)loss;
		d->row_hit[r] = !ignored && (y > 0) == (target > 0.5) ? 1.0f : 0.0f;
		if (d->scale > 0)
			act_set(at, ignored ? 0.0f : (float)((p - target) * (double)d->scale));
	}
}

/* SPDX-License-Identifier: Apache-2.0
 * PLAN_OP_SOFTMAX_XENT: a block for each row; the work is in xent_row.h. */
#include "workers/engine/cuda/ops/xent_row.h"

template <typename T> static void softmax_xent(const struct backend_softmax_xent *d)
{
	xent_rows<T>(d);
}

CUDA_EXPORT(softmax_xent, (const struct backend_softmax_xent *d), (d))

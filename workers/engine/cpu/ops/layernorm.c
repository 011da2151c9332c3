/* SPDX-License-Identifier: Apache-2.0
 * Layer norm. Called through the backend's table; the work is in norm.h. */
#include "workers/engine/cpu/ops/norm.h"

void CPU_FN(layernorm_forward)(const struct backend_norm *d)
{
	norm_forward(d, false);
}

void CPU_FN(layernorm_backward)(const struct backend_norm *d)
{
	norm_backward(d, false);
}

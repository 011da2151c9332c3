/* SPDX-License-Identifier: Apache-2.0
 * RMS norm. Called through the backend's table; the work is in norm.h. */
#include "workers/engine/cpu/ops/norm.h"

void CPU_FN(rmsnorm_forward)(const struct backend_norm *d)
{
	norm_forward(d, true);
}

void CPU_FN(rmsnorm_backward)(const struct backend_norm *d)
{
	norm_backward(d, true);
}

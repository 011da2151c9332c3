/* SPDX-License-Identifier: Apache-2.0
 * A build without the CUDA toolkit. */
#include "workers/engine/engine.h"

#include <stddef.h>

const struct backend *engine_backend_cuda(enum plan_type type)
{
	return NULL;
}

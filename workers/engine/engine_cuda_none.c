/* SPDX-License-Identifier: Apache-2.0
 * A build without the CUDA toolkit. */
#include "workers/engine/engine.h"

#include <stddef.h>

int engine_cuda_find(struct err *err)
{
	return err_set(err, ERR_UNAVAILABLE, NULL,
		"this program was built without the CUDA toolkit: build it where nvcc is (-Dcuda=enabled)");
}

const struct backend *engine_backend_cuda(enum plan_type type)
{
	return NULL;
}

/* SPDX-License-Identifier: Apache-2.0
 * The backend that tests of the engine run on: the CPU's, or with ENGINE_CUDA that of CUDA, for the
 * same tests (tests/cuda/meson.build). */
#pragma once

#include "workers/engine/engine.h"

static inline const struct backend *test_backend(enum plan_type type)
{
#if defined(ENGINE_CUDA)
	return engine_backend_cuda(type);
#else
	return engine_backend_cpu(type);
#endif
}

/* SPDX-License-Identifier: Apache-2.0
 * The CUDA backend's device and its tables: what its C files and its kernels (cuda/ops) share.
 * Nobody outside of workers/engine/cuda and tests/cuda includes this. */
#pragma once

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "workers/engine/backend.h"

/* ------------------------------------------------------------------ the calling thread's device */

/* Everything below is of the device that the calling thread entered last (backend.h: enter). */

/* Where operations go, in the order of their calls. */
cudaStream_t cuda_stream(void);
/* Keeps the device's first failure: nothing is reported before `finish`. cuda_launched is called
 * behind each launch and asks for the launch's own error. */
void cuda_failed(cudaError_t rc, const char *what);
void cuda_launched(const char *kernel);
/* The same of a library's failure, in words. */
void cuda_failed_because(const char *what, const char *why);
/* Whether products of fp32 may round their operands to TF32 (backend.h: allow_tf32). */
bool cuda_tf32(void);
/* Streaming multiprocessors: what a grid that loops is sized by. */
int cuda_multiprocessors(void);
/* A place that kernels can write and that `finish` copies to *ret. It is the same until then, and
 * there are CUDA_RESULTS_MAX between two calls of finish; one more is a failure of the device. */
enum { CUDA_RESULTS_MAX = 4096 };
double *cuda_result(double *ret);
/* Copies host values, which are not in BACKEND_HOST's memory, to the device in the order of
 * operations; the values may change at once. */
void cuda_put(void *device, const void *host, int64_t bytes);

/* ---------------------------------------------------------------------------------- operations */

/* One table for each activation type, NULL for another. The names of functions are those of
 * backend.h with _cuda_f32, _cuda_bf16 or _cuda_f16 behind (CUDA_EXPORT of kernel.h); functions
 * over fp32 alone have _cuda. */
const struct backend *cuda_table(enum plan_type type);

/* Exports name(d, type) of a C file as the three functions of the tables. */
#define CUDA_EXPORT_OF(name, parameter)                           \
	CUDA_EXPORT_ONE(name##_cuda_f32, name, parameter, PLAN_F32)   \
	CUDA_EXPORT_ONE(name##_cuda_bf16, name, parameter, PLAN_BF16) \
	CUDA_EXPORT_ONE(name##_cuda_f16, name, parameter, PLAN_F16)
#define CUDA_EXPORT_ONE(exported, name, parameter, type) \
	void exported(const parameter *d);                   \
	void exported(const parameter *d)                    \
	{                                                    \
		name(d, type);                                   \
	}

#ifdef __cplusplus
}
#endif

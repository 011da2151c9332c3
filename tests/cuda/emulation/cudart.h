/* SPDX-License-Identifier: Apache-2.0
 * The calling thread's last error, of the cudart stand-in. */
#pragma once

#include <cuda_runtime_api.h>

/* Keeps a failure for cudaGetLastError, and gives it back. */
cudaError_t cudart_return(cudaError_t rc);

/* SPDX-License-Identifier: Apache-2.0
 * Matrices from one type to another on the device, to nearest even. Called by cuda/gemm.c. */
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

#include "workers/plan/plan_op.h"

/* Types F32, BF16, F16, not the same. `to` is packed. Strides in elements. */
struct cuda_convert {
	int64_t rows, columns;
	enum plan_type from_type;
	const void *from;
	int64_t from_stride;
	enum plan_type to_type;
	void *to;
};
void cuda_convert(const struct cuda_convert *c);

#ifdef __cplusplus
}
#endif

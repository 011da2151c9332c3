/* SPDX-License-Identifier: Apache-2.0
 * The product kernels' table for one instruction set. */
#include "workers/engine/cpu/ops/gemm_ops.h"

#define GEMM_STR2(x) #x
#define GEMM_STR(x) GEMM_STR2(x)

const struct gemm_kernels GEMM_FN(gemm_kernels) = {
	.name = GEMM_STR(CPU_ISA),
	.mr = GEMM_MR,
	.nr = GEMM_NR,
	.unit = GEMM_UNIT,
	.tile = GEMM_FN(gemm_tile),
	.pack_across = GEMM_FN(gemm_pack_across),
	.pack_panel = GEMM_FN(gemm_pack_panel),
	.pack_strip = GEMM_FN(gemm_pack_strip),
	.finish = GEMM_FN(gemm_finish),
};

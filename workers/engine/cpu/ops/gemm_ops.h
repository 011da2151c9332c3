/* SPDX-License-Identifier: Apache-2.0
 * What the files of cpu/ops/gemm_*.c give to one instruction set's table (gemm_private.h says what
 * each does). Private to them. */
#pragma once

#include "workers/engine/cpu/ops/gemm_simd.h"

void GEMM_FN(gemm_tile)(int rows, int vectors, const struct gemm_tile *t);
void GEMM_FN(gemm_pack_across)(const struct gemm_lines *l, int64_t lines, int64_t count,
	const struct gemm_panels *p, char *dst);
void GEMM_FN(gemm_pack_panel)(const struct gemm_lines *l, int64_t lines, int64_t count, char *dst);
void GEMM_FN(gemm_pack_strip)(
	const struct gemm_lines *l, int64_t lines, int64_t count, char *dst, int64_t row_bytes);
void GEMM_FN(gemm_finish)(const struct gemm_finish *f);

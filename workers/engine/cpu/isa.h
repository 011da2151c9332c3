/* SPDX-License-Identifier: Apache-2.0
 * The files of cpu/ops are compiled once for each instruction set (meson passes CPU_ISA and the
 * compiler's flags) and export their functions under that name; cpu.c chooses a table when the
 * program runs. Private to workers/engine/cpu. */
#pragma once

#include "workers/engine/backend.h"

#define CPU_JOIN2(a, b) a##_##b
#define CPU_JOIN(a, b) CPU_JOIN2(a, b)
#define CPU_FN(name) CPU_JOIN(name, CPU_ISA)

/* Below this many elements a loop is not worth waking threads for. */
enum { CPU_PARALLEL_MIN = 8 * 1024 };

void CPU_FN(embedding_forward)(const struct backend_embedding *d);
void CPU_FN(embedding_backward)(const struct backend_embedding *d);
void CPU_FN(layernorm_forward)(const struct backend_layernorm *d);
void CPU_FN(layernorm_backward)(const struct backend_layernorm *d);
void CPU_FN(attention_forward)(const struct backend_attention *d);
void CPU_FN(attention_backward)(const struct backend_attention *d);
void CPU_FN(gelu_forward)(int64_t count, const float *x, float *y);
void CPU_FN(gelu_backward)(int64_t count, const float *x, const float *dy, float *dx);
void CPU_FN(relu_backward)(int64_t count, const float *y, const float *dy, float *dx);
void CPU_FN(relu_bias)(int64_t rows, int64_t n, const float *b, bool relu, float *y);
void CPU_FN(add_into)(int64_t count, const float *a, float *y);
void CPU_FN(column_sum)(int64_t rows, int64_t n, const float *x, float *y);
void CPU_FN(maxpool_forward)(
	int64_t n, int64_t h, int64_t w, int64_t c, const float *x, float *y, uint8_t *which);
void CPU_FN(maxpool_backward)(
	int64_t n, int64_t h, int64_t w, int64_t c, const float *dy, const uint8_t *which, float *dx);
void CPU_FN(dropout_apply)(int64_t count, float p, uint64_t key, const float *x, float *y);
void CPU_FN(softmax_xent)(const struct backend_softmax_xent *d);
void CPU_FN(mse_loss)(const struct backend_mse *d);
double CPU_FN(reduce_sum)(int64_t count, const float *x, double *partial);
double CPU_FN(reduce_square_sum)(int64_t count, const float *x, double *partial);
void CPU_FN(fill_value)(int64_t count, float value, float *y);
void CPU_FN(adamw_update)(const struct backend_update *d);
void CPU_FN(sgd_update)(const struct backend_update *d);

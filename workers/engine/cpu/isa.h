/* SPDX-License-Identifier: Apache-2.0
 * The files of cpu/ops are compiled once for each instruction set and activation type (meson passes
 * CPU_ISA, CPU_TYPE and the compiler's flags) and export their functions under those names; cpu.c
 * chooses a table when the program runs. Files that know no activations (`plain` in meson.build)
 * are compiled once for each instruction set. Private to workers/engine/cpu. */
#pragma once

#include "workers/engine/backend.h"

#define CPU_JOIN2(a, b) a##_##b
#define CPU_JOIN(a, b) CPU_JOIN2(a, b)
/* name_avx512: functions over fp32 alone. */
#define CPU_PLAIN(name) CPU_JOIN(name, CPU_ISA)
/* name_bf16_avx512: functions over activations of CPU_TYPE. */
#if defined(CPU_TYPE)
#define CPU_FN(name) CPU_JOIN(CPU_JOIN(name, CPU_TYPE), CPU_ISA)
#endif

/* Below this many elements a loop is not worth waking threads for. */
enum { CPU_PARALLEL_MIN = 8 * 1024 };

/* Plain: cpu/ops/{accumulate,average,reduce,rope_table,sparse}.c */
void CPU_PLAIN(reduce_sum)(int64_t count, const float *x, double *ret);
void CPU_PLAIN(reduce_square_sum)(int64_t count, const float *x, double *partial, double *ret);
void CPU_PLAIN(fill_value)(int64_t count, float value, float *y);
void CPU_PLAIN(rope_table)(int64_t t, int64_t head_size, double theta, float *table);
void CPU_PLAIN(sparse_reduce)(const struct backend_sparse *d);
void CPU_PLAIN(sparse_adamw)(const struct backend_update *d);
void CPU_PLAIN(sparse_sgd)(const struct backend_update *d);
void CPU_PLAIN(accumulate)(int64_t count, const float *x, float *y);
void CPU_PLAIN(average_update)(int64_t count, float decay, const float *x, float *y);

#if defined(CPU_TYPE)
void CPU_FN(from_f32)(int64_t count, const float *x, void *y);
void CPU_FN(to_f32)(int64_t count, const void *x, float *y);
void CPU_FN(linear_forward)(const struct backend_linear *d);
void CPU_FN(linear_backward_data)(const struct backend_linear_backward_data *d);
void CPU_FN(linear_backward_weight)(const struct backend_linear_backward_weight *d);
void CPU_FN(conv_forward)(const struct backend_conv *d);
void CPU_FN(conv_backward_data)(const struct backend_conv *d);
void CPU_FN(conv_backward_weight)(const struct backend_conv *d);
void CPU_FN(embedding_forward)(const struct backend_embedding *d);
void CPU_FN(embedding_backward)(const struct backend_embedding *d);
void CPU_FN(layernorm_forward)(const struct backend_norm *d);
void CPU_FN(layernorm_backward)(const struct backend_norm *d);
void CPU_FN(rmsnorm_forward)(const struct backend_norm *d);
void CPU_FN(rmsnorm_backward)(const struct backend_norm *d);
void CPU_FN(batchnorm_forward)(const struct backend_batchnorm *d);
void CPU_FN(batchnorm_backward)(const struct backend_batchnorm *d);
void CPU_FN(rope_apply)(const struct backend_rope *d);
void CPU_FN(attention_forward)(const struct backend_attention *d);
void CPU_FN(attention_backward)(const struct backend_attention *d);
void CPU_FN(gelu_forward)(int64_t count, const void *x, void *y);
void CPU_FN(swiglu_forward)(int64_t rows, int64_t inner, const void *gate_up, void *y);
void CPU_FN(swiglu_backward)(
	int64_t rows, int64_t inner, const void *gate_up, const void *dy, void *d_gate_up);
void CPU_FN(relu_backward)(int64_t count, const void *y, const void *dy, void *dx);
void CPU_FN(add_into)(int64_t count, const void *a, void *y);
void CPU_FN(column_sum)(int64_t rows, int64_t n, const void *x, int64_t ldx, float *y);
void CPU_FN(dropout_apply)(const struct backend_dropout *d);
void CPU_FN(maxpool_forward)(const struct backend_pool *d);
void CPU_FN(maxpool_backward)(const struct backend_pool *d);
void CPU_FN(avgpool_forward)(int64_t n, int64_t hw, int64_t c, const void *x, void *y);
void CPU_FN(avgpool_backward)(int64_t n, int64_t hw, int64_t c, const void *dy, void *dx);
void CPU_FN(bag_forward)(const struct backend_bag *d);
void CPU_FN(sparse_store)(const struct backend_bag *d);
void CPU_FN(piece_ids)(int64_t count, int64_t first, int64_t rows, const int32_t *ids, int32_t *y);
void CPU_FN(piece_gather)(const struct backend_pieces *d);
void CPU_FN(piece_spread)(
	int64_t samples, int64_t d, int64_t table, int64_t features, const void *z, void *y);
void CPU_FN(interaction_forward)(
	int64_t samples, int64_t features, int64_t d, const void *z, void *y);
void CPU_FN(interaction_backward)(
	int64_t samples, int64_t features, int64_t d, const void *z, const void *dy, void *dz);
void CPU_FN(classifier_run)(const struct backend_classifier *d);
void CPU_FN(softmax_xent)(const struct backend_softmax_xent *d);
void CPU_FN(xent_statistics)(const struct backend_xent_shared *d);
void CPU_FN(xent_shared)(const struct backend_xent_shared *d);
void CPU_FN(mse_loss)(const struct backend_regress *d);
void CPU_FN(bce_loss)(const struct backend_regress *d);
void CPU_FN(adamw_update)(const struct backend_update *d);
void CPU_FN(sgd_update)(const struct backend_update *d);
void CPU_FN(round_random)(const struct backend_round *d);
#endif

/* SPDX-License-Identifier: Apache-2.0
 * What the files of workers/engine/cpu share. Nobody else includes this. */
#pragma once

#include "workers/engine/backend.h"

#include <dnnl.h>

struct backend_ctx {
	int threads;
	dnnl_engine_t engine;
	dnnl_stream_t stream;
	void *arena;
	int64_t arena_bytes;
	int64_t peak_bytes;
};

/* Loops that the product and convolution files need beside the library's. */
struct cpu_helpers {
	void (*relu_bias)(int64_t rows, int64_t n, const float *b, bool relu, float *y);
	void (*add)(int64_t count, const float *a, float *y);
	void (*column_sum)(int64_t rows, int64_t n, const float *x, float *y);
};
const struct cpu_helpers *cpu_helpers(void);

/* Maps a library status: 0, or INTERNAL/NO_MEMORY with what was attempted. */
int cpu_status(dnnl_status_t status, const char *what, struct err *err) must_check;

/* Device. */
int cpu_open(int threads, struct backend_ctx **ret, struct err *err) must_check;
void cpu_close(struct backend_ctx *ctx);
void cpu_enter(struct backend_ctx *ctx);
int64_t cpu_memory_bytes(const struct backend_ctx *ctx);

int cpu_memory_map(struct backend_ctx *ctx, int64_t bytes, void **ret, struct err *err) must_check;

int cpu_linear_create(struct backend_ctx *ctx, const struct backend_linear_desc *d,
	struct backend_linear **ret, struct err *err) must_check;
int cpu_linear_run(struct backend_linear *l, struct err *err) must_check;
void cpu_linear_destroy(struct backend_linear *l);
int cpu_linear_backward_data(const struct backend_linear_backward *d, struct err *err) must_check;
int cpu_linear_backward_weight(const struct backend_linear_backward *d, struct err *err) must_check;

int cpu_conv_create(struct backend_ctx *ctx, const struct backend_conv_desc *d,
	struct backend_conv **ret, struct err *err) must_check;
int cpu_conv_run(struct backend_conv *c, struct err *err) must_check;
void cpu_conv_destroy(struct backend_conv *c);

/* One table for each instruction set, each from its own compilation of cpu/ops/table.c. */
struct cpu_table {
	struct backend backend;
	struct cpu_helpers helpers;
};
extern const struct cpu_table cpu_table_baseline;
extern const struct cpu_table cpu_table_avx2;
extern const struct cpu_table cpu_table_avx512;

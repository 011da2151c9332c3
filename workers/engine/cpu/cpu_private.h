/* SPDX-License-Identifier: Apache-2.0
 * The CPU backend's device and its tables. Nobody outside of workers/engine/cpu and its tests
 * includes this. */
#pragma once

#include "workers/engine/backend.h"

/* Device. */
int cpu_open(int threads, struct backend_ctx **ret, struct err *err) must_check;
void cpu_close(struct backend_ctx *ctx);
int cpu_memory_map(struct backend_ctx *ctx, enum backend_memory where, int64_t bytes, void **ret,
	struct err *err) must_check;
int64_t cpu_memory_bytes(const struct backend_ctx *ctx);
void cpu_enter(struct backend_ctx *ctx);
int cpu_finish(struct backend_ctx *ctx, struct err *err);
int cpu_allow_tf32(struct backend_ctx *ctx, struct err *err) must_check;
void cpu_put_wait(struct backend_ctx *ctx);
void cpu_copy(struct backend_ctx *ctx, void *to, const void *from, int64_t bytes);
bool cpu_replay(struct backend_ctx *ctx, int part, uint64_t key);
bool cpu_record(struct backend_ctx *ctx, int part);
bool cpu_recorded(struct backend_ctx *ctx, uint64_t key);

/* Instruction sets, worst to best. The tables of operations know the first three. */
enum cpu_isa { CPU_BASELINE, CPU_AVX2, CPU_AVX512, CPU_AVX512_BF16 };
/* Whether this processor has all that files compiled for `isa` may use (the flags in meson.build).
 * Asked of the processor once. */
bool cpu_has_isa(enum cpu_isa isa);

/* One table for each instruction set and activation type, each from its own compilation of
 * cpu/ops/table.c. */
enum { CPU_ISA_COUNT = 3 };
/* Of instruction set `isa`, worst (0) to best; NULL when this processor does not have it. type:
 * PLAN_F32, PLAN_BF16 or PLAN_F16. */
const struct backend *cpu_table(int isa, enum plan_type type);

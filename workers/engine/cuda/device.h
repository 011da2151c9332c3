/* SPDX-License-Identifier: Apache-2.0
 * The device's functions of backend.h, for the tables (table.c). */
#pragma once

#include "workers/engine/backend.h"

int cuda_open(int threads, struct backend_ctx **ret, struct err *err) must_check;
void cuda_close(struct backend_ctx *ctx);
int cuda_map(struct backend_ctx *ctx, enum backend_memory where, int64_t bytes, void **ret,
	struct err *err) must_check;
int64_t cuda_memory_bytes(const struct backend_ctx *ctx);
void cuda_enter(struct backend_ctx *ctx);
int cuda_finish(struct backend_ctx *ctx, struct err *err);
int cuda_allow_tf32(struct backend_ctx *ctx, struct err *err);
void cuda_put_of(struct backend_ctx *ctx, void *device, const void *host, int64_t bytes);
void cuda_put_wait(struct backend_ctx *ctx);
void cuda_get(struct backend_ctx *ctx, void *host, const void *device, int64_t bytes);
void cuda_copy(struct backend_ctx *ctx, void *to, const void *from, int64_t bytes);
void cuda_group_device(const struct backend_ctx *ctx, struct comm_device *ret);
void cuda_put_ahead(struct backend_ctx *ctx, void *device, const void *host, int64_t bytes);
void cuda_take_ahead(struct backend_ctx *ctx, void *to, const void *from, int64_t bytes);
bool cuda_replay(struct backend_ctx *ctx, int part, uint64_t key);
bool cuda_record(struct backend_ctx *ctx, int part);
bool cuda_recorded(struct backend_ctx *ctx, uint64_t key);

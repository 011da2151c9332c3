/* SPDX-License-Identifier: Apache-2.0
 * The CPU device: opening, memory, threads, and the choice of the instruction set. Called through
 * the backend's table by the engine's thread. */
#include "workers/engine/cpu/cpu_private.h"
#include "workers/engine/engine.h"

#include <errno.h>
#include <omp.h>
#include <stdlib.h>
#include <sys/mman.h>

static const struct cpu_table *table(void)
{
#if defined(__x86_64__)
	if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
		__builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
		return &cpu_table_avx512;
	if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
		return &cpu_table_avx2;
#endif
	return &cpu_table_baseline;
}

const struct backend *engine_backend_cpu(void)
{
	return &table()->backend;
}

const struct cpu_helpers *cpu_helpers(void)
{
	return &table()->helpers;
}

int cpu_status(dnnl_status_t status, const char *what, struct err *err)
{
	if (status == dnnl_success)
		return 0;
	if (status == dnnl_out_of_memory)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory to prepare %s", what);
	return err_set(
		err, ERR_INTERNAL, NULL, "the math library refused %s (status %d)", what, (int)status);
}

int cpu_open(int threads, struct backend_ctx **ret, struct err *err)
{
	struct backend_ctx *ctx = calloc(1, sizeof(*ctx));
	if (!ctx)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for the device");
	ctx->threads = threads;
	cpu_enter(ctx);
	int rc = cpu_status(dnnl_engine_create(&ctx->engine, dnnl_cpu, 0), "the device", err);
	if (!rc)
		rc = cpu_status(dnnl_stream_create(&ctx->stream, ctx->engine, dnnl_stream_default_flags),
			"a stream", err);
	if (rc) {
		cpu_close(ctx);
		return rc;
	}
	*ret = ctx;
	return 0;
}

void cpu_close(struct backend_ctx *ctx)
{
	if (!ctx)
		return;
	if (ctx->stream)
		dnnl_stream_destroy(ctx->stream);
	if (ctx->engine)
		dnnl_engine_destroy(ctx->engine);
	if (ctx->arena)
		munmap(ctx->arena, (size_t)ctx->arena_bytes);
	free(ctx);
}

void cpu_enter(struct backend_ctx *ctx)
{
	omp_set_num_threads(ctx->threads);
}

/* One mapping with huge pages: first touch of small pages costs more than the arithmetic. */
int cpu_memory_map(struct backend_ctx *ctx, int64_t bytes, void **ret, struct err *err)
{
	void *mem = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (mem == MAP_FAILED)
		return err_errno(
			err, ERR_NO_MEMORY, errno, "the device refused %lld bytes", (long long)bytes);
	(void)madvise(mem, (size_t)bytes, MADV_HUGEPAGE);
	ctx->arena = mem;
	ctx->arena_bytes = bytes;
	ctx->peak_bytes += bytes;
	*ret = mem;
	return 0;
}

int64_t cpu_memory_bytes(const struct backend_ctx *ctx)
{
	return ctx->peak_bytes;
}

/* SPDX-License-Identifier: Apache-2.0
 * The CPU device: opening, memory, threads, and the choice of the instruction set. Called through
 * the backend's table by the engine's thread. */
#include "core/base/num.h"
#include "workers/engine/cpu/cpu_private.h"
#include "workers/engine/engine.h"

#include <errno.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
	TYPES = 3,                   /* fp32, bf16, fp16: the first of enum plan_type */
	HUGE_PAGE = 2 * 1024 * 1024, /* bytes */
};

struct backend_ctx {
	int threads;
	/* Of each kind, which are all the same to a CPU. */
	void *mapped[BACKEND_HOST + 1];
	size_t mapped_bytes[BACKEND_HOST + 1];
	int64_t peak_bytes;
};

extern const struct backend cpu_table_f32_baseline, cpu_table_bf16_baseline, cpu_table_f16_baseline;
#if defined(__x86_64__)
extern const struct backend cpu_table_f32_avx2, cpu_table_bf16_avx2, cpu_table_f16_avx2;
extern const struct backend cpu_table_f32_avx512, cpu_table_bf16_avx512, cpu_table_f16_avx512;
#endif

static const struct backend *const tables[CPU_ISA_COUNT][TYPES] = {
	{ &cpu_table_f32_baseline, &cpu_table_bf16_baseline, &cpu_table_f16_baseline },
#if defined(__x86_64__)
	{ &cpu_table_f32_avx2, &cpu_table_bf16_avx2, &cpu_table_f16_avx2 },
	{ &cpu_table_f32_avx512, &cpu_table_bf16_avx512, &cpu_table_f16_avx512 },
#endif
};

const struct backend *cpu_table(int isa, enum plan_type type)
{
	return isa < CPU_ISA_COUNT && cpu_has_isa((enum cpu_isa)isa) ? tables[isa][type] : NULL;
}

const struct backend *engine_backend_cpu(enum plan_type type)
{
	int isa = CPU_ISA_COUNT - 1;
	while (!cpu_table(isa, type))
		isa--;
	return cpu_table(isa, type);
}

int cpu_open(int threads, struct backend_ctx **ret, struct err *err)
{
	struct backend_ctx *ctx = calloc(1, sizeof(*ctx));
	if (!ctx)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for the device");
	ctx->threads = threads;
	cpu_enter(ctx);
	*ret = ctx;
	return 0;
}

void cpu_close(struct backend_ctx *ctx)
{
	if (!ctx)
		return;
	for (int i = 0; i <= BACKEND_HOST; i++)
		if (ctx->mapped[i])
			munmap(ctx->mapped[i], ctx->mapped_bytes[i]);
	free(ctx);
}

void cpu_enter(struct backend_ctx *ctx)
{
	omp_set_num_threads(ctx->threads);
}

/* Nothing is ever behind. */
int cpu_finish(struct backend_ctx *ctx, struct err *err)
{
	return 0;
}

int cpu_allow_tf32(struct backend_ctx *ctx, struct err *err)
{
	return err_set(err, ERR_INVALID_VALUE, "$.precision",
		"precision tf32 needs a GPU that has TF32, and this device is a CPU: use fp32");
}

void cpu_put_wait(struct backend_ctx *ctx) {}

void cpu_copy(struct backend_ctx *ctx, void *to, const void *from, int64_t bytes)
{
	memcpy(to, from, (size_t)bytes);
}

/* Nothing is kept: a call costs nothing here. */
bool cpu_replay(struct backend_ctx *ctx, int part, uint64_t key)
{
	return false;
}

bool cpu_record(struct backend_ctx *ctx, int part)
{
	return false;
}

bool cpu_recorded(struct backend_ctx *ctx, uint64_t key)
{
	return false;
}

/* Takes all of it now, in parallel: a machine without that much fails before the first step (with
 * an error, or by the kernel's hand where memory is overcommitted), and no step pays for first
 * touches. Kernels before 5.14 cannot (EINVAL): there the steps do. */
static int populate(char *mem, int64_t bytes)
{
	int failed = 0;
	const int64_t pages = num_ceil_div(bytes, HUGE_PAGE);
#pragma omp parallel for schedule(static) reduction(max : failed)
	for (int64_t i = 0; i < pages; i++) {
		const int64_t at = i * HUGE_PAGE, size = num_min(HUGE_PAGE, bytes - at);
		if (madvise(mem + at, (size_t)size, MADV_POPULATE_WRITE) && errno != EINVAL)
			failed = errno;
	}
	return failed;
}

/* One mapping with huge pages: first touch of small pages costs more than the arithmetic. It begins
 * where a huge page may; what lies before and behind is never touched. */
int cpu_memory_map(
	struct backend_ctx *ctx, enum backend_memory where, int64_t bytes, void **ret, struct err *err)
{
	size_t want = (size_t)bytes + HUGE_PAGE;
	char *mem = mmap(
		NULL, want, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (mem == MAP_FAILED)
		return err_errno(
			err, ERR_NO_MEMORY, errno, "the device refused %lld bytes", (long long)bytes);
	ctx->mapped[where] = mem;
	ctx->mapped_bytes[where] = want;
	ctx->peak_bytes += bytes;
	mem += (HUGE_PAGE - (uintptr_t)mem % HUGE_PAGE) % HUGE_PAGE;
	(void)madvise(mem, (size_t)bytes, MADV_HUGEPAGE);
	int refused = populate(mem, bytes);
	if (refused)
		return err_errno(
			err, ERR_NO_MEMORY, refused, "the device has no %lld bytes", (long long)bytes);
	*ret = mem;
	return 0;
}

int64_t cpu_memory_bytes(const struct backend_ctx *ctx)
{
	return ctx->peak_bytes;
}

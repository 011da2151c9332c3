/* SPDX-License-Identifier: Apache-2.0
 * What instruction sets this processor has. Called where the tables of operations (cpu.c) and the
 * kernels of products (gemm.c) are chosen. */
#include "workers/engine/cpu/cpu_private.h"

#include <stdatomic.h>

static unsigned detect(void)
{
	unsigned found = 1u << CPU_BASELINE;
#if defined(__x86_64__)
	if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
		__builtin_cpu_supports("f16c"))
		found |= 1u << CPU_AVX2;
	if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
		__builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
		found |= 1u << CPU_AVX512;
		if (__builtin_cpu_supports("avx512bf16"))
			found |= 1u << CPU_AVX512_BF16;
	}
#endif
	return found;
}

bool cpu_has_isa(enum cpu_isa isa)
{
	static atomic_uint known; /* 0: not asked yet; whoever asks first, all find the same */
	unsigned found = atomic_load_explicit(&known, memory_order_relaxed);
	if (!found) {
		found = detect();
		atomic_store_explicit(&known, found, memory_order_relaxed);
	}
	return found >> isa & 1;
}

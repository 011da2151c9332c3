/* SPDX-License-Identifier: Apache-2.0
 * The reductions: element by element in the order of the parts, in fp32, rounded once at the end. A
 * tile of sums stays in the nearest cache while the parts go by. No state; any thread. */
#include "core/base/float16.h"
#include "workers/comm/comm_private.h"

#include <string.h>

enum { TILE = 2048 }; /* floats: 8 KiB */

#if defined(__x86_64__)
#define FOR_F16C __attribute__((target("avx2,f16c")))
#else
#define FOR_F16C
#endif
#define always_inline static inline __attribute__((always_inline))

/* The processor's own conversions where it has them: the same bits, many times faster. */
static bool has_f16c(void)
{
#if defined(__x86_64__)
	return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
#else
	return false;
#endif
}

always_inline void widen_f16(float *to, const _Float16 *from, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		to[i] = (float)from[i];
}

always_inline void narrow_f16(_Float16 *to, const float *from, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		to[i] = (_Float16)from[i];
}

FOR_F16C static void widen_f16_fast(float *to, const _Float16 *from, int64_t n)
{
	widen_f16(to, from, n);
}

FOR_F16C static void narrow_f16_fast(_Float16 *to, const float *from, int64_t n)
{
	narrow_f16(to, from, n);
}

static void widen(enum comm_type type, float *to, const void *from, int64_t n)
{
	if (type == COMM_F32) {
		memcpy(to, from, (size_t)n * sizeof(*to));
	} else if (type == COMM_BF16) {
		const uint16_t *half = from;
		for (int64_t i = 0; i < n; i++)
			to[i] = float16_from_bf16(half[i]);
	} else if (has_f16c()) {
		widen_f16_fast(to, from, n);
	} else {
		widen_f16(to, from, n);
	}
}

static void narrow(enum comm_type type, void *to, const float *from, int64_t n)
{
	if (type == COMM_F32) {
		memcpy(to, from, (size_t)n * sizeof(*from));
	} else if (type == COMM_BF16) {
		uint16_t *half = to;
		for (int64_t i = 0; i < n; i++)
			half[i] = float16_to_bf16(from[i]);
	} else if (has_f16c()) {
		narrow_f16_fast(to, from, n);
	} else {
		narrow_f16(to, from, n);
	}
}

/* into may be either of the others, which the compiler need not check. */
static void add(enum comm_reduce reduce, float *into, const float *sum, const float *x, int64_t n)
{
	if (reduce == COMM_SUM) {
#pragma GCC ivdep
		for (int64_t i = 0; i < n; i++)
			into[i] = sum[i] + x[i];
		return;
	}
#pragma GCC ivdep
	for (int64_t i = 0; i < n; i++) /* a NaN on either side stays */
		into[i] = sum[i] > x[i] || sum[i] != sum[i] ? sum[i] : x[i];
}

/* Nothing to convert: the first sum is taken from where the parts lie, the last put to its place.
 */
static void reduce_f32(enum comm_reduce reduce, float *into, const void *const *parts, int n,
	int64_t begin, int64_t length)
{
	float tile[TILE];
	const float *sum = (const float *)parts[0] + begin;
	for (int part = 1; part < n; part++) {
		float *to = part == n - 1 ? into + begin : tile;
		add(reduce, to, sum, (const float *)parts[part] + begin, length);
		sum = to;
	}
	if (n == 1 && sum != into + begin)
		memcpy(into + begin, sum, (size_t)length * sizeof(*sum));
}

void comm_reduce_parts(enum comm_type type, enum comm_reduce reduce, void *into,
	const void *const *parts, int n, int64_t count)
{
	float sum[TILE], x[TILE];
	int64_t bytes = comm_type_bytes(type);
	for (int64_t begin = 0; begin < count; begin += TILE) {
		int64_t length = count - begin < TILE ? count - begin : TILE;
		if (type == COMM_F32) {
			reduce_f32(reduce, into, parts, n, begin, length);
			continue;
		}
		widen(type, sum, (const char *)parts[0] + begin * bytes, length);
		for (int part = 1; part < n; part++) {
			const char *from = (const char *)parts[part] + begin * bytes;
			widen(type, x, from, length);
			add(reduce, sum, sum, x, length);
		}
		narrow(type, (char *)into + begin * bytes, sum, length);
	}
}

/* SPDX-License-Identifier: Apache-2.0
 * The built-in names by which threads of a kernel know where they are, wait for each other and
 * exchange values, as functions of block.h. Included by emulation.h. */
#pragma once

#include "tests/cuda/emulation/block.h"

#include <string.h>
#include <type_traits>

#define threadIdx (emulation_here->thread_idx)
#define blockIdx (emulation_here->block_idx)
#define blockDim (emulation_here->block_dim)
#define gridDim (emulation_here->grid_dim)
#define warpSize EMULATION_WARP

/* Where the call stands: two of them that meet are a branch that threads did not take together. */
#define EMULATION_AT const char *file = __builtin_FILE(), int line = __builtin_LINE()

static inline void __syncthreads(EMULATION_AT)
{
	emulation_barrier(0, file, line);
}
static inline int __syncthreads_count(int predicate, EMULATION_AT)
{
	return emulation_barrier(predicate, file, line);
}
static inline int __syncthreads_or(int predicate, EMULATION_AT)
{
	return emulation_barrier(predicate, file, line) != 0;
}
static inline int __syncthreads_and(int predicate, EMULATION_AT)
{
	return emulation_barrier(!predicate, file, line) == 0;
}
static inline void __threadfence(void) {}
static inline void __threadfence_block(void) {}
static inline void __threadfence_system(void) {}

/* ------------------------------------------------------------------------------------- shuffles */

template <typename T>
static inline T emulation_shuffle(unsigned mask, T value, int source, const char *file, int line)
{
	static_assert(std::is_trivially_copyable<T>::value && sizeof(T) <= sizeof(uint64_t),
		"a shuffle moves up to 8 bytes");
	uint64_t bits = 0;
	memcpy(&bits, &value, sizeof(value));
	bits = emulation_warp_exchange(EMULATION_SHUFFLE, mask, bits, source, file, line);
	memcpy(static_cast<void *>(&value), &bits, sizeof(value));
	return value;
}

template <typename T>
static inline T __shfl_sync(
	unsigned mask, T value, int source, int width = EMULATION_WARP, EMULATION_AT)
{
	int first = emulation_lane() & ~(width - 1);
	return emulation_shuffle(mask, value, first + (source & (width - 1)), file, line);
}
template <typename T>
static inline T __shfl_up_sync(
	unsigned mask, T value, unsigned delta, int width = EMULATION_WARP, EMULATION_AT)
{
	int lane = emulation_lane(), first = lane & ~(width - 1), source = lane - (int)delta;
	return emulation_shuffle(mask, value, source < first ? lane : source, file, line);
}
template <typename T>
static inline T __shfl_down_sync(
	unsigned mask, T value, unsigned delta, int width = EMULATION_WARP, EMULATION_AT)
{
	int lane = emulation_lane(), last = lane | (width - 1), source = lane + (int)delta;
	return emulation_shuffle(mask, value, source > last ? lane : source, file, line);
}
template <typename T>
static inline T __shfl_xor_sync(
	unsigned mask, T value, int lanes, int width = EMULATION_WARP, EMULATION_AT)
{
	int lane = emulation_lane(), last = lane | (width - 1), source = lane ^ lanes;
	return emulation_shuffle(mask, value, source > last ? lane : source, file, line);
}

/* ---------------------------------------------------------------------------------------- votes */

static inline void __syncwarp(unsigned mask = 0xffffffffu, EMULATION_AT)
{
	emulation_warp_exchange(EMULATION_SYNC, mask, 0, 0, file, line);
}
static inline unsigned __ballot_sync(unsigned mask, int predicate, EMULATION_AT)
{
	return (unsigned)emulation_warp_exchange(EMULATION_BALLOT, mask, predicate != 0, 0, file, line);
}
static inline int __any_sync(unsigned mask, int predicate, EMULATION_AT)
{
	return emulation_warp_exchange(EMULATION_BALLOT, mask, predicate != 0, 0, file, line) != 0;
}
static inline int __all_sync(unsigned mask, int predicate, EMULATION_AT)
{
	return emulation_warp_exchange(EMULATION_BALLOT, mask, predicate == 0, 0, file, line) == 0;
}
template <typename T> static inline unsigned __match_any_sync(unsigned mask, T value, EMULATION_AT)
{
	uint64_t bits = 0;
	memcpy(&bits, &value, sizeof(value));
	return (unsigned)emulation_warp_exchange(EMULATION_MATCH, mask, bits, 0, file, line);
}
static inline unsigned __reduce_add_sync(unsigned mask, unsigned value, EMULATION_AT)
{
	return (unsigned)emulation_warp_exchange(EMULATION_ADD, mask, value, 0, file, line);
}
static inline int __reduce_add_sync(unsigned mask, int value, EMULATION_AT)
{
	return (int)emulation_warp_exchange(EMULATION_ADD, mask, (unsigned)value, 0, file, line);
}
static inline unsigned __reduce_min_sync(unsigned mask, unsigned value, EMULATION_AT)
{
	return (unsigned)emulation_warp_exchange(EMULATION_MIN, mask, value, 0, file, line);
}
static inline int __reduce_min_sync(unsigned mask, int value, EMULATION_AT)
{
	return (int)emulation_warp_exchange(
		EMULATION_MIN_SIGNED, mask, (uint64_t)(int64_t)value, 0, file, line);
}
static inline unsigned __reduce_max_sync(unsigned mask, unsigned value, EMULATION_AT)
{
	return (unsigned)emulation_warp_exchange(EMULATION_MAX, mask, value, 0, file, line);
}
static inline int __reduce_max_sync(unsigned mask, int value, EMULATION_AT)
{
	return (int)emulation_warp_exchange(
		EMULATION_MAX_SIGNED, mask, (uint64_t)(int64_t)value, 0, file, line);
}
static inline unsigned __reduce_and_sync(unsigned mask, unsigned value, EMULATION_AT)
{
	return (unsigned)emulation_warp_exchange(EMULATION_AND, mask, value, 0, file, line);
}
static inline unsigned __reduce_or_sync(unsigned mask, unsigned value, EMULATION_AT)
{
	return (unsigned)emulation_warp_exchange(EMULATION_OR, mask, value, 0, file, line);
}
static inline unsigned __reduce_xor_sync(unsigned mask, unsigned value, EMULATION_AT)
{
	return (unsigned)emulation_warp_exchange(EMULATION_XOR, mask, value, 0, file, line);
}

/* -------------------------------------------------------------------------------------- atomics */

/* Kernels of two streams may meet, so these are atomic for the host as well. There are none of
 * floating point: their order would decide the last bits. */
template <typename T> using emulation_integer = std::enable_if_t<std::is_integral<T>::value, T>;
template <typename T> struct emulation_same {
	typedef T type;
};
template <typename T> using emulation_as = typename emulation_same<T>::type;

template <typename T> static inline emulation_integer<T> atomicAdd(T *p, emulation_as<T> x)
{
	return __atomic_fetch_add(p, x, __ATOMIC_RELAXED);
}
template <typename T> static inline emulation_integer<T> atomicSub(T *p, emulation_as<T> x)
{
	return __atomic_fetch_sub(p, x, __ATOMIC_RELAXED);
}
template <typename T> static inline emulation_integer<T> atomicAnd(T *p, emulation_as<T> x)
{
	return __atomic_fetch_and(p, x, __ATOMIC_RELAXED);
}
template <typename T> static inline emulation_integer<T> atomicOr(T *p, emulation_as<T> x)
{
	return __atomic_fetch_or(p, x, __ATOMIC_RELAXED);
}
template <typename T> static inline emulation_integer<T> atomicXor(T *p, emulation_as<T> x)
{
	return __atomic_fetch_xor(p, x, __ATOMIC_RELAXED);
}
template <typename T> static inline emulation_integer<T> atomicExch(T *p, emulation_as<T> x)
{
	return __atomic_exchange_n(p, x, __ATOMIC_RELAXED);
}
template <typename T>
static inline emulation_integer<T> atomicCAS(T *p, emulation_as<T> expected, emulation_as<T> x)
{
	__atomic_compare_exchange_n(p, &expected, x, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
	return expected;
}
template <typename T> static inline emulation_integer<T> atomicMax(T *p, emulation_as<T> x)
{
	T old = __atomic_load_n(p, __ATOMIC_RELAXED);
	while (old < x &&
		!__atomic_compare_exchange_n(p, &old, x, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		continue;
	return old;
}
template <typename T> static inline emulation_integer<T> atomicMin(T *p, emulation_as<T> x)
{
	T old = __atomic_load_n(p, __ATOMIC_RELAXED);
	while (x < old &&
		!__atomic_compare_exchange_n(p, &old, x, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		continue;
	return old;
}

/* SPDX-License-Identifier: Apache-2.0
 * Tensor cores and asynchronous copies for kernels of cuda/ops: 16 x 8 x 16 products of bf16 or
 * fp16 with sums in fp32, fragments from shared memory, 16-byte copies that go on behind the block.
 * Devices from compute capability 8.0 on; tests/cuda/emulation/device_mma.h is the same in C++. */
#pragma once

#include "workers/engine/cuda/kernel.h"

/* Fragments, as lane i of a warp holds them, g = i / 4 and c = 2 * (i % 4); all 32 lanes take part
 * in every function. A register has two neighbours, the first one in its low half.
 *   a, 16 x 16, four registers: [g][c], [g + 8][c], [g][c + 8], [g + 8][c + 8] and the next column
 *   b, 16 x 8, two registers:   [c][g], [c + 8][g] and the next row
 *   sums, 16 x 8, four floats:  [g][c], [g][c + 1], [g + 8][c], [g + 8][c + 1]
 * So the sums of two products beside each other are, in pairs, a fragment `a` of the next one. */

#ifdef CUDA_EMULATION
#include "tests/cuda/emulation/device_mma.h"
#else

/* sums += a b */
template <typename T>
static __device__ __forceinline__ void mma_add(
	float &s0, float &s1, float &s2, float &s3, const unsigned (&a)[4], unsigned b0, unsigned b1);

template <>
__device__ __forceinline__ void mma_add<__nv_bfloat16>(
	float &s0, float &s1, float &s2, float &s3, const unsigned (&a)[4], unsigned b0, unsigned b1)
{
	asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
		"{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
		: "+f"(s0), "+f"(s1), "+f"(s2), "+f"(s3)
		: "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <>
__device__ __forceinline__ void mma_add<__half>(
	float &s0, float &s1, float &s2, float &s3, const unsigned (&a)[4], unsigned b0, unsigned b1)
{
	asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
		"{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
		: "+f"(s0), "+f"(s1), "+f"(s2), "+f"(s3)
		: "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

static __device__ __forceinline__ unsigned mma_shared(const void *p)
{
	return (unsigned)__cvta_generic_to_shared(p);
}

/* Four squares of 8 x 8 from shared memory. Lane i says where row i % 8 of square i / 8 begins, a
 * multiple of 16 bytes. Register k of lane i is [i / 4][2 * (i % 4)] and the next column of square
 * k; across: [2 * (i % 4)][i / 4] and the next row. */
static __device__ __forceinline__ void mma_load(unsigned (&ret)[4], const void *row)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
				 : "=r"(ret[0]), "=r"(ret[1]), "=r"(ret[2]), "=r"(ret[3])
				 : "r"(mma_shared(row))
				 : "memory");
}
static __device__ __forceinline__ void mma_load_across(unsigned (&ret)[4], const void *row)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
				 : "=r"(ret[0]), "=r"(ret[1]), "=r"(ret[2]), "=r"(ret[3])
				 : "r"(mma_shared(row))
				 : "memory");
}

/* Copies of the calling thread from device to shared memory. What was copied before the n-th last
 * commit is there for the thread after wait<n>, for others behind a barrier after that. */
struct mma_copies {
	/* BYTES (4 or 16, of which both addresses are multiples); zeros unless `real`, when `from` only
	 * has to be an address of device memory. */
	template <int BYTES> __device__ __forceinline__ void add(void *to, const void *from, bool real)
	{
		if (BYTES == 16)
			asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(mma_shared(to)),
						 "l"(__cvta_generic_to_global(from)), "r"(real ? 16 : 0)
						 : "memory");
		else
			asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(mma_shared(to)),
						 "l"(__cvta_generic_to_global(from)), "r"(real ? 4 : 0)
						 : "memory");
	}
	__device__ __forceinline__ void commit(void)
	{
		asm volatile("cp.async.commit_group;" ::: "memory");
	}
	template <int N> __device__ __forceinline__ void wait(void)
	{
		asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
	}
};
#endif

/* Two floats rounded into a register of a fragment. */
template <typename T> static __device__ __forceinline__ unsigned mma_pair(float x, float y)
{
	T pair[2] = { act_round<T>(x), act_round<T>(y) };
	unsigned bits;
	memcpy(&bits, pair, sizeof(bits));
	return bits;
}

/* What mma_pair left out of them, rounded as well: the sum of both has twice the precision. */
template <typename T>
static __device__ __forceinline__ unsigned mma_pair_rest(unsigned bits, float x, float y)
{
	T pair[2];
	memcpy(static_cast<void *>(pair), &bits, sizeof(bits));
	return mma_pair<T>(x - act_float(pair[0]), y - act_float(pair[1]));
}

/* Where the calling lane's row begins in a tile of shared memory with `stride` values a row, for
 * mma_load to give: a fragment `a`; of b, two fragments beside each other (registers 0, 1 and
 * 2, 3) of a tile that has b's columns as rows; the same by mma_load_across of a tile that has b's
 * rows as rows. */
template <typename T>
static __device__ __forceinline__ const T *mma_row_a(const T *tile, int stride)
{
	int lane = (int)threadIdx.x % CUDA_WARP;
	return tile + lane % 16 * stride + lane / 16 * 8;
}
template <typename T>
static __device__ __forceinline__ const T *mma_row_b(const T *tile, int stride)
{
	int lane = (int)threadIdx.x % CUDA_WARP;
	return tile + (lane % 8 + lane / 16 * 8) * stride + lane / 8 % 2 * 8;
}
template <typename T>
static __device__ __forceinline__ const T *mma_row_b_across(const T *tile, int stride)
{
	return mma_row_a(tile, stride);
}

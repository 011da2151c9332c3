/* SPDX-License-Identifier: Apache-2.0
 * Sums in double over a fixed number of blocks, the same bits whatever the threads; filling. Called
 * through the backend's table. */
#include "workers/engine/cpu/isa.h"
#include "workers/engine/cpu/ops/simd.h"

/* As many floats as one register holds doubles. */
enum { HALF = SIMD_WIDTH / 2, SUMS = 4 };
typedef float half_f32 __attribute__((vector_size(HALF * 4), aligned(4), may_alias));
typedef double half_f64 __attribute__((vector_size(HALF * 8)));

CPU_INLINE double block_sum(const float *x, int64_t count, const bool square)
{
	half_f64 sum[SUMS] = { 0 };
	int64_t i = 0;
	for (; i + SUMS * HALF <= count; i += SUMS * HALF)
#pragma GCC unroll 4
		for (int k = 0; k < SUMS; k++) {
			half_f64 v = __builtin_convertvector(*(const half_f32 *)(x + i + k * HALF), half_f64);
			sum[k] += square ? v * v : v;
		}
	half_f64 all = (sum[0] + sum[1]) + (sum[2] + sum[3]);
	double total = 0;
	for (int k = 0; k < HALF; k++)
		total += all[k];
	for (; i < count; i++)
		total += square ? (double)x[i] * (double)x[i] : (double)x[i];
	return total;
}

CPU_INLINE double reduce(int64_t count, const float *x, double *partial, const bool square)
{
	int64_t per = (count + PLAN_ROW_BLOCKS - 1) / PLAN_ROW_BLOCKS;
#pragma omp parallel for schedule(static) if (count > CPU_PARALLEL_MIN)
	for (int64_t b = 0; b < PLAN_ROW_BLOCKS; b++) {
		int64_t begin = b * per < count ? b * per : count;
		int64_t end = begin + per < count ? begin + per : count;
		partial[b] = block_sum(x + begin, end - begin, square);
	}
	double total = 0;
	for (int b = 0; b < PLAN_ROW_BLOCKS; b++)
		total += partial[b];
	return total;
}

void CPU_PLAIN(reduce_sum)(int64_t count, const float *x, double *ret)
{
	double partial[PLAN_ROW_BLOCKS];
	*ret = reduce(count, x, partial, false);
}

void CPU_PLAIN(reduce_square_sum)(int64_t count, const float *x, double *partial, double *ret)
{
	*ret = reduce(count, x, partial, true);
}

void CPU_PLAIN(fill_value)(int64_t count, float value, float *y)
{
#pragma omp parallel for simd schedule(static) if (count > CPU_PARALLEL_MIN)
	for (int64_t i = 0; i < count; i++)
		y[i] = value;
}

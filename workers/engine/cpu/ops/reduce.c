/* SPDX-License-Identifier: Apache-2.0
 * Sums in double over a fixed number of blocks: the same bits whatever the threads. */
#include "workers/engine/cpu/isa.h"

static double block_sum(const float *x, int64_t count, bool square)
{
	double total = 0;
	if (square)
#pragma omp simd reduction(+ : total)
		for (int64_t i = 0; i < count; i++)
			total += (double)x[i] * (double)x[i];
	else
#pragma omp simd reduction(+ : total)
		for (int64_t i = 0; i < count; i++)
			total += (double)x[i];
	return total;
}

static double reduce(int64_t count, const float *x, double *partial, bool square)
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

double CPU_FN(reduce_sum)(int64_t count, const float *x, double *partial)
{
	return reduce(count, x, partial, false);
}

double CPU_FN(reduce_square_sum)(int64_t count, const float *x, double *partial)
{
	return reduce(count, x, partial, true);
}

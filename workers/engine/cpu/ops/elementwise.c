/* SPDX-License-Identifier: Apache-2.0
 * Additions, ReLU and column sums. */
#include "workers/engine/cpu/isa.h"
#include "workers/engine/cpu/ops/simd.h"

void CPU_FN(relu_backward)(int64_t count, const float *y, const float *dy, float *dx)
{
#pragma omp parallel for simd schedule(static) if (count > CPU_PARALLEL_MIN)
	for (int64_t i = 0; i < count; i++)
		dx[i] = y[i] > 0.0f ? dy[i] : 0.0f;
}

void CPU_FN(relu_bias)(int64_t rows, int64_t n, const float *b, bool relu, float *y)
{
	float low = relu ? 0.0f : -__builtin_inff();
#pragma omp parallel for schedule(static) if (rows * n > CPU_PARALLEL_MIN)
	for (int64_t r = 0; r < rows; r++) {
		float *row = y + r * n;
		if (b)
#pragma omp simd
			for (int64_t i = 0; i < n; i++)
				row[i] += b[i];
#pragma omp simd
		for (int64_t i = 0; i < n; i++)
			row[i] = row[i] < low ? low : row[i];
	}
}

void CPU_FN(add_into)(int64_t count, const float *a, float *y)
{
#pragma omp parallel for simd schedule(static) if (count > CPU_PARALLEL_MIN)
	for (int64_t i = 0; i < count; i++)
		y[i] += a[i];
}

void CPU_FN(fill_value)(int64_t count, float value, float *y)
{
#pragma omp parallel for simd schedule(static) if (count > CPU_PARALLEL_MIN)
	for (int64_t i = 0; i < count; i++)
		y[i] = value;
}

/* Four partial sums a column keep the chain of additions short. */
CPU_INLINE void column_slice(int64_t rows, int64_t n, const float *x, float *y)
{
	simd_f32 sum[4] = { { 0 }, { 0 }, { 0 }, { 0 } };
	int64_t r = 0;
	for (; r + 4 <= rows; r += 4)
		for (int k = 0; k < 4; k++)
			sum[k] += simd_load(x + (r + k) * n);
	for (; r < rows; r++)
		sum[0] += simd_load(x + r * n);
	simd_store(y, simd_load(y) + ((sum[0] + sum[1]) + (sum[2] + sum[3])));
}

void CPU_FN(column_sum)(int64_t rows, int64_t n, const float *x, float *y)
{
	int64_t whole = n / SIMD_WIDTH * SIMD_WIDTH;
#pragma omp parallel for schedule(static) if (rows * n > CPU_PARALLEL_MIN)
	for (int64_t c = 0; c < whole; c += SIMD_WIDTH)
		column_slice(rows, n, x + c, y + c);
	for (int64_t c = whole; c < n; c++) {
		float sum = 0;
		for (int64_t r = 0; r < rows; r++)
			sum += x[r * n + c];
		y[c] += sum;
	}
}

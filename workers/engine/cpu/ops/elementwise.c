/* SPDX-License-Identifier: Apache-2.0
 * Additions, the gradient of ReLU, column sums. Called through the backend's table; column_sum by
 * the products' bias gradients. */
#include "workers/engine/cpu/ops/act.h"

void CPU_FN(relu_backward)(int64_t count, const void *y, const void *dy, void *dx)
{
	const act_t *out = y, *grad = dy;
	act_t *to = dx;
#pragma omp parallel for schedule(static) if (count > CPU_PARALLEL_MIN)
	for (int64_t begin = 0; begin < count; begin += ACT_BLOCK) {
		int64_t end = act_block_end(begin, count);
		for (int64_t i = begin; i < end; i += SIMD_WIDTH) {
			simd_f32 v = act_load_upto(out + i, end - i), g = act_load_upto(grad + i, end - i);
			act_store_upto(to + i, simd_select(v > 0.0f, g, simd_set(0)), end - i);
		}
	}
}

void CPU_FN(add_into)(int64_t count, const void *a, void *y)
{
	const act_t *from = a;
	act_t *to = y;
#pragma omp parallel for schedule(static) if (count > CPU_PARALLEL_MIN)
	for (int64_t begin = 0; begin < count; begin += ACT_BLOCK) {
		int64_t end = act_block_end(begin, count);
		for (int64_t i = begin; i < end; i += SIMD_WIDTH) {
			simd_f32 sum = act_load_upto(to + i, end - i) + act_load_upto(from + i, end - i);
			act_store_upto(to + i, sum, end - i);
		}
	}
}

/* Four partial sums a column keep the chain of additions short. */
CPU_INLINE void column_slice(int64_t rows, int64_t n, const act_t *x, int64_t ldx, float *y)
{
	simd_f32 sum[4] = { { 0 }, { 0 }, { 0 }, { 0 } };
	int64_t r = 0;
	for (; r + 4 <= rows; r += 4)
		for (int k = 0; k < 4; k++)
			sum[k] += act_load_upto(x + (r + k) * ldx, n);
	for (; r < rows; r++)
		sum[0] += act_load_upto(x + r * ldx, n);
	simd_f32 all = (sum[0] + sum[1]) + (sum[2] + sum[3]);
	simd_store_upto(y, simd_load_upto(y, n) + all, n);
}

void CPU_FN(column_sum)(int64_t rows, int64_t n, const void *x, int64_t ldx, float *y)
{
	const act_t *from = x;
#pragma omp parallel for schedule(static) if (rows * n > CPU_PARALLEL_MIN)
	for (int64_t c = 0; c < n; c += SIMD_WIDTH) {
		if (n - c >= SIMD_WIDTH)
			column_slice(rows, SIMD_WIDTH, from + c, ldx, y + c);
		else
			column_slice(rows, n - c, from + c, ldx, y + c);
	}
}

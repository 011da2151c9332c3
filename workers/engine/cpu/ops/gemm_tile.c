/* SPDX-License-Identifier: Apache-2.0
 * The innermost loop of all products: a tile of sums that stays in registers while k runs. 14 x 32
 * on AVX-512 (28 sums, two columns' vectors, one broadcast), 6 x 16 on AVX2, 6 x 8 elsewhere; fewer
 * rows or one vector at the edges. Each sum is one chain over k, so edges change nothing. */
#include "workers/engine/cpu/ops/gemm_ops.h"

/* How far ahead of its use a panel is asked for: it comes from the second-level cache. */
enum { PREFETCH_BYTES = 1536 };

GEMM_INLINE void prefetch_line(const void *p)
{
	__builtin_prefetch(p, 0, 3);
}

/* The tile's own lines of C, to be written at the end. */
GEMM_INLINE void prefetch_out(const int rows, const int vectors, const struct gemm_tile *t)
{
#pragma GCC unroll 14
	for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
		for (int j = 0; j < vectors * GV * 4; j += 64)
			__builtin_prefetch((char *)(t->out + i * t->out_stride) + j, 1, 3);
}

GEMM_INLINE void write_out(
	const int rows, const int vectors, const struct gemm_tile *t, gv_f32 sum[GEMM_MR][2])
{
	if (t->in) {
#pragma GCC unroll 14
		for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
			for (int j = 0; j < vectors; j++)
				sum[i][j] += gv_load(t->in + i * t->in_stride + j * GV);
	}
#pragma GCC unroll 14
	for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
		for (int j = 0; j < vectors; j++)
			gv_store(t->out + i * t->out_stride + j * GV, sum[i][j]);
}

GEMM_INLINE void tile(const int rows, const int vectors, const struct gemm_tile *t)
{
	gv_f32 sum[GEMM_MR][2];
	const int64_t a_row = t->a_row, a_row3 = 3 * t->a_row, a_unit = t->a_unit;
	const char *a[3] = { t->a, t->a + 5 * a_row, t->a + 10 * a_row }, *b = t->b;
#pragma GCC unroll 14
	for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
		for (int j = 0; j < vectors; j++)
			sum[i][j] = gv_set1(0.0f);
	prefetch_out(rows, vectors, t);
#pragma GCC unroll 1
	for (int64_t u = t->units; u > 0; u--) {
		gv_f32 column[2];
#pragma GCC unroll 2
		for (int j = 0; j < vectors; j++)
			column[j] = gv_load(b + j * GV * 4);
#pragma GCC unroll 2
		for (int j = 0; j < GEMM_NR * 4; j += 64)
			prefetch_line(b + PREFETCH_BYTES + j);
		b += GEMM_NR * 4;
#pragma GCC unroll 14
		for (int i = 0; i < rows; i++) {
			/* 0..4 rows from one of three pointers: what addressing modes can say. */
			const int q = i % 5;
			const char *p = a[i / 5] + (q == 3 ? a_row3 : q * a_row);
			gv_f32 row = gv_broadcast(p);
#pragma GCC unroll 2
			for (int j = 0; j < vectors; j++)
				sum[i][j] = gv_product(sum[i][j], row, column[j]);
		}
#pragma GCC unroll 3
		for (int i = 0; i * 5 < rows; i++)
			a[i] += a_unit;
	}
	write_out(rows, vectors, t, sum);
}

#define TILE_FUNCTIONS(r)                               \
	static void tile_##r##_1(const struct gemm_tile *t) \
	{                                                   \
		tile(r, 1, t);                                  \
	}                                                   \
	static void tile_##r##_2(const struct gemm_tile *t) \
	{                                                   \
		tile(r, 2, t);                                  \
	}
#define TILE_ROW(r) { tile_##r##_1, tile_##r##_2 },

GEMM_EACH_ROWS(TILE_FUNCTIONS)

void GEMM_FN(gemm_tile)(int rows, int vectors, const struct gemm_tile *t)
{
	static void (*const tiles[GEMM_MR][2])(
		const struct gemm_tile *t) = { GEMM_EACH_ROWS(TILE_ROW) };
	tiles[rows - 1][vectors - 1](t);
}

/* SPDX-License-Identifier: Apache-2.0
 * The innermost loop of all products: a tile of sums that stays in registers while k runs. 14 x 32
 * on AVX-512 (28 sums, two columns' vectors, one broadcast), 6 x 16 on AVX2, 6 x 8 elsewhere; fewer
 * rows or one vector at the edges. Each sum is one chain over k, so edges change nothing. */
#include "workers/engine/cpu/ops/gemm_ops.h"

/* How far ahead of its use a panel is asked for: it comes from the second-level cache. */
enum { PREFETCH_BYTES = 3072, LINES_AHEAD = 12 };

/* Units of a panel: packed, or taken from the lines where they lie and packed on the way. */
GEMM_INLINE void read_columns(const int vectors, const bool fresh, const struct gemm_tile *t,
	const char *line, char *b, gv_f32 column[2])
{
	const int64_t size = 4 / GEMM_UNIT;
#pragma GCC unroll 2
	for (int j = 0; j < vectors; j++) {
		if (!fresh) {
			column[j] = gv_load(b + j * GV * 4);
			continue;
		}
		if (GEMM_UNIT == 1)
			column[j] = gv_load(line + j * GV * size);
		else
			column[j] = gv_pairs(line + j * GV * size, line + t->line_bytes + j * GV * size);
		gv_store(b + j * GV * 4, column[j]);
	}
}

/* A panel comes from the second-level cache, in order; lines come from further away, each on a page
 * of its own, where no hardware looks ahead. */
GEMM_INLINE void prefetch_columns(
	const bool fresh, const struct gemm_tile *t, const char *line, const char *b)
{
#pragma GCC unroll 2
	for (int j = 0; j < GEMM_NR * 4; j += 64) {
		if (!fresh)
			__builtin_prefetch(b + PREFETCH_BYTES + j, 0, 3);
		else if (GEMM_UNIT == 1)
			__builtin_prefetch(line + LINES_AHEAD * t->line_bytes + j, 0, 3);
		else
			__builtin_prefetch(line + (LINES_AHEAD + j / 64) * t->line_bytes, 0, 3);
	}
}

/* The tile's own lines of C, to be written at the end, and those of the residual. */
GEMM_INLINE void prefetch_out(const int rows, const int vectors, const struct gemm_tile *t)
{
#pragma GCC unroll 14
	for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
		for (int j = 0; j < vectors * GV * 4; j += 64)
			__builtin_prefetch((char *)(t->out + i * t->out_stride) + j, 1, 3);
	if (!t->residual)
		return;
#pragma GCC unroll 14
	for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
		for (int j = 0; j < vectors * GV * 4; j += 64)
			__builtin_prefetch((const char *)(t->residual + i * t->out_stride) + j, 0, 3);
}

GEMM_INLINE void add_rows(
	const int rows, const int vectors, const float *from, int64_t stride, gv_f32 sum[GEMM_MR][2])
{
#pragma GCC unroll 14
	for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
		for (int j = 0; j < vectors; j++)
			sum[i][j] += gv_load(from + i * stride + j * GV);
}

GEMM_INLINE void write_out(
	const int rows, const int vectors, const struct gemm_tile *t, gv_f32 sum[GEMM_MR][2])
{
	if (t->in)
		add_rows(rows, vectors, t->in, t->in_stride, sum);
	if (t->bias)
		add_rows(rows, vectors, t->bias, 0, sum);
	if (t->residual)
		add_rows(rows, vectors, t->residual, t->out_stride, sum);
#pragma GCC unroll 14
	for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
		for (int j = 0; j < vectors; j++)
			gv_store(t->out + i * t->out_stride + j * GV, sum[i][j]);
}

GEMM_INLINE void tile(
	const int rows, const int vectors, const bool fresh, const struct gemm_tile *t)
{
	gv_f32 sum[GEMM_MR][2];
	const int64_t a_row = t->a_row, a_row3 = 3 * t->a_row, a_unit = t->a_unit;
	const int64_t line_bytes = GEMM_UNIT * t->line_bytes;
	const char *a[3] = { t->a, t->a + 5 * a_row, t->a + 10 * a_row }, *line = t->line;
	char *b = t->b;
#pragma GCC unroll 14
	for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
		for (int j = 0; j < vectors; j++)
			sum[i][j] = gv_set1(0.0f);
	prefetch_out(rows, vectors, t);
#pragma GCC unroll 1
	for (int64_t u = t->units; u > 0; u--) {
		gv_f32 column[2];
		read_columns(vectors, fresh, t, line, b, column);
		prefetch_columns(fresh, t, line, b);
		line += line_bytes;
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

#define TILE_FUNCTIONS(r)                                   \
	static void tile_##r##_1(const struct gemm_tile *t)     \
	{                                                       \
		tile(r, 1, false, t);                               \
	}                                                       \
	static void tile_##r##_2(const struct gemm_tile *t)     \
	{                                                       \
		tile(r, 2, false, t);                               \
	}                                                       \
	static void tile_##r##_fresh(const struct gemm_tile *t) \
	{                                                       \
		tile(r, 2, true, t);                                \
	}
#define TILE_ROW(r) { tile_##r##_1, tile_##r##_2, tile_##r##_fresh },

GEMM_EACH_ROWS(TILE_FUNCTIONS)

void GEMM_FN(gemm_tile)(int rows, int vectors, const struct gemm_tile *t)
{
	static void (*const tiles[GEMM_MR][3])(
		const struct gemm_tile *t) = { GEMM_EACH_ROWS(TILE_ROW) };
	tiles[rows - 1][t->line ? 2 : vectors - 1](t);
}

/* SPDX-License-Identifier: Apache-2.0
 * A product's C as rectangles for threads, and these as pieces. */
#include "workers/engine/cpu/gemm_share.h"
#include "core/base/num.h"

enum {
	PIECES_MAX = 5,
	PIECES_MIN = 64 * 1024 * 1024, /* multiply-adds of a rectangle worth cutting */
};

/* What pieces may cost: packing again, as a part of the rectangle's time. */
static const double PIECES_COST = 0.02;

static double tiles_cost(const struct gemm_share *s, int64_t rows, int64_t columns)
{
	return (double)rows * (double)num_round_up(columns, s->nr) / (double)s->nr;
}

struct gemm_grid gemm_share_grid(const struct gemm_share *s)
{
	const int64_t panels = num_ceil_div(s->n, s->nr);
	struct gemm_grid ret = { .rows = 1, .columns = 1 };
	double best = 0;
	for (int64_t r = 1; r <= s->threads; r++) {
		int64_t rows = num_min(r, s->m), columns = num_min(s->threads / r, panels);
		int64_t height = num_ceil_div(s->m, rows), width = num_ceil_div(panels, columns) * s->nr;
		double cost = tiles_cost(s, height, width) + (double)height * s->row_cost +
			(double)width * s->column_cost;
		if (best <= 0 || cost < best) {
			best = cost;
			ret = (struct gemm_grid){ .rows = rows, .columns = columns };
		}
	}
	return ret;
}

bool gemm_share_part(
	const struct gemm_share *s, struct gemm_grid grid, int thread, struct gemm_rect *ret)
{
	const int64_t panels = num_ceil_div(s->n, s->nr);
	if (thread >= grid.rows * grid.columns)
		return false;
	int64_t r = thread / grid.columns, c = thread % grid.columns;
	ret->row = s->m * r / grid.rows;
	ret->row_end = s->m * (r + 1) / grid.rows;
	ret->column = panels * c / grid.columns * s->nr;
	ret->column_end = num_min(panels * (c + 1) / grid.columns * s->nr, s->n);
	return true;
}

struct gemm_cut gemm_share_cut(const struct gemm_share *s, const struct gemm_rect *r)
{
	const int64_t rows = r->row_end - r->row, columns = r->column_end - r->column;
	const double into_rows = (double)columns * s->column_cost; /* B is packed again */
	const double into_columns = (double)rows * s->row_cost;
	struct gemm_cut cut = { .rows = into_rows < into_columns, .pieces = 1 };
	const double most =
		PIECES_COST * tiles_cost(s, rows, columns) / (cut.rows ? into_rows : into_columns);
	if (s->threads > 1 && rows * columns * s->k >= PIECES_MIN)
		cut.pieces = most < PIECES_MAX - 1 ? (int)most + 1 : PIECES_MAX;
	return cut;
}

/* Where piece begins, of `count` tiles. */
static int64_t cut_at(int64_t count, int piece, int pieces)
{
	static const int64_t percent[PIECES_MAX] = { 0, 60, 80, 90, 95 };
	return piece == pieces ? count : count * percent[piece] / 100;
}

struct gemm_rect gemm_share_piece(
	const struct gemm_share *s, const struct gemm_rect *r, struct gemm_cut cut, int piece)
{
	struct gemm_rect ret = *r;
	const int64_t unit = cut.rows ? s->mr : s->nr;
	int64_t *begin = cut.rows ? &ret.row : &ret.column;
	int64_t *end = cut.rows ? &ret.row_end : &ret.column_end;
	const int64_t first = *begin, last = *end, tiles = num_ceil_div(last - first, unit);
	*begin = first + cut_at(tiles, piece, cut.pieces) * unit;
	*end = num_min(first + cut_at(tiles, piece + 1, cut.pieces) * unit, last);
	return ret;
}

/* SPDX-License-Identifier: Apache-2.0
 * Which thread computes which rectangle of a product's C, and in what pieces. Called by gemm.c.
 * Pure functions: every thread computes the same answer for itself. Private to cpu. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* A product as sharing sees it. Costs in about cycles for each value of k, where a row of a whole
 * panel's columns costs 1. */
struct gemm_share {
	int64_t m, n, k;
	int64_t mr, nr; /* of a tile: rectangles begin at its multiples where they are cut */
	int threads;    /* >= 1 */
	double row_cost, column_cost; /* of packing one row of A, one column of B */
};

/* Rows [row, row_end), columns [column, column_end) of C. */
struct gemm_rect {
	int64_t row, row_end, column, column_end;
};

/* How a rectangle is cut. */
struct gemm_cut {
	bool rows; /* into rows, else into columns */
	int pieces;
};

/* Rectangles of C, rows x columns of them, at most one for each thread. */
struct gemm_grid {
	int64_t rows, columns;
};

/* The cheapest grid; looks at one candidate for each thread. */
struct gemm_grid gemm_share_grid(const struct gemm_share *s);

/* The rectangle of a thread; false: it has none. Together they are C, each element once. */
bool gemm_share_part(
	const struct gemm_share *s, struct gemm_grid grid, int thread, struct gemm_rect *ret);

/* Cores are never equally fast for long, so whoever is done takes over pieces of others. Each piece
 * is smaller than the one before, so that all end at nearly the same time. A cut costs packing an
 * operand again: it is along the cheaper one, and into fewer pieces where that matters. */
struct gemm_cut gemm_share_cut(const struct gemm_share *s, const struct gemm_rect *r);

/* Piece 0 to pieces - 1 of r, which may be empty. Together they are r, each element once. */
struct gemm_rect gemm_share_piece(
	const struct gemm_share *s, const struct gemm_rect *r, struct gemm_cut cut, int piece);

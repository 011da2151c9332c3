/* SPDX-License-Identifier: Apache-2.0
 * Between gemm.c and the files of cpu/ops that are compiled for each instruction set: the kernels'
 * table. A kernel computes with "units" of 32 bits along k: floats, or pairs of bf16. The operand
 * of rows ("strip", up to mr rows) is read a unit at a time and broadcast; the operand of columns
 * ("panel", nr columns) is packed as [unit][nr]. */
#pragma once

#include "workers/engine/cpu/gemm.h"

#include <stddef.h>

enum {
	GEMM_MR_MAX = 14,
	GEMM_NR_MAX = 32,
	GEMM_STRIP_WIDTH = 16, /* columns of a strip that is packed as [unit][width] */
};

/* Lines of a stored matrix, as packing reads them. */
struct gemm_lines {
	enum gemm_type type;
	bool round; /* fp32 kernels: round values to bf16 */
	const char *base;
	int64_t line_bytes;
};

/* Panels: [unit][width], each panel_bytes after the other, of `columns` <= width columns each. What
 * the others hold does not matter. */
struct gemm_panels {
	int64_t columns, width, panel_bytes;
};

/* out[rows][vectors * nr / 2] = (in or 0) + strip * panel, and then + bias, + residual. Element
 * (row, unit) of the strip lies at a + row * a_row + unit * a_unit (bytes). Strides of in and out
 * in floats. */
struct gemm_tile {
	int64_t units;
	const char *a;
	int64_t a_row, a_unit;
	char *b;
	/* Where the panel is not packed yet: its lines, of the kernel's units, across a full panel;
	 * then the tile packs it into b. Otherwise NULL. */
	const char *line;
	int64_t line_bytes;
	const float *in; /* may be NULL, may be out */
	int64_t in_stride;
	float *out;
	int64_t out_stride;
	const float *bias;     /* of the tile's columns, may be NULL */
	const float *residual; /* strides as out, may be out, may be NULL */
};

/* One tile of sums on its way into C: rows x columns at (row, column) of C. */
struct gemm_finish {
	const struct gemm *g;
	int64_t row, column, rows, columns;
	const float *sums;
	int64_t sums_stride;
};

struct gemm_kernels {
	const char *name;
	int64_t mr, nr, unit; /* unit: values along k in 32 bits, 1 or 2 */
	void (*tile)(int rows, int vectors, const struct gemm_tile *t);
	/* From `lines` lines that run along k, of `count` values each, to panels side by side. */
	void (*pack_across)(const struct gemm_lines *l, int64_t lines, int64_t count,
		const struct gemm_panels *p, char *dst);
	/* dst[unit][nr] from up to nr lines of `count` values along k; missing lines become 0. */
	void (*pack_panel)(const struct gemm_lines *l, int64_t lines, int64_t count, char *dst);
	/* dst[line][row_bytes]: the lines themselves, converted; 0 up to a whole vector. */
	void (*pack_strip)(
		const struct gemm_lines *l, int64_t lines, int64_t count, char *dst, int64_t row_bytes);
	void (*finish)(const struct gemm_finish *f);
};

extern const struct gemm_kernels gemm_kernels_baseline;
extern const struct gemm_kernels gemm_kernels_avx2;
extern const struct gemm_kernels gemm_kernels_avx512;
extern const struct gemm_kernels gemm_kernels_avx512bf16;

/* The tables that this CPU can run, best last; bf16 asks for those with pairs too. For tests. */
const struct gemm_kernels *gemm_kernels_at(int i);
/* gemm_run with a given table. */
void gemm_run_with(const struct gemm *g, const struct gemm_kernels *kernels);

/* gemm_source.c: values [first, first + count) of each of the stored lines, in the source's type.
 */
void gemm_source_read(const struct gemm_source *s, int64_t line, int64_t lines, int64_t first,
	int64_t count, char *dst, int64_t line_bytes);

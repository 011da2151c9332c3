/* SPDX-License-Identifier: Apache-2.0
 * Products: how C is shared among threads and cut into blocks. Each thread owns a rectangle of C
 * and packs for itself, so that threads never wait for each other: a block of B stays packed in its
 * second-level cache while strips of A pass over it, read where they are when their layout allows.
 */
#include "workers/engine/cpu/gemm.h"

#include "core/base/attr.h"
#include "workers/engine/cpu/gemm_private.h"

#include <assert.h>
#include <omp.h>

enum {
	ALIGN = 64,
	STAGE_BYTES = 32 * 1024,    /* lines of patches or groups on their way into a pack */
	PANEL_BYTES = 576 * 1024,   /* of packed B: most of a second-level cache */
	PARTIAL_ROWS = 1024,        /* of sums kept between blocks of k */
	L1_SETS = 64,               /* a first-level cache's sets of 64 bytes */
	L1_ROWS_PER_SET = 4,        /* rows of a strip that may share one */
	PARALLEL_MIN = 1024 * 1024, /* multiply-adds worth waking threads */
};

/* A product and how its operands are read. */
struct work {
	const struct gemm *g;
	const struct gemm_kernels *kernels;
	bool a_along, b_along;   /* stored lines run along k */
	bool a_plain, b_plain;   /* a matrix in memory */
	bool simple;             /* C is the sums themselves: fp32 and nothing done to them */
	int64_t k_block, blocks; /* values of k */
};

/* A thread's rectangle of C and its scratch. */
struct part {
	int64_t row, row_end, column, column_end;
	int64_t columns, rows; /* of a block; rows: only where sums are kept between blocks of k */
	char *panel, *strip, *stage;
	float *partial;
	int64_t strip_bytes; /* of a line of a strip */
};

/* One block of B, packed, and the place of its k. */
struct block {
	int64_t k, k_count, column, columns, row; /* row: the first whose sums are in partial */
	bool first, last;
};

static int64_t min64(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static int64_t max64(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

static int64_t ceil_div(int64_t a, int64_t b)
{
	return (a + b - 1) / b;
}

static int64_t round_up(int64_t a, int64_t b)
{
	return ceil_div(a, b) * b;
}

static int64_t type_bytes(enum gemm_type type)
{
	return type == GEMM_F32 ? 4 : 2;
}

static struct gemm_lines lines_at(
	const struct work *w, const struct gemm_source *s, int64_t line, int64_t first)
{
	const int64_t size = type_bytes(s->type);
	return (struct gemm_lines){ .type = s->type,
		.round = w->g->bf16,
		.base = (const char *)s->base + (line * s->row_stride + first) * size,
		.line_bytes = s->row_stride * size };
}

/* Reads lines that are no plain matrix into the stage; the result is one. */
static struct gemm_lines staged(const struct work *w, const struct part *p,
	const struct gemm_source *s, int64_t line, int64_t lines, int64_t first, int64_t count)
{
	struct gemm_lines l = { .type = s->type,
		.round = w->g->bf16,
		.base = p->stage,
		.line_bytes = count * type_bytes(s->type) };
	assert(lines * l.line_bytes <= STAGE_BYTES);
	gemm_source_read(s, line, lines, first, count, p->stage, l.line_bytes);
	return l;
}

/* ------------------------------------------------------------------ packing B */

static char *panel_at(const struct work *w, const struct part *p, int64_t k_count, int64_t column)
{
	return p->panel + ceil_div(k_count, w->kernels->unit) * column * 4;
}

/* Panels whose lines run along the columns, from lines in memory. */
static void pack_across(const struct work *w, const struct part *p, const struct block *b)
{
	const int64_t nr = w->kernels->nr;
	for (int64_t j = 0; j < b->columns; j += nr) {
		struct gemm_lines l = lines_at(w, &w->g->b, b->k, b->column + j);
		w->kernels->pack_across(
			&l, b->k_count, min64(nr, b->columns - j), nr, panel_at(w, p, b->k_count, j));
	}
}

static void pack_across_staged(const struct work *w, const struct part *p, const struct block *b)
{
	enum { COLUMNS = 512, LINES = STAGE_BYTES / COLUMNS / 4 };
	const int64_t nr = w->kernels->nr;
	for (int64_t at = 0; at < b->columns; at += COLUMNS)
		for (int64_t k = 0; k < b->k_count; k += LINES) {
			int64_t columns = min64(COLUMNS, b->columns - at), lines = min64(LINES, b->k_count - k);
			struct gemm_lines l = staged(w, p, &w->g->b, b->k + k, lines, b->column + at, columns);
			const char *base = l.base;
			for (int64_t j = 0; j < columns; j += nr) {
				l.base = base + j * type_bytes(l.type);
				w->kernels->pack_across(&l, lines, min64(nr, columns - j), nr,
					panel_at(w, p, b->k_count, at + j) + k / w->kernels->unit * nr * 4);
			}
		}
}

/* Panels whose lines run along k. */
static void pack_along(const struct work *w, const struct part *p, const struct block *b)
{
	enum { VALUES = STAGE_BYTES / GEMM_NR_MAX / 4 };
	const int64_t nr = w->kernels->nr;
	for (int64_t j = 0; j < b->columns; j += nr) {
		const int64_t lines = min64(nr, b->columns - j);
		char *dst = panel_at(w, p, b->k_count, j);
		if (w->b_plain) {
			struct gemm_lines l = lines_at(w, &w->g->b, b->column + j, b->k);
			w->kernels->pack_panel(&l, lines, b->k_count, dst);
			continue;
		}
		for (int64_t k = 0; k < b->k_count; k += VALUES) {
			int64_t count = min64(VALUES, b->k_count - k);
			struct gemm_lines l = staged(w, p, &w->g->b, b->column + j, lines, b->k + k, count);
			w->kernels->pack_panel(&l, lines, count, dst + k / w->kernels->unit * nr * 4);
		}
	}
}

static void pack_panels(const struct work *w, const struct part *p, const struct block *b)
{
	if (w->b_along)
		pack_along(w, p, b);
	else if (w->b_plain)
		pack_across(w, p, b);
	else
		pack_across_staged(w, p, b);
}

/* ------------------------------------------------------------------ strips of A */

/* The kernel's units are the stored values themselves. */
static bool same_units(const struct work *w, enum gemm_type type)
{
	return w->kernels->unit == 2 ? type == GEMM_BF16 : type == GEMM_F32 && !w->g->bf16;
}

/* Rows whose distance is a large power of two would push each other out of the cache. */
static bool rows_collide(const struct work *w, int64_t row_bytes)
{
	if (row_bytes % ALIGN)
		return false;
	int64_t sets = L1_SETS;
	for (int64_t lines = row_bytes / ALIGN; sets > 1 && lines % 2 == 0; lines /= 2)
		sets /= 2;
	/* sets is now 64 / gcd(64, lines): how many the rows are spread over */
	return sets * L1_ROWS_PER_SET < w->kernels->mr;
}

static void strip_along(const struct work *w, const struct part *p, const struct block *b,
	int64_t row, int64_t rows, struct gemm_tile *t)
{
	enum { VALUES = STAGE_BYTES / GEMM_MR_MAX / 4 / ALIGN * ALIGN };
	const struct gemm_source *a = &w->g->a;
	const int64_t unit = w->kernels->unit;
	const bool whole = b->k_count % unit == 0;
	t->a_unit = 4;
	if (w->a_plain) {
		struct gemm_lines l = lines_at(w, a, row, b->k);
		if (whole && same_units(w, a->type) && !rows_collide(w, l.line_bytes)) {
			t->a = l.base;
			t->a_row = l.line_bytes;
			return;
		}
		w->kernels->pack_strip(&l, rows, b->k_count, p->strip, p->strip_bytes);
	} else if (whole && same_units(w, a->type)) {
		gemm_source_read(a, row, rows, b->k, b->k_count, p->strip, p->strip_bytes);
	} else {
		for (int64_t k = 0; k < b->k_count; k += VALUES) {
			int64_t count = min64(VALUES, b->k_count - k);
			struct gemm_lines l = staged(w, p, a, row, rows, b->k + k, count);
			w->kernels->pack_strip(&l, rows, count, p->strip + k / unit * 4, p->strip_bytes);
		}
	}
	t->a = p->strip;
	t->a_row = p->strip_bytes;
}

static void strip_across(const struct work *w, const struct part *p, const struct block *b,
	int64_t row, int64_t rows, struct gemm_tile *t)
{
	enum { LINES = STAGE_BYTES / GEMM_STRIP_WIDTH / 4 };
	const struct gemm_source *a = &w->g->a;
	const int64_t width = round_up(w->kernels->mr, w->kernels->nr / 2);
	t->a = p->strip;
	t->a_row = 4;
	t->a_unit = width * 4;
	if (w->a_plain) {
		struct gemm_lines l = lines_at(w, a, b->k, row);
		w->kernels->pack_across(&l, b->k_count, rows, width, p->strip);
		return;
	}
	for (int64_t k = 0; k < b->k_count; k += LINES) {
		int64_t lines = min64(LINES, b->k_count - k);
		struct gemm_lines l = staged(w, p, a, b->k + k, lines, row, rows);
		w->kernels->pack_across(
			&l, lines, rows, width, p->strip + k / w->kernels->unit * width * 4);
	}
}

/* ------------------------------------------------------------------ tiles */

/* The last columns of C where they do not fill the kernel's vectors. */
static void add_edge(const struct work *w, const struct block *b, const struct gemm_finish *f)
{
	float *c = (float *)w->g->c + f->row * w->g->c_stride + f->column;
	const bool add = !b->first || w->g->accumulate;
	for (int64_t i = 0; i < f->rows; i++)
		for (int64_t j = 0; j < f->columns; j++) {
			float sum = f->sums[i * f->sums_stride + j];
			c[i * w->g->c_stride + j] = add ? sum + c[i * w->g->c_stride + j] : sum;
		}
}

/* One tile: sums into C, or into partial until the last block of k, then finished. */
static void run_tile(const struct work *w, const struct part *p, const struct block *b,
	const struct gemm_finish *f, struct gemm_tile *t)
{
	float sums[GEMM_MR_MAX * GEMM_NR_MAX] __attribute__((aligned(ALIGN)));
	struct gemm_finish done = *f;
	const int64_t half = w->kernels->nr / 2;
	const int vectors = f->columns > half ? 2 : 1;
	float *c = (float *)w->g->c + f->row * w->g->c_stride + f->column;
	float *partial = p->partial + (f->row - b->row) * p->columns + f->column - b->column;
	t->in = NULL;
	t->out = sums;
	t->out_stride = w->kernels->nr;
	if (w->simple && f->columns == vectors * half) {
		t->out = c;
		t->out_stride = w->g->c_stride;
		if (!b->first || w->g->accumulate)
			t->in = c;
		t->in_stride = w->g->c_stride;
		w->kernels->tile((int)f->rows, vectors, t);
		return;
	}
	if (!w->simple) {
		t->in = b->first ? NULL : partial;
		t->in_stride = p->columns;
		if (!b->last) {
			t->out = partial;
			t->out_stride = p->columns;
		}
	}
	w->kernels->tile((int)f->rows, vectors, t);
	done.sums = sums;
	done.sums_stride = w->kernels->nr;
	if (w->simple)
		add_edge(w, b, &done);
	else if (b->last)
		w->kernels->finish(&done);
}

/* All tiles of a block: strips of rows of about equal height, each over all panels. */
static void run_strips(
	const struct work *w, const struct part *p, const struct block *b, int64_t row, int64_t row_end)
{
	const int64_t strips = ceil_div(row_end - row, w->kernels->mr), rows = row_end - row;
	for (int64_t s = 0; s < strips; s++) {
		struct gemm_finish f = { .g = w->g, .row = row + rows * s / strips };
		struct gemm_tile t = { .units = ceil_div(b->k_count, w->kernels->unit) };
		f.rows = row + rows * (s + 1) / strips - f.row;
		if (w->a_along)
			strip_along(w, p, b, f.row, f.rows, &t);
		else
			strip_across(w, p, b, f.row, f.rows, &t);
		for (int64_t j = 0; j < b->columns; j += w->kernels->nr) {
			f.column = b->column + j;
			f.columns = min64(w->kernels->nr, b->columns - j);
			t.b = panel_at(w, p, b->k_count, j);
			run_tile(w, p, b, &f, &t);
		}
	}
}

static void run_part(const struct work *w, const struct part *p)
{
	for (int64_t row = p->row; row < p->row_end; row += p->rows)
		for (int64_t column = p->column; column < p->column_end; column += p->columns)
			for (int64_t i = 0; i < w->blocks; i++) {
				struct block b = { .k = i * w->k_block,
					.column = column,
					.row = row,
					.columns = min64(p->columns, p->column_end - column),
					.first = i == 0,
					.last = i == w->blocks - 1 };
				b.k_count = min64(w->k_block, w->g->k - b.k);
				pack_panels(w, p, &b);
				run_strips(w, p, &b, row, min64(row + p->rows, p->row_end));
			}
}

/* ------------------------------------------------------------------ sharing */

static int64_t strip_line_bytes(const struct work *w)
{
	int64_t bytes = round_up(ceil_div(w->k_block, w->kernels->unit) * 4, ALIGN);
	return bytes / ALIGN % 2 ? bytes : bytes + ALIGN; /* odd: lines spread over all sets */
}

/* Scratch of one thread besides packed B and kept sums. */
static int64_t fixed_bytes(const struct work *w)
{
	int64_t strip = strip_line_bytes(w) * GEMM_STRIP_WIDTH;
	return strip + (w->a_plain && w->b_plain ? 0 : STAGE_BYTES);
}

static int64_t kept_bytes(const struct work *w, int64_t rows, int64_t columns)
{
	return w->simple || w->blocks == 1 ? 0 : rows * columns * 4;
}

static int64_t least_bytes(const struct work *w)
{
	const int64_t nr = w->kernels->nr;
	return fixed_bytes(w) + ceil_div(w->k_block, w->kernels->unit) * nr * 4 +
		kept_bytes(w, w->kernels->mr, nr) + ALIGN;
}

/* Chooses block sizes that fit the share and lays the scratch out in it. */
static void part_scratch(const struct work *w, struct part *p, char *share, int64_t share_bytes)
{
	const int64_t nr = w->kernels->nr, width = p->column_end - p->column;
	const int64_t panel_bytes = ceil_div(w->k_block, w->kernels->unit) * 4;
	const int64_t free_bytes = share_bytes - fixed_bytes(w);
	p->rows = p->row_end - p->row;
	if (kept_bytes(w, 1, 1))
		p->rows = ceil_div(p->rows, ceil_div(p->rows, PARTIAL_ROWS));
	while (p->rows > w->kernels->mr &&
		2 * nr * panel_bytes + kept_bytes(w, p->rows, 2 * nr) > free_bytes)
		p->rows = max64(p->rows / 2, w->kernels->mr);
	int64_t per_column = panel_bytes + kept_bytes(w, p->rows, 1);
	int64_t most = min64(PANEL_BYTES / panel_bytes, free_bytes / per_column) / nr * nr;
	most = min64(max64(most, nr), round_up(width, nr));
	p->columns = round_up(ceil_div(width, ceil_div(width, most)), nr);
	p->strip_bytes = strip_line_bytes(w);
	p->strip = share;
	p->panel = p->strip + p->strip_bytes * GEMM_STRIP_WIDTH;
	p->stage = p->panel + p->columns * panel_bytes;
	p->partial = (float *)(p->stage + (w->a_plain && w->b_plain ? 0 : STAGE_BYTES));
}

/* What a rectangle costs its thread, in about cycles for each value of k. */
static double part_cost(const struct work *w, int64_t rows, int64_t columns)
{
	const int64_t nr = w->kernels->nr;
	double tiles = (double)rows * (double)round_up(columns, nr) / (double)nr;
	double pack = (double)columns * (w->b_along ? 0.15 : 0.1) + (double)rows * 0.1;
	return tiles + pack;
}

/* Divides C among threads, as a grid of rows x columns of parts. */
static bool part_of(const struct work *w, int threads, int thread, struct part *p)
{
	const int64_t nr = w->kernels->nr, panels = ceil_div(w->g->n, nr);
	int64_t best_rows = 1, best_columns = 1;
	double best = 0;
	for (int64_t r = 1; r <= threads; r++) {
		int64_t rows = min64(r, w->g->m), columns = min64(threads / r, panels);
		double cost = part_cost(w, ceil_div(w->g->m, rows), ceil_div(panels, columns) * nr);
		if (best <= 0 || cost < best) {
			best = cost;
			best_rows = rows;
			best_columns = columns;
		}
	}
	if (thread >= best_rows * best_columns)
		return false;
	int64_t r = thread / best_columns, c = thread % best_columns;
	p->row = w->g->m * r / best_rows;
	p->row_end = w->g->m * (r + 1) / best_rows;
	p->column = panels * c / best_columns * nr;
	p->column_end = min64(panels * (c + 1) / best_columns * nr, w->g->n);
	return true;
}

static void run_thread(const struct work *w, int threads, int thread)
{
	char *base = (char *)round_up((int64_t)w->g->workspace, ALIGN);
	int64_t bytes = w->g->workspace_bytes - (base - (char *)w->g->workspace);
	int64_t active = min64(threads, bytes / least_bytes(w));
	int64_t share = bytes / max64(active, 1) / ALIGN * ALIGN;
	struct part p = { 0 };
	if (!part_of(w, (int)active, thread, &p))
		return;
	part_scratch(w, &p, base + share * thread, share);
	run_part(w, &p);
}

/* ------------------------------------------------------------------ the product */

static struct work prepare(const struct gemm *g, const struct gemm_kernels *kernels)
{
	struct work w = { .g = g,
		.kernels = kernels,
		.a_along = !g->a.transposed,
		.b_along = g->b.transposed,
		.a_plain = !g->a.patches && !g->a.group,
		.b_plain = !g->b.patches && !g->b.group };
	const int64_t most = GEMM_K_BLOCK * kernels->unit;
	w.simple = g->c_type == GEMM_F32 && g->alpha == 1.0f && !g->bias && !g->act && !g->pre &&
		!g->residual && !g->gate_act;
	/* Blocks of about equal length, which depends on k alone. */
	w.k_block = round_up(ceil_div(g->k, ceil_div(g->k, most)), 2 * GEMM_STRIP_WIDTH);
	if (w.k_block >= g->k)
		w.k_block = g->k;
	w.blocks = ceil_div(g->k, w.k_block);
	return w;
}

void gemm_run_with(const struct gemm *g, const struct gemm_kernels *kernels)
{
	const struct work w = prepare(g, kernels);
	assert(g->m >= 1 && g->n >= 1 && g->k >= 1 && (g->bf16 || kernels->unit == 1));
	assert(!g->accumulate || (g->c_type == GEMM_F32 && !g->bias && !g->act && !g->residual));
	assert(g->workspace_bytes >= least_bytes(&w) + ALIGN);
	if (g->m * g->n * g->k < PARALLEL_MIN || omp_in_parallel()) {
		run_thread(&w, 1, 0);
		return;
	}
#pragma omp parallel
	run_thread(&w, omp_get_num_threads(), omp_get_thread_num());
}

const struct gemm_kernels *gemm_kernels_at(int i)
{
	const struct gemm_kernels *found[4] = { &gemm_kernels_baseline };
	int count = 1;
#if defined(__x86_64__)
	if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
		found[count++] = &gemm_kernels_avx2;
	if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
		__builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
		found[count++] = &gemm_kernels_avx512;
		if (__builtin_cpu_supports("avx512bf16"))
			found[count++] = &gemm_kernels_avx512bf16;
	}
#endif
	return i < count ? found[i] : NULL;
}

void gemm_run(const struct gemm *g)
{
	const struct gemm_kernels *best = gemm_kernels_at(0);
	for (int i = 1; gemm_kernels_at(i); i++)
		if (gemm_kernels_at(i)->unit == 1 || g->bf16)
			best = gemm_kernels_at(i);
	gemm_run_with(g, best);
}

int64_t gemm_workspace_bytes(int64_t m, int64_t n, int64_t k)
{
	int64_t columns = min64(round_up(n, GEMM_NR_MAX), 256);
	int64_t bytes = 16 * (min64(k, GEMM_K_BLOCK) + 1024) * columns + GEMM_WORKSPACE_MIN;
	return min64(GEMM_WORKSPACE_MAX, max64(GEMM_WORKSPACE_MIN, bytes));
}

/* SPDX-License-Identifier: Apache-2.0
 * Products: how C is shared among threads and cut into blocks. Each thread owns a rectangle of C,
 * takes it piece by piece and then what is left of others', and packs for itself, so that threads
 * never wait for each other. A chunk of B is packed once; a block of rows of A, packed or read
 * where it lies, stays in the second-level cache while the chunk's panels pass over it. */
#include "workers/engine/cpu/gemm.h"
#include "core/base/num.h"
#include "workers/engine/cpu/cpu_private.h"

#include "workers/engine/cpu/gemm_private.h"
#include "workers/engine/cpu/gemm_share.h"

#include <assert.h>
#include <omp.h>
#include <stdatomic.h>

enum {
	ALIGN = 64,
	STAGE_BYTES = 32 * 1024,        /* lines of patches or groups on their way into a pack */
	ROWS_BYTES = 320 * 1024,        /* of a packed block of A: its part of a second-level cache */
	GROUP_BYTES = 320 * 1024,       /* of panels beside it */
	GROUP_BYTES_ALONE = 576 * 1024, /* of panels where A is read where it lies */
	CHUNK_BYTES = 3072 * 1024,      /* of packed B: a part of the third-level cache */
	PARTIAL_ROWS = 1024,            /* of sums kept between blocks of k */
	L1_SETS = 64,                   /* a first-level cache's sets of 64 bytes */
	L1_ROWS_PER_SET = 4,            /* rows of a strip that may share one */
	PARALLEL_MIN = 1024 * 1024,     /* multiply-adds worth waking threads */
	THREADS_MAX = 512,              /* of one product */
};

/* A product and how its operands are read. */
struct work {
	const struct gemm *g;
	const struct gemm_kernels *kernels;
	bool a_along, b_along;   /* stored lines run along k */
	bool a_plain, b_plain;   /* a matrix in memory */
	bool simple;             /* C is the sums themselves: fp32 and nothing done to them */
	bool direct;             /* the last block's tiles can write C: fp32 and only additions */
	int64_t k_block, blocks; /* values of k */
};

/* A rectangle of C in a thread's hands, and its scratch. */
struct part {
	struct gemm_rect c;
	int64_t chunk; /* columns of B packed at once */
	int64_t kept;  /* rows whose sums are kept between blocks of k */
	int64_t rows;  /* of a block of A */
	char *strips, *panels, *stage;
	float *partial;
};

/* A block of k over a chunk of columns; row: the first whose sums are in partial. */
struct block {
	int64_t k, k_count, column, columns, row;
	int64_t panel_bytes;
	bool first, last;
	int64_t fresh; /* panels that the first strip packs as it reads them */
};

/* A block of A as the tiles read it: strips of `height` rows, the last of fewer. */
struct strips {
	int64_t row, rows, height, count;
	const char *base;
	int64_t strip_bytes, row_bytes, unit_bytes; /* from one to the next */
};

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

static int64_t units(const struct work *w, int64_t k_count)
{
	return num_ceil_div(k_count, w->kernels->unit);
}

static int64_t panel_bytes(const struct work *w, int64_t k_count)
{
	return units(w, k_count) * w->kernels->nr * 4 + ALIGN; /* panels begin in different sets */
}

/* Lines that run across panels: `count` values of each of k_count lines from (k, first) on. Read a
 * few panels at a time: a line's values while they are near, and few places to write to. */
static void pack_across(const struct work *w, const struct part *p, const struct gemm_source *s,
	bool plain, int64_t k, int64_t k_count, int64_t first, int64_t count,
	const struct gemm_panels *panels, char *dst)
{
	enum { COUNT = 256, LINES = STAGE_BYTES / COUNT / 4 };
	const int64_t group = COUNT / panels->columns * panels->columns;
	for (int64_t at = 0; at < count;
		 at += group, dst += group / panels->columns * panels->panel_bytes) {
		const int64_t values = num_min(group, count - at);
		if (plain) {
			struct gemm_lines l = lines_at(w, s, k, first + at);
			w->kernels->pack_across(&l, k_count, values, panels, dst);
			continue;
		}
		for (int64_t i = 0; i < k_count; i += LINES) {
			int64_t lines = num_min(LINES, k_count - i);
			struct gemm_lines l = staged(w, p, s, k + i, lines, first + at, values);
			w->kernels->pack_across(
				&l, lines, values, panels, dst + units(w, i) * panels->width * 4);
		}
	}
}

/* ------------------------------------------------------------------ packing B */

/* Panels whose lines run along k. */
static void panels_along(const struct work *w, const struct part *p, const struct block *b)
{
	enum { VALUES = STAGE_BYTES / GEMM_NR_MAX / 4 };
	const int64_t nr = w->kernels->nr;
	char *dst = p->panels;
	for (int64_t j = 0; j < b->columns; j += nr, dst += b->panel_bytes) {
		const int64_t lines = num_min(nr, b->columns - j);
		if (w->b_plain) {
			struct gemm_lines l = lines_at(w, &w->g->b, b->column + j, b->k);
			w->kernels->pack_panel(&l, lines, b->k_count, dst);
			continue;
		}
		for (int64_t k = 0; k < b->k_count; k += VALUES) {
			int64_t count = num_min(VALUES, b->k_count - k);
			struct gemm_lines l = staged(w, p, &w->g->b, b->column + j, lines, b->k + k, count);
			w->kernels->pack_panel(&l, lines, count, dst + units(w, k) * nr * 4);
		}
	}
}

static void pack_panels(const struct work *w, const struct part *p, const struct block *b)
{
	const int64_t nr = w->kernels->nr;
	if (w->b_along) {
		panels_along(w, p, b);
		return;
	}
	int64_t done = b->fresh * nr;
	if (done < b->columns)
		pack_across(w, p, &w->g->b, w->b_plain, b->k, b->k_count, b->column + done,
			b->columns - done,
			&(struct gemm_panels){ .columns = nr, .width = nr, .panel_bytes = b->panel_bytes },
			p->panels + b->fresh * b->panel_bytes);
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
	return sets * L1_ROWS_PER_SET < w->kernels->mr; /* sets: how many the rows are spread over */
}

/* Bytes of a packed row: an odd number of cache lines, so that rows spread over all sets. */
static int64_t row_bytes(const struct work *w, int64_t k_count)
{
	int64_t bytes = num_round_up(units(w, k_count) * 4, ALIGN);
	return bytes / ALIGN % 2 ? bytes : bytes + ALIGN;
}

/* A's rows need no packing. */
static bool read_in_place(const struct work *w, const struct block *b)
{
	const struct gemm_source *a = &w->g->a;
	return w->a_along && w->a_plain && same_units(w, a->type) &&
		b->k_count % w->kernels->unit == 0 && !rows_collide(w, a->row_stride * type_bytes(a->type));
}

static void strips_along(
	const struct work *w, const struct part *p, const struct block *b, struct strips *s)
{
	enum { VALUES = STAGE_BYTES / GEMM_MR_MAX / 4 / ALIGN * ALIGN };
	const struct gemm_source *a = &w->g->a;
	const bool same = same_units(w, a->type) && b->k_count % w->kernels->unit == 0;
	struct gemm_lines l = lines_at(w, a, s->row, b->k);
	s->base = p->strips;
	s->row_bytes = row_bytes(w, b->k_count);
	s->unit_bytes = 4;
	if (read_in_place(w, b)) {
		s->base = l.base;
		s->row_bytes = l.line_bytes;
	} else if (w->a_plain) {
		w->kernels->pack_strip(&l, s->rows, b->k_count, p->strips, s->row_bytes);
	} else if (same) {
		gemm_source_read(a, s->row, s->rows, b->k, b->k_count, p->strips, s->row_bytes);
	} else {
		for (int64_t i = 0; i < s->rows; i += GEMM_MR_MAX)
			for (int64_t k = 0; k < b->k_count; k += VALUES) {
				int64_t rows = num_min(GEMM_MR_MAX, s->rows - i);
				int64_t count = num_min(VALUES, b->k_count - k);
				l = staged(w, p, a, s->row + i, rows, b->k + k, count);
				w->kernels->pack_strip(
					&l, rows, count, p->strips + i * s->row_bytes + units(w, k) * 4, s->row_bytes);
			}
	}
	s->strip_bytes = s->height * s->row_bytes;
}

static int64_t strip_width(const struct work *w)
{
	return num_round_up(w->kernels->mr, w->kernels->nr / 2);
}

static int64_t across_bytes(const struct work *w, int64_t k_count)
{
	return units(w, k_count) * strip_width(w) * 4 + ALIGN; /* strips begin in different sets */
}

static void strips_across(
	const struct work *w, const struct part *p, const struct block *b, struct strips *s)
{
	const struct gemm_panels panels = {
		.columns = s->height, .width = strip_width(w), .panel_bytes = across_bytes(w, b->k_count)
	};
	s->base = p->strips;
	s->strip_bytes = panels.panel_bytes;
	s->row_bytes = 4;
	s->unit_bytes = panels.width * 4;
	pack_across(w, p, &w->g->a, w->a_plain, b->k, b->k_count, s->row, s->rows, &panels, p->strips);
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

/* What the epilogue of a tile will read and write, asked for while its sums are computed. */
static void prefetch_finish(const struct work *w, const struct gemm_finish *f)
{
	const char *bases[] = { w->g->c, w->g->pre, w->g->residual, w->g->gate };
	const int64_t size = type_bytes(w->g->c_type);
	for (size_t k = 0; k < ARRAY_LEN(bases); k++) {
		if (!bases[k] || (k > 0 && bases[k] == bases[0]))
			continue;
		const char *row = bases[k] + (f->row * w->g->c_stride + f->column) * size;
		for (int64_t i = 0; i < f->rows; i++, row += w->g->c_stride * size)
			for (int64_t at = 0; at < f->columns * size; at += ALIGN)
				__builtin_prefetch(row + at, 0, 3);
	}
}

/* One tile: sums into C, or into partial until the last block of k, then finished. */
static void run_tile(const struct work *w, const struct part *p, const struct block *b,
	struct gemm_finish *f, struct gemm_tile *t)
{
	float sums[GEMM_MR_MAX * GEMM_NR_MAX] __attribute__((aligned(ALIGN)));
	const int64_t half = w->kernels->nr / 2;
	const int vectors = f->columns > half ? 2 : 1;
	float *c = (float *)w->g->c + f->row * w->g->c_stride + f->column;
	float *partial = p->partial + (f->row - b->row) * p->chunk + f->column - b->column;
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
		t->in_stride = p->chunk;
		if (!b->last) {
			t->out = partial;
			t->out_stride = p->chunk;
		} else if (w->direct && f->columns == vectors * half) {
			t->out = c;
			t->out_stride = w->g->c_stride;
			t->bias = w->g->bias ? w->g->bias + f->column : NULL;
			t->residual =
				w->g->residual ? (const float *)w->g->residual + (c - (float *)w->g->c) : NULL;
			w->kernels->tile((int)f->rows, vectors, t);
			return;
		}
	}
	if (!w->simple && b->last)
		prefetch_finish(w, f);
	w->kernels->tile((int)f->rows, vectors, t);
	f->sums = sums;
	f->sums_stride = w->kernels->nr;
	if (w->simple)
		add_edge(w, b, f);
	else if (b->last)
		w->kernels->finish(f);
}

/* Asks for a strip that is read where it lies, as one of `shares` equal parts: called while the
 * strip before it is at work. */
static void prefetch_strip(
	const struct strips *s, int64_t strip, int64_t bytes, int64_t share, int64_t shares)
{
	const char *base = s->base + strip * s->strip_bytes;
	const int64_t rows = num_min(s->height, s->rows - strip * s->height);
	for (int64_t i = rows * share / shares; i < rows * (share + 1) / shares; i++)
		for (int64_t at = 0; at < bytes; at += ALIGN)
			__builtin_prefetch(base + i * s->row_bytes + at, 0, 2);
}

/* A strip's tiles with panels [begin, end). */
static void run_strip(const struct work *w, const struct part *p, const struct block *b,
	const struct strips *s, int64_t strip, int64_t begin, int64_t end)
{
	const int64_t nr = w->kernels->nr;
	for (int64_t j = begin; j < end; j++) {
		struct gemm_finish f = { .g = w->g,
			.row = s->row + strip * s->height,
			.rows = num_min(s->height, s->rows - strip * s->height),
			.column = b->column + j * nr,
			.columns = num_min(nr, b->columns - j * nr) };
		struct gemm_tile t = { .units = units(w, b->k_count),
			.a = s->base + strip * s->strip_bytes,
			.a_row = s->row_bytes,
			.a_unit = s->unit_bytes,
			.b = p->panels + j * b->panel_bytes };
		if (j < b->fresh && f.row == b->row) {
			struct gemm_lines l = lines_at(w, &w->g->b, b->k, f.column);
			t.line = l.base;
			t.line_bytes = l.line_bytes;
		}
		if (s->base != p->strips && strip + 1 < s->count)
			prefetch_strip(s, strip + 1, t.units * s->unit_bytes, j - begin, end - begin);
		run_tile(w, p, b, &f, &t);
	}
}

/* All tiles of a block of rows: a few panels at a time, which stay in the cache, each strip passes
 * over them. */
static void run_strips(
	const struct work *w, const struct part *p, const struct block *b, const struct strips *s)
{
	const int64_t panels = num_ceil_div(b->columns, w->kernels->nr);
	const int64_t bytes = s->base == p->strips ? GROUP_BYTES : GROUP_BYTES_ALONE;
	const int64_t group = num_max(bytes / b->panel_bytes, 1);
	for (int64_t at = 0; at < panels; at += group)
		for (int64_t i = 0; i < s->count; i++)
			run_strip(w, p, b, s, i, at, num_min(at + group, panels));
}

static void run_block(const struct work *w, const struct part *p, struct block *b, int64_t row_end)
{
	if (!w->b_along && w->b_plain && same_units(w, w->g->b.type) &&
		b->k_count % w->kernels->unit == 0)
		b->fresh = b->columns / w->kernels->nr;
	pack_panels(w, p, b);
	const int64_t rows = read_in_place(w, b) ? row_end - b->row : p->rows;
	for (int64_t row = b->row; row < row_end; row += rows) {
		struct strips s = { .row = row, .rows = num_min(rows, row_end - row) };
		s.count = num_ceil_div(s.rows, w->kernels->mr);
		s.height = num_ceil_div(s.rows, s.count);
		s.count = num_ceil_div(s.rows, s.height);
		if (w->a_along)
			strips_along(w, p, b, &s);
		else
			strips_across(w, p, b, &s);
		run_strips(w, p, b, &s);
	}
}

static void run_part(const struct work *w, const struct part *p)
{
	for (int64_t row = p->c.row; row < p->c.row_end; row += p->kept)
		for (int64_t column = p->c.column; column < p->c.column_end; column += p->chunk)
			for (int64_t i = 0; i < w->blocks; i++) {
				struct block b = { .k = i * w->k_block,
					.column = column,
					.row = row,
					.columns = num_min(p->chunk, p->c.column_end - column),
					.first = i == 0,
					.last = i == w->blocks - 1 };
				b.k_count = num_min(w->k_block, w->g->k - b.k);
				b.panel_bytes = panel_bytes(w, b.k_count);
				run_block(w, p, &b, num_min(row + p->kept, p->c.row_end));
			}
}

/* ------------------------------------------------------------------ sharing */

static int64_t stage_bytes(const struct work *w)
{
	return w->a_plain && w->b_plain ? 0 : STAGE_BYTES;
}

/* Of a strip of mr rows, packed either way. */
static int64_t strip_bytes(const struct work *w)
{
	return num_round_up(
		w->a_along ? row_bytes(w, w->k_block) * w->kernels->mr : across_bytes(w, w->k_block),
		ALIGN);
}

static int64_t kept_bytes(const struct work *w, int64_t rows, int64_t columns)
{
	return w->simple || w->blocks == 1 ? 0 : rows * columns * 4;
}

static int64_t least_bytes(const struct work *w)
{
	const int64_t nr = w->kernels->nr;
	return stage_bytes(w) + strip_bytes(w) + panel_bytes(w, w->k_block) +
		kept_bytes(w, w->kernels->mr, nr) + ALIGN;
}

/* Chooses block sizes that fit the share and lays the scratch out in it. */
static void part_scratch(const struct work *w, struct part *p, char *share, int64_t share_bytes)
{
	const int64_t nr = w->kernels->nr, mr = w->kernels->mr, height = p->c.row_end - p->c.row;
	const int64_t panels = num_ceil_div(p->c.column_end - p->c.column, nr);
	const int64_t one = panel_bytes(w, w->k_block);
	int64_t free_bytes = share_bytes - stage_bytes(w);
	/* Strips: a cache's worth, at most a third of what there is. */
	int64_t strips = num_min(ROWS_BYTES, free_bytes / 3) / strip_bytes(w);
	strips = num_min(num_max(strips, 1), num_ceil_div(height, mr));
	p->rows = num_round_up(num_ceil_div(height, num_ceil_div(height, strips * mr)), mr);
	free_bytes -= strips * strip_bytes(w);
	/* Kept sums give way to the panels' width, down to a strip. */
	p->kept =
		kept_bytes(w, 1, 1) ? num_ceil_div(height, num_ceil_div(height, PARTIAL_ROWS)) : height;
	while (p->kept > mr && num_min(panels, 4) * (one + kept_bytes(w, p->kept, nr)) > free_bytes)
		p->kept = num_max(p->kept / 2, mr);
	int64_t most = num_min(CHUNK_BYTES / one, free_bytes / (one + kept_bytes(w, p->kept, nr)));
	most = num_max(most, 1);
	p->chunk = num_ceil_div(panels, num_ceil_div(panels, most)) * nr;
	p->strips = share;
	p->panels = p->strips + strips * strip_bytes(w);
	p->stage = p->panels + p->chunk / nr * one;
	p->partial = (float *)(p->stage + stage_bytes(w));
}

static struct gemm_share share_of(const struct work *w, int threads)
{
	return (struct gemm_share){ .m = w->g->m,
		.n = w->g->n,
		.k = w->g->k,
		.mr = w->kernels->mr,
		.nr = w->kernels->nr,
		.threads = threads,
		.row_cost = w->a_plain ? 0.1 : 0.4,
		.column_cost = !w->b_plain ? 0.4
			: w->b_along           ? 0.15
								   : 0.1 };
}

/* turns: for each thread's rectangle, how many of its pieces are taken. */
static void run_thread(const struct work *w, atomic_int *turns, int threads, int thread)
{
	char *base = (char *)num_round_up((int64_t)w->g->workspace, ALIGN);
	int64_t bytes = w->g->workspace_bytes - (base - (char *)w->g->workspace);
	int active = (int)num_max(num_min(threads, bytes / least_bytes(w)), 1);
	int64_t each = bytes / active / ALIGN * ALIGN;
	if (thread >= active)
		return;
	const struct gemm_share share = share_of(w, active);
	const struct gemm_grid grid = gemm_share_grid(&share);
	for (int i = 0; i < active; i++) {
		const int owner = (thread + i) % active;
		struct gemm_rect whole;
		if (!gemm_share_part(&share, grid, owner, &whole))
			continue;
		const struct gemm_cut cut = gemm_share_cut(&share, &whole);
		for (int piece; (piece = atomic_fetch_add(&turns[owner], 1)) < cut.pieces;) {
			struct part p = { .c = gemm_share_piece(&share, &whole, cut, piece) };
			if (p.c.row >= p.c.row_end || p.c.column >= p.c.column_end)
				continue;
			part_scratch(w, &p, base + each * thread, each);
			run_part(w, &p);
		}
	}
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
	w.direct = g->c_type == GEMM_F32 && g->alpha == 1.0f && !g->act && !g->pre && !g->gate_act;
	w.simple = w.direct && !g->bias && !g->residual;
	/* Blocks of about equal length, which depends on k alone. */
	w.k_block = num_round_up(num_ceil_div(g->k, num_ceil_div(g->k, most)), 2 * GEMM_STRIP_WIDTH);
	if (w.k_block >= g->k)
		w.k_block = g->k;
	w.blocks = num_ceil_div(g->k, w.k_block);
	return w;
}

void gemm_run_with(const struct gemm *g, const struct gemm_kernels *kernels)
{
	const struct work w = prepare(g, kernels);
	assert(g->m >= 1 && g->n >= 1 && g->k >= 1 && (g->bf16 || kernels->unit == 1));
	assert(!g->accumulate || (g->c_type == GEMM_F32 && !g->bias && !g->act && !g->residual));
	assert(g->workspace_bytes >= least_bytes(&w) + ALIGN);
	atomic_int turns[THREADS_MAX] = { 0 };
	if (g->m * g->n * g->k < PARALLEL_MIN || omp_in_parallel()) {
		run_thread(&w, turns, 1, 0);
		return;
	}
#pragma omp parallel
	run_thread(&w, turns, (int)num_min(omp_get_num_threads(), THREADS_MAX), omp_get_thread_num());
}

const struct gemm_kernels *gemm_kernels_at(int i)
{
	static const struct {
		enum cpu_isa isa;
		const struct gemm_kernels *kernels;
	} all[] = {
		{ CPU_BASELINE, &gemm_kernels_baseline },
#if defined(__x86_64__)
		{ CPU_AVX2, &gemm_kernels_avx2 },
		{ CPU_AVX512, &gemm_kernels_avx512 },
		{ CPU_AVX512_BF16, &gemm_kernels_avx512bf16 },
#endif
	};
	for (size_t k = 0; k < ARRAY_LEN(all); k++)
		if (cpu_has_isa(all[k].isa) && i-- == 0)
			return all[k].kernels;
	return NULL;
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
	int64_t columns = num_min(num_round_up(n, GEMM_NR_MAX), 256);
	int64_t bytes = 16 * (num_min(k, GEMM_K_BLOCK) + 1024) * columns + GEMM_WORKSPACE_MIN;
	return num_min(GEMM_WORKSPACE_MAX, num_max(GEMM_WORKSPACE_MIN, bytes));
}

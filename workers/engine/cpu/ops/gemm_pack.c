/* SPDX-License-Identifier: Apache-2.0
 * Packing: from lines of a stored matrix to the order in which the tile reads its operands, with
 * conversion to the kernel's units. Panels of lines along k are transposed in registers. */
#include "core/base/num.h"
#include "workers/engine/cpu/ops/gemm_ops.h"

enum { LINES_AHEAD = 8 };

/* How a value is read, a constant in each copy of the loops below: its type, and whether it is
 * rounded to bf16 on the way (pairs always are). */
enum load { LOAD_TYPES = 3, LOAD_ROUND = 4 };

GEMM_INLINE int load_type(const int load)
{
	return load & LOAD_TYPES;
}

/* GV values of a line as fp32. */
GEMM_INLINE gv_f32 values(const int load, const char *p)
{
	gv_f32 v = gv_load_as(load_type(load), p);
	return load & LOAD_ROUND ? gv_round_bf16(v) : v;
}

/* GV values of a line as bf16. */
GEMM_INLINE gv_u16 halves(const int load, const char *p)
{
	if (load_type(load) == GEMM_BF16)
		return *(const gv_u16 *)p;
	return gv_to_bf16(gv_load_as(load_type(load), p));
}

/* GV units across: of one line, or of two neighbours (b NULL: the last has none). */
GEMM_INLINE gv_f32 units_across(const int load, const char *a, const char *b)
{
	if (GEMM_UNIT == 1)
		return values(load, a);
	gv_u32 low = narrow_bits(halves(load, a));
	gv_u32 high = { 0 };
	if (b)
		high = narrow_bits(halves(load, b));
	return (gv_f32)(low | high << 16);
}

/* GV units along a line. */
GEMM_INLINE gv_f32 units_along(const int load, const char *p)
{
	if (GEMM_UNIT == 1)
		return values(load, p);
	if (load_type(load) == GEMM_BF16)
		return gv_load(p);
	union {
		gv_u16 half[2];
		gv_f32 all;
	} u = { .half = { halves(load, p), halves(load, p + GV * gv_type_bytes(load_type(load))) } };
	return u.all;
}

/* The first `count` values, zeros behind: a line may end at the end of its memory. */
GEMM_INLINE const char *padded(const int load, const char *p, int64_t count, char *buffer)
{
	memset(buffer, 0, 2 * GV * sizeof(float));
	memcpy(buffer, p, (size_t)(count * gv_type_bytes(load_type(load))));
	return buffer;
}

/* A line's (or two lines') units into the first `panels` panels, whole vectors. */
GEMM_INLINE void across_whole(const int load, const int vectors, const char *a, const char *b,
	int64_t step, int64_t panels, int64_t panel_bytes, char *dst)
{
	const int64_t vector = GV * gv_type_bytes(load_type(load));
#pragma GCC unroll 4
	for (int64_t i = 0; i < panels; i++, a += step, b += step, dst += panel_bytes)
#pragma GCC unroll 2
		for (int j = 0; j < vectors; j++)
			gv_store(dst + j * GV * 4, units_across(load, a + j * vector, b + j * vector));
}

/* The same for `count` columns at the end of memory; b may be NULL. */
GEMM_INLINE void across_end(
	const int load, const char *a, const char *b, int64_t count, int64_t width, char *dst)
{
	const int64_t step = GV * gv_type_bytes(load_type(load));
	for (int64_t x = 0; x < width; x += GV, a += step, b = b ? b + step : NULL, dst += GV * 4) {
		char pa[2 * GV * 4], pb[2 * GV * 4];
		const int64_t rest = num_min(num_max(count - x, 0), GV);
		gv_store(dst,
			units_across(load, padded(load, a, rest, pa), b ? padded(load, b, rest, pb) : NULL));
	}
}

/* Lines further on: each lies on a page of its own, where no hardware looks ahead. */
GEMM_INLINE void prefetch_lines(const char *p, int64_t line_bytes, int64_t bytes)
{
	for (int i = 0; i < GEMM_UNIT; i++, p += line_bytes)
		for (int64_t x = 0; x < bytes + 63; x += 64)
			__builtin_prefetch(p + x, 0, 3);
}

GEMM_INLINE void across(const int load, const struct gemm_lines *l, int64_t lines, int64_t count,
	const struct gemm_panels *p, char *dst)
{
	const int64_t size = gv_type_bytes(load_type(load)), columns = p->columns;
	const int64_t panels = num_ceil_div(count, columns);
	const char *a = l->base, *end = a + (lines - 1) * l->line_bytes + count * size;
	for (int64_t k = 0; k < lines; k += GEMM_UNIT, dst += p->width * 4) {
		const char *b = GEMM_UNIT == 1 ? a : k + 1 < lines ? a + l->line_bytes : NULL;
		/* What a vector reads behind the last column lands where nobody looks; only at the end of
		 * memory it may not. */
		int64_t spare = b ? (end - b) / size - p->width : -1;
		int64_t whole = spare < 0 ? 0 : num_min(spare / columns + 1, panels);
		if (k + LINES_AHEAD < lines)
			prefetch_lines(a + LINES_AHEAD * l->line_bytes, l->line_bytes, count * size);
		if (p->width == GV)
			across_whole(load, 1, a, b, columns * size, whole, p->panel_bytes, dst);
		else
			across_whole(load, 2, a, b, columns * size, whole, p->panel_bytes, dst);
		for (int64_t i = whole; i < panels; i++)
			across_end(load, a + i * columns * size,
				b && GEMM_UNIT == 2 ? b + i * columns * size : NULL, count - i * columns, p->width,
				dst + i * p->panel_bytes);
		a += GEMM_UNIT * l->line_bytes;
	}
}

/* Interleaving the halves log2(GV) times transposes. */
GEMM_INLINE void transpose(gv_f32 v[GV])
{
	gv_f32 w[GV];
#pragma GCC unroll 4
	for (int n = 1; n < GV; n *= 2) {
#pragma GCC unroll 8
		for (int i = 0; i < GV / 2; i++) {
			w[2 * i] = __builtin_shufflevector(v[i], v[i + GV / 2], GV_LOW);
			w[2 * i + 1] = __builtin_shufflevector(v[i], v[i + GV / 2], GV_HIGH);
		}
#pragma GCC unroll 16
		for (int i = 0; i < GV; i++)
			v[i] = w[i];
	}
}

/* A block of GV lines; whole: GV of them and GV units each. */
GEMM_INLINE void panel_block(const int load, const bool whole, const char *p, int64_t line_bytes,
	int64_t lines, int64_t count, char *dst)
{
	gv_f32 v[GV];
#pragma GCC unroll 16
	for (int i = 0; i < GV; i++) {
		char part[2 * GV * 4];
		if (whole)
			v[i] = units_along(load, p + i * line_bytes);
		else if (i < lines)
			v[i] = units_along(load, padded(load, p + i * line_bytes, count, part));
		else
			v[i] = gv_set1(0.0f);
	}
	transpose(v);
	const int64_t units = (count + GEMM_UNIT - 1) / GEMM_UNIT;
#pragma GCC unroll 16
	for (int i = 0; i < GV; i++)
		if (whole || i < units)
			gv_store(dst + i * GEMM_NR * 4, v[i]);
}

GEMM_INLINE void panel(
	const int load, const struct gemm_lines *l, int64_t lines, int64_t count, char *dst)
{
	const int64_t step = GV * GEMM_UNIT, step_bytes = step * gv_type_bytes(load_type(load));
	for (int64_t half = 0; half < 2; half++) {
		const char *p = l->base + half * GV * l->line_bytes;
		const int64_t rest = lines - half * GV, whole = rest >= GV ? count / step : 0;
		char *out = dst + half * GV * 4;
		int64_t x = 0;
		for (; x < whole; x++)
			panel_block(load, true, p + x * step_bytes, l->line_bytes, GV, step,
				out + x * GV * GEMM_NR * 4);
		for (; x * step < count; x++) {
			int64_t n = count - x * step < step ? count - x * step : step;
			panel_block(load, false, p + x * step_bytes, l->line_bytes, rest, n,
				out + x * GV * GEMM_NR * 4);
		}
	}
}

GEMM_INLINE void strip(const int load, const struct gemm_lines *l, int64_t lines, int64_t count,
	char *dst, int64_t row_bytes)
{
	const int64_t step = GV * GEMM_UNIT, step_bytes = step * gv_type_bytes(load_type(load));
	for (int64_t i = 0; i < lines; i++, dst += row_bytes) {
		const char *p = l->base + i * l->line_bytes;
		int64_t x = 0;
		for (; x < count / step; x++)
			gv_store(dst + x * GV * 4, units_along(load, p + x * step_bytes));
		if (count % step) {
			char part[2 * GV * 4];
			gv_store(dst + x * GV * 4,
				units_along(load, padded(load, p + x * step_bytes, count % step, part)));
		}
	}
}

/* Calls f with the load as a constant. */
#define FOR_LOAD(l, f, ...)                           \
	do {                                              \
		if ((l)->type == GEMM_BF16)                   \
			f(GEMM_BF16, l, __VA_ARGS__);             \
		else if ((l)->type == GEMM_F16 && (l)->round) \
			f(GEMM_F16 | LOAD_ROUND, l, __VA_ARGS__); \
		else if ((l)->type == GEMM_F16)               \
			f(GEMM_F16, l, __VA_ARGS__);              \
		else if ((l)->round)                          \
			f(GEMM_F32 | LOAD_ROUND, l, __VA_ARGS__); \
		else                                          \
			f(GEMM_F32, l, __VA_ARGS__);              \
	} while (0)

void GEMM_FN(gemm_pack_across)(const struct gemm_lines *l, int64_t lines, int64_t count,
	const struct gemm_panels *p, char *dst)
{
	FOR_LOAD(l, across, lines, count, p, dst);
}

void GEMM_FN(gemm_pack_panel)(const struct gemm_lines *l, int64_t lines, int64_t count, char *dst)
{
	FOR_LOAD(l, panel, lines, count, dst);
}

void GEMM_FN(gemm_pack_strip)(
	const struct gemm_lines *l, int64_t lines, int64_t count, char *dst, int64_t row_bytes)
{
	FOR_LOAD(l, strip, lines, count, dst, row_bytes);
}

/* SPDX-License-Identifier: Apache-2.0
 * What both directions of attention share. Included by attention.c and attention_backward.c. */
#pragma once

/* Blocks of 64 queries meet blocks of 64 keys; every operand of a product is packed in fp32 into
 * blocks that live in the cache, padded with zeros to whole vectors, so that no loop has a tail:
 * rows [64][width] as they are, and keys and values "across", [width][64], where the sum runs over
 * the head. Scores are in units of log2, since the queries are packed times log2(e) /
 * sqrt(head_size). */

#include "core/base/num.h"
#include "workers/engine/cpu/ops/act.h"
#include "workers/engine/cpu/workspace.h"

#include <math.h>

enum {
	ATT_BLOCK = WORKSPACE_KEYS,
	ATT_WIDTH_MAX = PLAN_HEAD_SIZE_MAX,
	ATT_ROWS = SIMD_WIDTH == 16 ? 8 : 4, /* of one tile: sums of two vectors a row fit registers */
	ATT_VECTORS = ATT_BLOCK / SIMD_WIDTH,
};

static const float att_log2e = 1.44269504f, att_ln2 = 0.693147181f;

typedef float att_block[ATT_BLOCK * ATT_WIDTH_MAX] __attribute__((aligned(64)));
typedef float att_scores[ATT_BLOCK * ATT_BLOCK] __attribute__((aligned(64)));

/* The keys and values of one (batch, kv head), and the queries of its group of heads. */
struct att_unit {
	const struct backend_attention *d;
	int64_t b, kv;    /* which */
	int64_t group;    /* query heads for one kv head */
	int64_t width;    /* head_size in whole vectors: columns of packed rows */
	int64_t row, out; /* elements between rows of qkv; of y */
	float scale;      /* 1 / sqrt(head_size) */
	const act_t *k, *v;
	const int32_t *starts; /* of this sequence, or NULL */
};

CPU_INLINE struct att_unit att_unit_of(const struct backend_attention *d, int64_t index)
{
	struct att_unit u = { .d = d, .b = index / d->kv_heads, .kv = index % d->kv_heads };
	int64_t hs = d->head_size;
	u.group = d->heads / d->kv_heads;
	u.width = num_round_up(hs, WORKSPACE_LANES);
	u.row = (d->heads + 2 * d->kv_heads) * hs;
	u.out = d->heads * hs;
	u.scale = 1.0f / sqrtf((float)hs);
	u.k = (const act_t *)d->qkv + u.b * d->t * u.row + (d->heads + u.kv) * hs;
	u.v = u.k + d->kv_heads * hs;
	u.starts = d->starts ? d->starts + u.b * d->t : NULL;
	return u;
}

/* Offset of head h (of the group) of the unit in qkv; in y and dy. */
CPU_INLINE int64_t att_query_at(const struct att_unit *u, int64_t h)
{
	return u->b * u->d->t * u->row + (u->kv * u->group + h) * u->d->head_size;
}

CPU_INLINE int64_t att_out_at(const struct att_unit *u, int64_t h)
{
	return u->b * u->d->t * u->out + (u->kv * u->group + h) * u->d->head_size;
}

CPU_INLINE int64_t att_rows_of(const struct att_unit *u, int64_t first)
{
	return u->d->t - first < ATT_BLOCK ? u->d->t - first : ATT_BLOCK;
}

/* dst[64][width] = x times scale; zeros beyond rows and hs. */
CPU_INLINE void att_pack(const act_t *x, int64_t stride, int64_t rows, int64_t hs, int64_t width,
	float scale, float *dst)
{
	int64_t whole = hs / SIMD_WIDTH * SIMD_WIDTH;
	for (int64_t r = 0; r < rows; r++) {
		int64_t e = 0;
		for (; e < whole; e += SIMD_WIDTH)
			simd_store(dst + r * width + e, act_load(x + r * stride + e) * scale);
		for (; e < width; e += SIMD_WIDTH) {
			simd_f32 v = { 0 };
			if (e < hs)
				v = act_load_part(x + r * stride + e, hs - e) * scale;
			simd_store(dst + r * width + e, v);
		}
	}
	memset(dst + rows * width, 0, (size_t)((ATT_BLOCK - rows) * width) * sizeof(float));
}

/* One square of what follows: rows of x become columns. */
CPU_INLINE void att_pack_square(
	const act_t *x, int64_t stride, int64_t rows, int64_t hs, const bool whole, float *dst)
{
	simd_f32 v[SIMD_WIDTH];
#pragma GCC unroll 16
	for (int i = 0; i < SIMD_WIDTH; i++) {
		v[i] = (simd_f32){ 0 };
		if (whole)
			v[i] = act_load(x + i * stride);
		else if (i < rows && hs > 0)
			v[i] = act_load_upto(x + i * stride, hs);
	}
	simd_transpose(v);
#pragma GCC unroll 16
	for (int i = 0; i < SIMD_WIDTH; i++)
		simd_store(dst + i * ATT_BLOCK, v[i]);
}

/* dst[width][64], transposed; zeros beyond rows and hs. */
CPU_INLINE void att_pack_across(
	const act_t *x, int64_t stride, int64_t rows, int64_t hs, int64_t width, float *dst)
{
	for (int64_t j = 0; j < ATT_BLOCK; j += SIMD_WIDTH)
		for (int64_t e = 0; e < width; e += SIMD_WIDTH) {
			const act_t *from = x + j * stride + e;
			float *to = dst + e * ATT_BLOCK + j;
			if (j + SIMD_WIDTH <= rows && e + SIMD_WIDTH <= hs)
				att_pack_square(from, stride, SIMD_WIDTH, SIMD_WIDTH, true, to);
			else
				att_pack_square(from, stride, rows - j, hs - e, false, to);
		}
}

/* c[ATT_ROWS][vectors] (+)= a b */
CPU_INLINE void att_product(int64_t vectors, int64_t k, const float *a, int64_t a_row,
	int64_t a_col, const float *b, int64_t ldb, float *c, int64_t ldc, const int accumulate)
{
	int64_t j = 0;
	for (; j + 2 <= vectors; j += 2)
		simd_tile(ATT_ROWS, 2, k, a, a_row, a_col, b + j * SIMD_WIDTH, ldb, c + j * SIMD_WIDTH, ldc,
			accumulate);
	if (j < vectors)
		simd_tile(ATT_ROWS, 1, k, a, a_row, a_col, b + j * SIMD_WIDTH, ldb, c + j * SIMD_WIDTH, ldc,
			accumulate);
}

/* Vectors of scores that the rows up to `last` of a block see. */
CPU_INLINE int64_t att_vectors(bool diagonal, int64_t last)
{
	return diagonal ? last / SIMD_WIDTH + 1 : ATT_VECTORS;
}

/* s[64][64] = q[64][width] across[width][64]; on the diagonal only what queries may see. */
CPU_INLINE void att_score_block(const float *q, const float *across, int64_t hs, int64_t width,
	int64_t rows, bool diagonal, float *s)
{
	for (int64_t r = 0; r < rows; r += ATT_ROWS)
		att_product(att_vectors(diagonal, r + ATT_ROWS - 1), hs, q + r * width, width, 1, across,
			ATT_BLOCK, s + r * ATT_BLOCK, ATT_BLOCK, 0);
}

/* What the rows of a block of queries may see of a block of keys. */
struct att_mask {
	bool diagonal;
	bool starts;            /* some document begins inside the block of keys */
	int32_t low[ATT_BLOCK]; /* with starts: first key visible to each row, within the block */
};

/* False when no row sees a key of block j0. */
CPU_INLINE bool att_mask_of(
	const struct att_unit *u, int64_t i0, int64_t j0, int64_t rows, struct att_mask *m)
{
	m->diagonal = i0 == j0;
	m->starts = false;
	if (!u->starts)
		return true;
	bool seen = false;
	for (int64_t r = 0; r < ATT_BLOCK; r++) {
		int32_t low = r < rows ? u->starts[i0 + r] - (int32_t)j0 : 0;
		m->low[r] = low;
		m->starts |= low > 0;
		seen |= r < rows && low < ATT_BLOCK;
	}
	return seen;
}

/* What a block's rows see: every key, those up to their own, or what documents leave of these. */
enum att_view { ATT_ALL, ATT_BELOW, ATT_SOME };

/* Of a row's vectors, the first ones that it sees whole. Rows that share a vector of the diagonal
 * have the same number of vectors. */
CPU_INLINE int64_t att_plain(int64_t vectors, const enum att_view view)
{
	return view == ATT_ALL ? vectors : view == ATT_BELOW ? vectors - 1 : 0;
}

/* Lanes of vector v that row r sees. */
CPU_INLINE simd_i32 att_visible(
	const struct att_mask *m, int64_t r, int64_t v, const enum att_view view)
{
	if (view == ATT_BELOW)
		return simd_first(r % SIMD_WIDTH + 1);
	simd_i32 lanes = ~simd_first(m->low[r] - v * SIMD_WIDTH);
	if (m->diagonal)
		lanes &= simd_first(r + 1 - v * SIMD_WIDTH);
	return lanes;
}

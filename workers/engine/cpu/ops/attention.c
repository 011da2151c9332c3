/* SPDX-License-Identifier: Apache-2.0
 * Causal attention, forward: a block of queries goes through the blocks of keys with a running
 * maximum and sum and keeps their log-sum-exp for the backward pass; there is no matrix of scores.
 * A block of queries is computed whole by one thread, so threads do not change bits. Called through
 * the backend's table. */
#include "workers/engine/cpu/ops/attention.h"
#include "core/base/num.h"

#include <omp.h>

/* One block of queries on its way through the keys. */
struct queries {
	int64_t rows;
	float max[ATT_BLOCK], factor[ATT_BLOCK];
	simd_f32 sum[ATT_BLOCK];
	att_block q, out;
	att_scores s;
};

/* The largest score that row r sees, by lanes, of its `vectors` vectors. */
CPU_INLINE simd_f32 row_max(
	const float *s, int64_t vectors, const struct att_mask *m, int64_t r, const enum att_view view)
{
	simd_f32 low = simd_set(-INFINITY), max = low;
	int64_t plain = att_plain(vectors, view), v = 0;
	for (; v < plain; v++)
		max = simd_max(simd_load(s + v * SIMD_WIDTH), max);
	for (; v < vectors; v++)
		max = simd_max(
			simd_select(att_visible(m, r, v, view), simd_load(s + v * SIMD_WIDTH), low), max);
	return max;
}

/* Scores of a row become e^(score - max), 0 where the row does not see the key; returns the sum by
 * lanes. */
CPU_INLINE simd_f32 row_exp(float *s, int64_t vectors, float max, const struct att_mask *m,
	int64_t r, const enum att_view view)
{
	simd_f32 sum = { 0 };
	int64_t plain = att_plain(vectors, view), v = 0;
	for (; v < plain; v++) {
		simd_f32 x = simd_exp2(simd_load(s + v * SIMD_WIDTH) - max);
		sum += x;
		simd_store(s + v * SIMD_WIDTH, x);
	}
	for (; v < vectors; v++) {
		simd_f32 x = simd_exp2(simd_load(s + v * SIMD_WIDTH) - max);
		x = simd_select(att_visible(m, r, v, view), x, simd_set(0));
		sum += x;
		simd_store(s + v * SIMD_WIDTH, x);
	}
	return sum;
}

/* Scores become probabilities relative to the running maximum; what was gathered before is scaled
 * to it. */
CPU_INLINE void softmax_rows(struct queries *q, const struct att_mask *m, int64_t first,
	int64_t width, const enum att_view view)
{
	int64_t vectors = att_vectors(view != ATT_ALL && m->diagonal, first);
	simd_f32 top[SIMD_WIDTH], before = simd_load(q->max + first);
#pragma GCC unroll 16
	for (int i = 0; i < SIMD_WIDTH; i++)
		top[i] = row_max(q->s + (first + i) * ATT_BLOCK, vectors, m, first + i, view);
	simd_f32 now = simd_max(simd_maxima(top), before);
	simd_store(q->factor + first, simd_exp2(before - now));
	simd_store(q->max + first, now);
	for (int64_t r = first; r < first + SIMD_WIDTH; r++) {
		simd_f32 sum = row_exp(q->s + r * ATT_BLOCK, vectors, q->max[r], m, r, view);
		q->sum[r] = q->sum[r] * q->factor[r] + sum;
		if (q->factor[r] == 1.0f)
			continue;
		for (int64_t e = 0; e < width; e += SIMD_WIDTH)
			simd_store(q->out + r * width + e, simd_load(q->out + r * width + e) * q->factor[r]);
	}
}

static void softmax_block(struct queries *q, const struct att_mask *m, int64_t width)
{
	for (int64_t r = 0; r < q->rows; r += SIMD_WIDTH)
		if (m->starts)
			softmax_rows(q, m, r, width, ATT_SOME);
		else if (m->diagonal)
			softmax_rows(q, m, r, width, ATT_BELOW);
		else
			softmax_rows(q, m, r, width, ATT_ALL);
}

static void store_block(const struct att_unit *u, struct queries *q, int64_t h, int64_t i0)
{
	int64_t hs = u->d->head_size, rows = att_rows_of(u, i0);
	act_t *y = (act_t *)u->d->y + att_out_at(u, h) + i0 * u->out;
	float *lse = u->d->lse + (u->b * u->d->heads + u->kv * u->group + h) * u->d->t + i0;
	for (int64_t r = 0; r < rows; r += SIMD_WIDTH) {
		simd_f32 sum = simd_sums(q->sum + r);
		simd_store(q->factor + r, 1.0f / sum);
		simd_store_upto(lse + r, simd_load(q->max + r) * att_ln2 + simd_log(sum), rows - r);
	}
	for (int64_t r = 0; r < rows; r++)
		for (int64_t e = 0; e < hs; e += SIMD_WIDTH)
			act_store_upto(
				y + r * u->out + e, simd_load(q->out + r * u->width + e) * q->factor[r], hs - e);
}

/* packed: the unit's blocks, of keys across and of values in turn. */
static void forward_block(
	const struct att_unit *u, const float *packed, int64_t h, int64_t i0, struct queries *q)
{
	int64_t hs = u->d->head_size, width = u->width, rows = att_rows_of(u, i0);
	q->rows = num_round_up(rows, WORKSPACE_LANES);
	att_pack((const act_t *)u->d->qkv + att_query_at(u, h) + i0 * u->row, u->row, rows, hs, width,
		u->scale * att_log2e, q->q);
	for (int64_t r = 0; r < ATT_BLOCK; r++) {
		q->max[r] = -1e30f;
		q->sum[r] = (simd_f32){ 0 };
	}
	memset(q->out, 0, (size_t)(q->rows * width) * sizeof(float));
	for (int64_t j0 = 0; j0 <= i0; j0 += ATT_BLOCK) {
		struct att_mask m;
		if (!att_mask_of(u, i0, j0, rows, &m))
			continue;
		const float *keys = packed + j0 * 2 * width, *values = keys + ATT_BLOCK * width;
		att_score_block(q->q, keys, hs, width, q->rows, m.diagonal, q->s);
		softmax_block(q, &m, width);
		for (int64_t r = 0; r < q->rows; r += ATT_ROWS)
			att_product(width / SIMD_WIDTH, m.diagonal ? r + ATT_ROWS : ATT_BLOCK,
				q->s + r * ATT_BLOCK, ATT_BLOCK, 1, values, width, q->out + r * width, width, 1);
	}
	store_block(u, q, h, i0);
}

static void pack_block(const struct att_unit *u, int64_t j0, float *packed)
{
	int64_t hs = u->d->head_size, rows = att_rows_of(u, j0);
	float *keys = packed + j0 * 2 * u->width;
	att_pack_across(u->k + j0 * u->row, u->row, rows, hs, u->width, keys);
	att_pack(u->v + j0 * u->row, u->row, rows, hs, u->width, 1.0f, keys + ATT_BLOCK * u->width);
}

void CPU_FN(attention_forward)(const struct backend_attention *d)
{
	int64_t blocks = (d->t + ATT_BLOCK - 1) / ATT_BLOCK, units = d->b * d->kv_heads;
	int64_t group = d->heads / d->kv_heads;
	int64_t packed_size = blocks * ATT_BLOCK * 2 * num_round_up(d->head_size, WORKSPACE_LANES);
	float *packed = d->ws.data;
	int64_t threads = omp_get_max_threads();
	/* A thread that has a unit to itself finds what it packed in its cache. */
	bool whole = units % threads == 0 || units >= 8 * threads;
#pragma omp parallel
	{
		struct queries q;
		if (whole) {
#pragma omp for schedule(static) nowait
			for (int64_t i = 0; i < units; i++) {
				struct att_unit u = att_unit_of(d, i);
				for (int64_t j = 0; j < blocks; j++)
					pack_block(&u, j * ATT_BLOCK, packed + i * packed_size);
				for (int64_t j = 0; j < group * blocks; j++)
					forward_block(
						&u, packed + i * packed_size, j / blocks, j % blocks * ATT_BLOCK, &q);
			}
		} else {
#pragma omp for schedule(static)
			for (int64_t i = 0; i < units * blocks; i++) {
				struct att_unit u = att_unit_of(d, i / blocks);
				pack_block(&u, i % blocks * ATT_BLOCK, packed + i / blocks * packed_size);
			}
			/* The last blocks see most keys: they go first. */
#pragma omp for schedule(dynamic)
			for (int64_t i = units * group * blocks - 1; i >= 0; i--) {
				int64_t unit = i % (units * group) / group, h = i % group;
				struct att_unit u = att_unit_of(d, unit);
				forward_block(
					&u, packed + unit * packed_size, h, i / (units * group) * ATT_BLOCK, &q);
			}
		}
	}
}

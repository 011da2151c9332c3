/* SPDX-License-Identifier: Apache-2.0
 * Causal attention, backward: the scores are computed again from the forward pass's log-sum-exp.
 * One thread owns a (batch, kv head): it goes through the blocks of keys, for each through the
 * heads of its group and their blocks of queries, so every sum has one order. Called through the
 * backend's table. */
#include "core/base/num.h"
#include "workers/engine/cpu/ops/attention.h"

/* A block of keys with its gradients, and the block of queries that meets it. */
struct meeting {
	att_block k_across, v_across, k, dk, dv;
	att_block q, dy;
	att_scores p, ds;
	float lse[ATT_BLOCK], delta[ATT_BLOCK]; /* of the queries; lse in units of log2 */
};

/* Row r of scores and of dy * values becomes probabilities and gradients of scores. */
CPU_INLINE void gradient_row(
	struct meeting *w, const struct att_mask *m, int64_t r, const enum att_view view)
{
	int64_t vectors = att_vectors(view != ATT_ALL && m->diagonal, r);
	int64_t plain = att_plain(vectors, view);
	float *p = w->p + r * ATT_BLOCK, *ds = w->ds + r * ATT_BLOCK, lse = w->lse[r];
	for (int64_t v = 0; v < vectors; v++) {
		simd_f32 x = simd_exp2(simd_load(p + v * SIMD_WIDTH) - lse);
		if (v >= plain)
			x = simd_select(att_visible(m, r, v, view), x, simd_set(0));
		simd_store(p + v * SIMD_WIDTH, x);
		simd_store(ds + v * SIMD_WIDTH, x * (simd_load(ds + v * SIMD_WIDTH) - w->delta[r]));
	}
}

static void gradient_block(struct meeting *w, const struct att_mask *m, int64_t rows)
{
	for (int64_t r = 0; r < rows; r++)
		if (m->starts)
			gradient_row(w, m, r, ATT_SOME);
		else if (m->diagonal)
			gradient_row(w, m, r, ATT_BELOW);
		else
			gradient_row(w, m, r, ATT_ALL);
}

/* Adds what the two blocks give to the gradients of both. dq: fp32 [64][width]. */
static void meet(
	struct meeting *w, const struct att_mask *m, int64_t hs, int64_t width, int64_t rows, float *dq)
{
	int64_t vectors = width / SIMD_WIDTH;
	att_score_block(w->q, w->k_across, hs, width, rows, m->diagonal, w->p);
	att_score_block(w->dy, w->v_across, hs, width, rows, m->diagonal, w->ds);
	gradient_block(w, m, rows);
	for (int64_t j = 0; j < ATT_BLOCK; j += ATT_ROWS) {
		int64_t first = m->diagonal ? j : 0; /* no earlier query sees these keys */
		if (first >= rows)
			break;
		const float *p = w->p + first * ATT_BLOCK + j, *ds = w->ds + first * ATT_BLOCK + j;
		att_product(vectors, rows - first, p, 1, ATT_BLOCK, w->dy + first * width, width,
			w->dv + j * width, width, 1);
		att_product(vectors, rows - first, ds, 1, ATT_BLOCK, w->q + first * width, width,
			w->dk + j * width, width, 1);
	}
	for (int64_t r = 0; r < rows; r += ATT_ROWS)
		att_product(vectors, m->diagonal ? r + ATT_ROWS : ATT_BLOCK, w->ds + r * ATT_BLOCK,
			ATT_BLOCK, 1, w->k, width, dq + r * width, width, 1);
}

/* delta[i] = dy[i] * y[i], for all queries of a head. */
static void head_delta(const struct att_unit *u, int64_t h, float *delta)
{
	int64_t hs = u->d->head_size, at = att_out_at(u, h);
	const act_t *y = (const act_t *)u->d->y + at, *dy = (const act_t *)u->d->dy + at;
	for (int64_t t = 0; t < u->d->t; t++) {
		simd_f32 sum = { 0 };
		for (int64_t e = 0; e < hs; e += SIMD_WIDTH)
			sum += act_load_upto(y + t * u->out + e, hs - e) *
				act_load_upto(dy + t * u->out + e, hs - e);
		delta[t] = simd_sum(sum);
	}
}

static void load_queries(
	const struct att_unit *u, int64_t h, int64_t i0, const float *delta, struct meeting *w)
{
	int64_t hs = u->d->head_size, rows = att_rows_of(u, i0);
	const float *lse = u->d->lse + (u->b * u->d->heads + u->kv * u->group + h) * u->d->t + i0;
	att_pack((const act_t *)u->d->qkv + att_query_at(u, h) + i0 * u->row, u->row, rows, hs,
		u->width, u->scale * att_log2e, w->q);
	att_pack((const act_t *)u->d->dy + att_out_at(u, h) + i0 * u->out, u->out, rows, hs, u->width,
		1.0f, w->dy);
	for (int64_t r = 0; r < ATT_BLOCK; r++) {
		w->lse[r] = r < rows ? lse[r] * att_log2e : 0;
		w->delta[r] = r < rows ? delta[i0 + r] : 0;
	}
}

static void load_keys(const struct att_unit *u, int64_t j0, struct meeting *w)
{
	int64_t hs = u->d->head_size, rows = att_rows_of(u, j0);
	const act_t *k = u->k + j0 * u->row, *v = u->v + j0 * u->row;
	att_pack_across(k, u->row, rows, hs, u->width, w->k_across);
	att_pack_across(v, u->row, rows, hs, u->width, w->v_across);
	att_pack(k, u->row, rows, hs, u->width, 1.0f, w->k);
	memset(w->dk, 0, (size_t)(ATT_BLOCK * u->width) * sizeof(float));
	memset(w->dv, 0, (size_t)(ATT_BLOCK * u->width) * sizeof(float));
}

/* x[rows][hs] = from[rows][width] times scale. */
static void store_rows(
	const struct att_unit *u, const float *from, int64_t rows, float scale, act_t *x)
{
	int64_t hs = u->d->head_size;
	for (int64_t r = 0; r < rows; r++)
		for (int64_t e = 0; e < hs; e += SIMD_WIDTH)
			act_store_upto(x + r * u->row + e, simd_load(from + r * u->width + e) * scale, hs - e);
}

/* work: for each head of the group, dq [t in whole blocks][width], then delta. */
static void backward_unit(const struct att_unit *u, float *work, struct meeting *w)
{
	int64_t t = u->d->t, whole = num_round_up(t, ATT_BLOCK), hs = u->d->head_size;
	int64_t size = whole * (u->width + 1);
	act_t *dk = (act_t *)u->d->dqkv + (u->k - (const act_t *)u->d->qkv);
	act_t *dv = (act_t *)u->d->dqkv + (u->v - (const act_t *)u->d->qkv);
	for (int64_t h = 0; h < u->group; h++) {
		memset(work + h * size, 0, (size_t)(whole * u->width) * sizeof(float));
		head_delta(u, h, work + h * size + whole * u->width);
	}
	for (int64_t j0 = 0; j0 < t; j0 += ATT_BLOCK) {
		load_keys(u, j0, w);
		for (int64_t h = 0; h < u->group; h++)
			for (int64_t i0 = j0; i0 < t; i0 += ATT_BLOCK) {
				float *dq = work + h * size;
				int64_t rows = att_rows_of(u, i0);
				struct att_mask m;
				if (!att_mask_of(u, i0, j0, rows, &m))
					continue;
				load_queries(u, h, i0, dq + whole * u->width, w);
				meet(w, &m, hs, u->width, num_round_up(rows, ATT_ROWS), dq + i0 * u->width);
			}
		store_rows(u, w->dk, att_rows_of(u, j0), att_ln2, dk + j0 * u->row);
		store_rows(u, w->dv, att_rows_of(u, j0), 1.0f, dv + j0 * u->row);
	}
	for (int64_t h = 0; h < u->group; h++)
		store_rows(u, work + h * size, t, u->scale, (act_t *)u->d->dqkv + att_query_at(u, h));
}

void CPU_FN(attention_backward)(const struct backend_attention *d)
{
	int64_t units = d->b * d->kv_heads;
	int64_t size = workspace_attention_backward(1, d->t, d->heads / d->kv_heads, d->head_size) /
		(int64_t)sizeof(float);
#pragma omp parallel
	{
		struct meeting w;
#pragma omp for schedule(static)
		for (int64_t i = 0; i < units; i++) {
			struct att_unit u = att_unit_of(d, i);
			backward_unit(&u, (float *)d->ws.data + i * size, &w);
		}
	}
}

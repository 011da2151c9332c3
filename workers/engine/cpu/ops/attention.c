/* SPDX-License-Identifier: Apache-2.0
 * Causal attention of one head at a time, in blocks of queries and keys, without ever storing the
 * T x T scores: the forward pass keeps a running maximum and sum (log-sum-exp), the backward pass
 * computes the scores again from them. One thread owns a head, so sums have one order. */
#include "workers/engine/cpu/isa.h"
#include "workers/engine/cpu/ops/simd.h"

#include <math.h>
#include <string.h>

enum { QUERIES = 32, KEYS = 64 };

struct head {
	int64_t t, hs, row; /* row: floats between rows of qkv */
	int64_t out_row;    /* floats between rows of y and dy */
	float scale;
	const float *q, *k, *v;
	float *kt; /* [hs, t] */
};

static struct head head_of(const struct backend_attention *d, int64_t index, float *kt)
{
	int64_t b = index / d->heads, h = index % d->heads, hs = d->c / d->heads;
	const float *q = d->qkv + b * d->t * 3 * d->c + h * hs;
	return (struct head){ .t = d->t,
		.hs = hs,
		.row = 3 * d->c,
		.out_row = d->c,
		.scale = 1.0f / sqrtf((float)hs),
		.q = q,
		.k = q + d->c,
		.v = q + 2 * d->c,
		.kt = kt };
}

static void transpose(const struct head *h, const float *x, int64_t x_row, float *xt)
{
	for (int64_t t0 = 0; t0 < h->t; t0 += SIMD_WIDTH) {
		int64_t t1 = t0 + SIMD_WIDTH < h->t ? t0 + SIMD_WIDTH : h->t;
		for (int64_t j = 0; j < h->hs; j++)
			for (int64_t t = t0; t < t1; t++)
				xt[j * h->t + t] = x[t * x_row + j];
	}
}

/* Turns one row of scores into exp(score - maximum), masked, and updates maximum and sum; returns
 * the factor for what was accumulated before. */
static float softmax_row(float *s, int64_t valid, int64_t n, float scale, float *max, float *sum)
{
	float m = *max;
#pragma omp simd reduction(max : m)
	for (int64_t j = 0; j < valid; j++)
		m = s[j] * scale > m ? s[j] * scale : m;
	float total = 0;
#pragma omp simd reduction(+ : total)
	for (int64_t j = 0; j < valid; j++) {
		s[j] = simd_exp(s[j] * scale - m);
		total += s[j];
	}
	for (int64_t j = valid; j < n; j++)
		s[j] = 0;
	float factor = simd_exp(*max - m);
	*sum = *sum * factor + total;
	*max = m;
	return factor;
}

static int64_t clamp(int64_t v, int64_t max)
{
	return v < 0 ? 0 : v < max ? v : max;
}

static void forward_block(const struct head *h, int64_t i0, int64_t rows, float *y, float *lse)
{
	float scores[QUERIES * KEYS];
	float out[QUERIES * PLAN_HEAD_SIZE_MAX];
	float max[QUERIES], sum[QUERIES];
	for (int64_t i = 0; i < rows; i++) {
		max[i] = -1e30f;
		sum[i] = 0;
	}
	int64_t hs = h->hs, end = i0 + rows;
	for (int64_t j0 = 0; j0 < end; j0 += KEYS) {
		int64_t n = clamp(end - j0, KEYS);
		simd_gemm(rows, n, hs, h->q + i0 * h->row, h->row, 1, h->kt + j0, h->t, scores, KEYS, 0);
		for (int64_t i = 0; i < rows; i++) {
			float f = softmax_row(
				&scores[i * KEYS], clamp(i0 + i + 1 - j0, n), n, h->scale, &max[i], &sum[i]);
			if (j0 > 0)
				for (int64_t c = 0; c < hs; c++)
					out[i * hs + c] *= f;
		}
		if (j0 == 0)
			simd_gemm(rows, hs, n, scores, KEYS, 1, h->v, h->row, out, hs, 0);
		else
			simd_gemm(rows, hs, n, scores, KEYS, 1, h->v + j0 * h->row, h->row, out, hs, 1);
	}
	for (int64_t i = 0; i < rows; i++) {
		float inv = 1.0f / sum[i];
		for (int64_t c = 0; c < hs; c++)
			y[(i0 + i) * h->out_row + c] = out[i * hs + c] * inv;
		lse[i0 + i] = max[i] + logf(sum[i]);
	}
}

void CPU_FN(attention_forward)(const struct backend_attention *d)
{
	int64_t hs = d->c / d->heads;
#pragma omp parallel for schedule(static)
	for (int64_t index = 0; index < d->b * d->heads; index++) {
		struct head h = head_of(d, index, d->workspace + index * d->t * hs);
		transpose(&h, h.k, h.row, h.kt);
		float *y = d->y + index / d->heads * d->t * d->c + index % d->heads * hs;
		for (int64_t i0 = 0; i0 < d->t; i0 += QUERIES)
			forward_block(&h, i0, clamp(d->t - i0, QUERIES), y, d->lse + index * d->t);
	}
}

struct head_grad {
	const float *dy, *lse, *delta;
	const float *vt; /* [hs, t] */
	float *dq, *dk, *dv;
};

/* Probabilities in p, and in ds the gradient of the scores, for one block. */
static void score_gradients(const struct head *h, const struct head_grad *g, int64_t i0,
	int64_t rows, int64_t j0, int64_t n, float *p, float *ds)
{
	simd_gemm(rows, n, h->hs, h->q + i0 * h->row, h->row, 1, h->kt + j0, h->t, p, KEYS, 0);
	simd_gemm(
		rows, n, h->hs, g->dy + i0 * h->out_row, h->out_row, 1, g->vt + j0, h->t, ds, KEYS, 0);
	for (int64_t i = 0; i < rows; i++) {
		float *pi = &p[i * KEYS], *di = &ds[i * KEYS];
		float lse = g->lse[i0 + i], delta = g->delta[i0 + i], scale = h->scale;
		int64_t valid = clamp(i0 + i + 1 - j0, n);
#pragma omp simd
		for (int64_t j = 0; j < valid; j++) {
			pi[j] = simd_exp(pi[j] * scale - lse);
			di[j] = pi[j] * (di[j] - delta) * scale;
		}
		for (int64_t j = valid; j < n; j++)
			pi[j] = di[j] = 0;
	}
}

static void backward_block(
	const struct head *h, const struct head_grad *g, int64_t i0, int64_t rows)
{
	float p[QUERIES * KEYS], ds[QUERIES * KEYS];
	int64_t hs = h->hs, ld = h->row, end = i0 + rows;
	float *dq = g->dq + i0 * ld;
	const float *q = h->q + i0 * ld, *dy = g->dy + i0 * h->out_row;
	for (int64_t j0 = 0; j0 < end; j0 += KEYS) {
		int64_t n = clamp(end - j0, KEYS);
		score_gradients(h, g, i0, rows, j0, n, p, ds);
		if (j0 == 0)
			simd_gemm(rows, hs, n, ds, KEYS, 1, h->k, ld, dq, ld, 0);
		else
			simd_gemm(rows, hs, n, ds, KEYS, 1, h->k + j0 * ld, ld, dq, ld, 1);
		simd_gemm(n, hs, rows, ds, 1, KEYS, q, ld, g->dk + j0 * ld, ld, 1);
		simd_gemm(n, hs, rows, p, 1, KEYS, dy, h->out_row, g->dv + j0 * ld, ld, 1);
	}
}

/* delta = sum of dy * y per row; the key and value gradients start at zero. */
static void backward_start(
	const struct head *h, const struct head_grad *g, const float *y, float *delta)
{
	for (int64_t t = 0; t < h->t; t++) {
		float sum = 0;
#pragma omp simd reduction(+ : sum)
		for (int64_t c = 0; c < h->hs; c++)
			sum += y[t * h->out_row + c] * g->dy[t * h->out_row + c];
		delta[t] = sum;
		memset(g->dk + t * h->row, 0, (size_t)h->hs * sizeof(float));
		memset(g->dv + t * h->row, 0, (size_t)h->hs * sizeof(float));
	}
}

void CPU_FN(attention_backward)(const struct backend_attention *d)
{
	int64_t hs = d->c / d->heads, whole = d->b * d->t * d->c;
#pragma omp parallel for schedule(static)
	for (int64_t index = 0; index < d->b * d->heads; index++) {
		struct head h = head_of(d, index, d->workspace + index * d->t * hs);
		float *vt = d->workspace + whole + index * d->t * hs;
		float *delta = d->workspace + 2 * whole + index * d->t;
		int64_t out = index / d->heads * d->t * d->c + index % d->heads * hs;
		struct head_grad g = { .dy = d->dy + out,
			.lse = d->lse + index * d->t,
			.delta = delta,
			.vt = vt,
			.dq = d->dqkv + (h.q - d->qkv),
			.dk = d->dqkv + (h.k - d->qkv),
			.dv = d->dqkv + (h.v - d->qkv) };
		transpose(&h, h.k, h.row, h.kt);
		transpose(&h, h.v, h.row, vt);
		backward_start(&h, &g, d->y + out, delta);
		for (int64_t i0 = 0; i0 < d->t; i0 += QUERIES)
			backward_block(&h, &g, i0, clamp(d->t - i0, QUERIES));
	}
}

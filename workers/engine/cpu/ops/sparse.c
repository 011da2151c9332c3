/* SPDX-License-Identifier: Apache-2.0
 * Gradients of tables of which a step touches few rows: look-ups are sorted by row (a stable radix
 * sort, so each row's sum has the order of its look-ups), and only those rows are updated; moments
 * of others stay as they are. */
#include "workers/engine/cpu/isa.h"

#include <math.h>
#include <string.h>

enum {
	SPARSE_RADIX_BITS = 11,
	SPARSE_RADIX = 1 << SPARSE_RADIX_BITS,
	SPARSE_AHEAD_ROWS = 4, /* rows between asking for one and updating it */
	SPARSE_LINE_FLOATS = 16,
};

/* The workspace: two arrays of look-ups (the row above, the place below), where each row's look-ups
 * begin, and partial sums: 20 bytes a look-up and 1024 more. */
struct sparse_scratch {
	double *partial;
	uint64_t *keys, *spare;
	int32_t *begin;
};

static struct sparse_scratch scratch_at(const struct backend_sparse *d)
{
	int64_t n = d->samples * d->lookups;
	struct sparse_scratch s = { .partial = d->ws.data };
	s.keys = (uint64_t *)(void *)(s.partial + PLAN_ROW_BLOCKS);
	s.spare = s.keys + n;
	s.begin = (int32_t *)(void *)(s.spare + n);
	return s;
}

static void sort_pass(const uint64_t *in, int64_t n, int shift, uint64_t *out)
{
	int32_t at[SPARSE_RADIX] = { 0 };
	for (int64_t i = 0; i < n; i++)
		at[in[i] >> shift & (SPARSE_RADIX - 1)]++;
	int32_t sum = 0;
	for (int i = 0; i < SPARSE_RADIX; i++) {
		int32_t count = at[i];
		at[i] = sum;
		sum += count;
	}
	for (int64_t i = 0; i < n; i++)
		out[at[in[i] >> shift & (SPARSE_RADIX - 1)]++] = in[i];
}

/* Sorts the look-ups that name a row and lists the rows; returns how many look-ups there are. */
static int64_t sort_rows(const struct backend_sparse *d, struct sparse_scratch *s)
{
	int64_t n = 0;
	for (int64_t i = 0; i < d->samples * d->lookups; i++)
		if (d->ids[i] >= 0)
			s->keys[n++] = (uint64_t)d->ids[i] << 32 | (uint64_t)i;
	for (int shift = 0; (d->table_rows - 1) >> shift > 0; shift += SPARSE_RADIX_BITS) {
		sort_pass(s->keys, n, 32 + shift, s->spare);
		uint64_t *swap = s->keys;
		s->keys = s->spare;
		s->spare = swap;
	}
	int32_t rows = 0;
	for (int64_t i = 0; i < n; i++) {
		int32_t row = (int32_t)(s->keys[i] >> 32);
		if (rows && d->rows[rows - 1] == row)
			continue;
		d->rows[rows] = row;
		s->begin[rows++] = (int32_t)i;
	}
	s->begin[rows] = (int32_t)n;
	*d->count = rows;
	return n;
}

/* The sum of one row's gradients; returns its squares. */
static double row_sum(const struct backend_sparse *d, const struct sparse_scratch *s, int64_t row)
{
	float *sum = d->sums + row * d->d;
	for (int32_t i = s->begin[row]; i < s->begin[row + 1]; i++) {
		const float *g = d->grads + (int64_t)(uint32_t)s->keys[i] / d->lookups * d->d;
		if (i == s->begin[row])
			memcpy(sum, g, (size_t)d->d * sizeof(float));
		else
#pragma omp simd
			for (int64_t k = 0; k < d->d; k++)
				sum[k] += g[k];
	}
	double square = 0;
#pragma omp simd reduction(+ : square)
	for (int64_t k = 0; k < d->d; k++)
		square += (double)sum[k] * (double)sum[k];
	return square;
}

void CPU_PLAIN(sparse_reduce)(const struct backend_sparse *d)
{
	struct sparse_scratch s = scratch_at(d);
	int64_t n = sort_rows(d, &s);
	int64_t rows = *d->count, per = (rows + PLAN_ROW_BLOCKS - 1) / PLAN_ROW_BLOCKS;
#pragma omp parallel for schedule(static) if (n * d->d > CPU_PARALLEL_MIN)
	for (int64_t b = 0; b < PLAN_ROW_BLOCKS; b++) {
		s.partial[b] = 0;
		for (int64_t r = b * per; r < (b + 1) * per && r < rows; r++)
			s.partial[b] += row_sum(d, &s, r);
	}
	double total = 0;
	for (int b = 0; b < PLAN_ROW_BLOCKS; b++)
		total += s.partial[b];
	*d->ret_square = total;
}

static void prefetch_row(const struct backend_update *d, int64_t i)
{
	if (i >= *d->count)
		return;
	for (int64_t k = 0; k < d->d; k += SPARSE_LINE_FLOATS) {
		int64_t at = (int64_t)d->rows[i] * d->d + k;
		__builtin_prefetch(d->w + at, 1);
		if (d->m)
			__builtin_prefetch(d->m + at, 1);
		if (d->v)
			__builtin_prefetch(d->v + at, 1);
	}
}

void CPU_PLAIN(sparse_adamw)(const struct backend_update *d)
{
	float b1 = d->beta1, b2 = d->beta2, c1 = d->correct1, c2 = d->correct2;
	float lr = d->learning_rate, eps = d->eps, gs = d->grad_scale;
	int64_t c = d->d;
#pragma omp parallel for schedule(static) if (*d->count * c > CPU_PARALLEL_MIN)
	for (int64_t i = 0; i < *d->count; i++) {
		prefetch_row(d, i + SPARSE_AHEAD_ROWS);
		int64_t at = (int64_t)d->rows[i] * c;
		float *restrict w = d->w + at, *restrict m = d->m + at, *restrict v = d->v + at;
		const float *restrict g = d->g + i * c;
#pragma omp simd
		for (int64_t k = 0; k < c; k++) {
			float gk = g[k] * gs;
			float mk = b1 * m[k] + (1.0f - b1) * gk;
			float vk = b2 * v[k] + (1.0f - b2) * gk * gk;
			m[k] = mk;
			v[k] = vk;
			w[k] -= lr * (mk * c1) / (sqrtf(vk * c2) + eps);
		}
	}
}

void CPU_PLAIN(sparse_sgd)(const struct backend_update *d)
{
	float lr = d->learning_rate, gs = d->grad_scale, mu = d->momentum;
	int64_t c = d->d;
#pragma omp parallel for schedule(static) if (*d->count * c > CPU_PARALLEL_MIN)
	for (int64_t i = 0; i < *d->count; i++) {
		prefetch_row(d, i + SPARSE_AHEAD_ROWS);
		int64_t at = (int64_t)d->rows[i] * c;
		float *restrict w = d->w + at;
		const float *restrict g = d->g + i * c;
		if (!d->m) {
#pragma omp simd
			for (int64_t k = 0; k < c; k++)
				w[k] -= lr * (g[k] * gs);
			continue;
		}
		float *restrict m = d->m + at;
#pragma omp simd
		for (int64_t k = 0; k < c; k++) {
			m[k] = mu * m[k] + g[k] * gs;
			w[k] -= lr * m[k];
		}
	}
}

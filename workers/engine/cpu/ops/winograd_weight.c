/* SPDX-License-Identifier: Apache-2.0
 * Winograd's weight gradient, F(3x3, 4x4): inputs transformed as in the forward pass, tiles of the
 * output's gradient as a filter, their products summed over all tiles at each point. A job is a
 * block of out channels, one of in channels and a part of the tiles; the parts are a matter of the
 * shape, not of the threads, and are added in order. */
#include "core/base/num.h"
#include "workers/engine/cpu/ops/winograd.h"

#include <assert.h>
#include <omp.h>

enum {
	TAPS = 9,
	JOBS_WANTED = 16, /* tiles are cut into parts where channels alone give fewer */
	PART_TILES = 2 * WINOGRAD_TILES,
};

struct winograd_weight {
	const struct backend_conv *d;
	struct winograd_image x, dy;
	int64_t tiles, parts, out_blocks, in_blocks; /* jobs are their product */
	int64_t out_channels, in_channels;           /* of a block */
	int64_t y_plane, v_plane, m_plane;           /* floats of one point */
	float *part;                                 /* of each part: like dw; unless there is one */
};

struct winograd_weight_scratch {
	float *y, *v, *m; /* [point][tile][out], [point][panel][tile][nr], [point][out][in] */
};

static void transform_input(const struct winograd_weight *w, int64_t tile, int64_t tiles, int64_t c,
	int64_t channels, float *v)
{
	const int64_t nr = winograd_kernels()->nr;
	for (int64_t t = 0; t < tiles; t++)
		for (int64_t i = 0; i < channels; i += SIMD_WIDTH) {
			simd_f32 d[WINOGRAD_POINTS], half[WINOGRAD_POINTS], line[WINOGRAD_IN];
			winograd_load(&w->x, tile + t, c + i, w->x.c - c - i, WINOGRAD_IN, d);
#pragma GCC unroll 6
			for (int k = 0; k < WINOGRAD_IN; k++)
				winograd_input(d + k, WINOGRAD_IN, half + k, WINOGRAD_IN);
			float *to = v + i / nr * nr * WINOGRAD_TILES + t * nr + i % nr;
#pragma GCC unroll 6
			for (int k = 0; k < WINOGRAD_IN; k++) {
				winograd_input(half + k * WINOGRAD_IN, 1, line, 1);
				for (int j = 0; j < WINOGRAD_IN; j++)
					simd_store(to + (k * WINOGRAD_IN + j) * w->v_plane, line[j]);
			}
		}
}

static void transform_gradient(const struct winograd_weight *w, int64_t tile, int64_t tiles,
	int64_t o, int64_t channels, float *y)
{
	enum { SIZE = WINOGRAD_OUT };
	for (int64_t t = 0; t < tiles; t++)
		for (int64_t i = 0; i < channels; i += SIMD_WIDTH) {
			simd_f32 g[SIZE * SIZE], half[WINOGRAD_IN * SIZE], line[WINOGRAD_IN];
			winograd_load(&w->dy, tile + t, o + i, w->dy.c - o - i, SIZE, g);
#pragma GCC unroll 4
			for (int k = 0; k < SIZE; k++)
				winograd_filter(g + k, SIZE, SIZE, half + k, SIZE);
			float *to = y + t * w->out_channels + i;
#pragma GCC unroll 6
			for (int k = 0; k < WINOGRAD_IN; k++) {
				winograd_filter(half + k * SIZE, 1, SIZE, line, 1);
				for (int j = 0; j < WINOGRAD_IN; j++)
					simd_store(to + (k * WINOGRAD_IN + j) * w->y_plane, line[j]);
			}
		}
}

/* m (+)= y' v at every point. */
static void multiply(const struct winograd_weight *w, const struct winograd_weight_scratch *s,
	int64_t tiles, int64_t rows, int64_t columns, bool first)
{
	const struct gemm_kernels *kernels = winograd_kernels();
	const int64_t nr = kernels->nr, strips = num_ceil_div(rows, kernels->mr);
	for (int point = 0; point < WINOGRAD_POINTS; point++)
		for (int64_t j = 0; j < columns; j += nr)
			for (int64_t i = 0; i < strips; i++) {
				int64_t row = rows * i / strips;
				float *m = s->m + point * w->m_plane + row * w->in_channels + j;
				struct gemm_tile t = { .units = tiles,
					.a = (const char *)(s->y + point * w->y_plane + row),
					.a_row = sizeof(float),
					.a_unit = w->out_channels * (int64_t)sizeof(float),
					.b = (char *)(s->v + point * w->v_plane + j * WINOGRAD_TILES),
					.in = first ? NULL : m,
					.in_stride = w->in_channels,
					.out = m,
					.out_stride = w->in_channels };
				kernels->tile((int)(rows * (i + 1) / strips - row), 2, &t);
			}
}

/* One out channel's weights [in channel][tap], n in channels of them. */
static void transform_output(
	const struct winograd_weight *w, const float *m, int64_t n, bool add, float *to)
{
	enum { SIZE = 3 };
	for (int64_t j = 0; j < n; j += SIMD_WIDTH) {
		simd_f32 line[WINOGRAD_IN], half[SIZE * WINOGRAD_IN], g[TAPS];
#pragma GCC unroll 6
		for (int k = 0; k < WINOGRAD_IN; k++) {
			for (int l = 0; l < WINOGRAD_IN; l++)
				line[l] = simd_load(m + j + (l * WINOGRAD_IN + k) * w->m_plane);
			winograd_output(line, 1, SIZE, half + k, WINOGRAD_IN);
		}
#pragma GCC unroll 3
		for (int k = 0; k < SIZE; k++)
			winograd_output(half + k * WINOGRAD_IN, 1, SIZE, g + k * SIZE, 1);
		for (int64_t i = 0; i < SIMD_WIDTH && j + i < n; i++)
			for (int t = 0; t < TAPS; t++) {
				float *at = to + (j + i) * TAPS + t;
				*at = add ? *at + g[t][i] : g[t][i];
			}
	}
}

static void run_job(
	const struct winograd_weight *w, const struct winograd_weight_scratch *s, int64_t job)
{
	const struct backend_conv *d = w->d;
	int64_t part = job % w->parts, block = job / w->parts;
	int64_t o = block / w->in_blocks * w->out_channels, c = block % w->in_blocks * w->in_channels;
	int64_t rows = num_min(w->out_channels, d->out - o),
			columns = num_min(w->in_channels, d->in - c);
	int64_t begin = w->tiles * part / w->parts, end = w->tiles * (part + 1) / w->parts;
	for (int64_t tile = begin; tile < end; tile += WINOGRAD_TILES) {
		int64_t tiles = num_min(WINOGRAD_TILES, end - tile);
		transform_gradient(w, tile, tiles, o, rows, s->y);
		transform_input(w, tile, tiles, c, columns, s->v);
		multiply(w, s, tiles, rows, columns, tile == begin);
	}
	float *to = w->parts == 1 ? d->dw : w->part + part * d->out * d->in * TAPS;
	for (int64_t r = 0; r < rows; r++)
		transform_output(w, s->m + r * w->in_channels, columns, w->parts == 1,
			to + ((o + r) * d->in + c) * TAPS);
}

static void add_parts(const struct winograd_weight *w)
{
	int64_t count = w->d->out * w->d->in * TAPS;
	float *dw = w->d->dw;
#pragma omp parallel for simd schedule(static) if (count > CPU_PARALLEL_MIN)
	for (int64_t i = 0; i < count; i++) {
		float sum = 0;
		for (int64_t p = 0; p < w->parts; p++)
			sum += w->part[p * count + i];
		dw[i] += sum;
	}
}

static void plan_jobs(struct winograd_weight *w)
{
	const int64_t nr = winograd_kernels()->nr;
	w->out_channels = num_min(WINOGRAD_CHANNELS, (w->d->out + 15) / 16 * 16);
	w->in_channels = num_min(WINOGRAD_CHANNELS, num_ceil_div(w->d->in, nr) * nr);
	w->out_blocks = num_ceil_div(w->d->out, w->out_channels);
	w->in_blocks = num_ceil_div(w->d->in, w->in_channels);
	w->parts = num_min(JOBS_WANTED / (w->out_blocks * w->in_blocks), w->tiles / PART_TILES);
	if (w->parts < 1)
		w->parts = 1;
	w->y_plane = WINOGRAD_TILES * w->out_channels + WINOGRAD_PAD;
	w->v_plane = WINOGRAD_TILES * w->in_channels + WINOGRAD_PAD;
	w->m_plane = w->out_channels * w->in_channels + WINOGRAD_PAD;
}

void CPU_FN(winograd_backward_weight)(const struct backend_conv *d)
{
	int64_t oh = d->h + 2 * d->pad - 2, ow = d->w + 2 * d->pad - 2;
	int64_t tiles_y = num_ceil_div(oh, WINOGRAD_OUT), tiles_x = num_ceil_div(ow, WINOGRAD_OUT);
	struct winograd_weight w = { .d = d,
		.x = { d->x, d->h, d->w, d->in, d->pad, tiles_y, tiles_x },
		.dy = { d->dy, oh, ow, d->out, 0, tiles_y, tiles_x },
		.tiles = d->n * tiles_y * tiles_x,
		.part = d->ws.data };
	plan_jobs(&w);
	int64_t used = w.parts == 1 ? 0 : w.parts * d->out * d->in * TAPS;
	int64_t share = WINOGRAD_POINTS * (w.y_plane + w.v_plane + w.m_plane);
	int64_t shares = (d->ws.bytes / (int64_t)sizeof(float) - used) / share;
	int64_t jobs = w.parts * w.out_blocks * w.in_blocks;
	assert(shares >= 1);
	int threads = (int)num_min(num_min(shares, jobs), omp_get_max_threads());
#pragma omp parallel num_threads(threads)
	{
		int64_t thread = omp_get_thread_num(), team = omp_get_num_threads();
		struct winograd_weight_scratch s = { .y = w.part + used + thread * share };
		s.v = s.y + WINOGRAD_POINTS * w.y_plane;
		s.m = s.v + WINOGRAD_POINTS * w.v_plane;
		for (int64_t job = jobs * thread / team; job < jobs * (thread + 1) / team; job++)
			run_job(&w, &s, job);
	}
	if (w.parts > 1)
		add_parts(&w);
}

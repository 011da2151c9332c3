/* SPDX-License-Identifier: Apache-2.0
 * Winograd's convolution forward and its data gradient, which is the same with weights turned
 * around. A job is a block of tiles times a block of output channels: its inputs, weights and sums
 * stay in the second-level cache, block by block of the channels that are summed over, so an
 * element's order of sums depends on nothing but the shape. */
#include "workers/engine/cpu/ops/winograd.h"
#include "core/base/num.h"

#include "workers/engine/cpu/workspace.h"

#include <assert.h>
#include <omp.h>

/* One convolution as this file sees it. */
struct winograd {
	struct winograd_image in;
	int64_t tiles, out_h, out_w, out_c; /* what comes out */
	act_t *out;
	const float *bias;
	bool relu, accumulate;
	const float *weight;                  /* [in channel][tap][out channel] */
	int64_t blocks, block_tiles, groups;  /* jobs are groups x blocks */
	int64_t group_channels, sum_channels; /* of a block */
	int64_t v_plane, u_plane, m_plane;    /* floats of one point */
};

struct winograd_scratch {
	float *v, *u, *m; /* [point][tile][channel], [point][panel][channel][nr], [point][tile][out] */
};

/* ------------------------------------------------------------------ transforms */

static void transform_input(
	const struct winograd *w, int64_t tile, int64_t tiles, int64_t c, int64_t channels, float *v)
{
	for (int64_t t = 0; t < tiles; t++)
		for (int64_t i = 0; i < channels; i += SIMD_WIDTH) {
			simd_f32 d[WINOGRAD_POINTS], half[WINOGRAD_POINTS], line[WINOGRAD_IN];
			winograd_load(&w->in, tile + t, c + i, channels - i, WINOGRAD_IN, d);
#pragma GCC unroll 6
			for (int k = 0; k < WINOGRAD_IN; k++)
				winograd_input(d + k, WINOGRAD_IN, half + k, WINOGRAD_IN);
			float *to = v + t * w->sum_channels + i;
#pragma GCC unroll 6
			for (int k = 0; k < WINOGRAD_IN; k++) {
				winograd_input(half + k * WINOGRAD_IN, 1, line, 1);
				for (int j = 0; j < WINOGRAD_IN; j++)
					simd_store(to + (k * WINOGRAD_IN + j) * w->v_plane, line[j]);
			}
		}
}

/* Weights of out channels [o, o + count), a multiple of vectors; those beyond the last are 0. */
static void transform_weight(
	const struct winograd *w, int64_t c, int64_t channels, int64_t o, int64_t count, float *u)
{
	enum { TAPS = 3 };
	const int64_t nr = winograd_kernels()->nr;
	for (int64_t j = 0; j < count; j += SIMD_WIDTH) {
		float *panel = u + j / nr * w->sum_channels * nr + j % nr;
		int64_t n = w->out_c - o - j;
		for (int64_t i = 0; i < channels; i++) {
			const float *from = w->weight + (c + i) * TAPS * TAPS * w->out_c + o + j;
			simd_f32 g[TAPS * TAPS], half[WINOGRAD_IN * TAPS], line[WINOGRAD_IN];
#pragma GCC unroll 9
			for (int k = 0; k < TAPS * TAPS; k++)
				g[k] = n > 0 ? simd_load_upto(from + k * w->out_c, n) : (simd_f32){ 0 };
#pragma GCC unroll 3
			for (int k = 0; k < TAPS; k++)
				winograd_filter(g + k, TAPS, TAPS, half + k, TAPS);
#pragma GCC unroll 6
			for (int k = 0; k < WINOGRAD_IN; k++) {
				winograd_filter(half + k * TAPS, 1, TAPS, line, 1);
				for (int l = 0; l < WINOGRAD_IN; l++)
					simd_store(panel + (k * WINOGRAD_IN + l) * w->u_plane + i * nr, line[l]);
			}
		}
	}
}

/* One vector of a tile's outputs, as far as they lie inside. */
CPU_INLINE void store_tile(
	const struct winograd *w, int64_t tile, int64_t o, int64_t n, const simd_f32 *y)
{
	int64_t per_image = w->in.tiles_y * w->in.tiles_x, at = tile % per_image;
	int64_t top = at / w->in.tiles_x * WINOGRAD_OUT, left = at % w->in.tiles_x * WINOGRAD_OUT;
	int64_t rows = num_min(WINOGRAD_OUT, w->out_h - top),
			columns = num_min(WINOGRAD_OUT, w->out_w - left);
	act_t *base = w->out + ((tile / per_image * w->out_h + top) * w->out_w + left) * w->out_c + o;
	simd_f32 bias = { 0 };
	if (w->bias)
		bias = simd_load_upto(w->bias + o, n);
	for (int64_t i = 0; i < rows; i++)
		for (int64_t j = 0; j < columns; j++) {
			act_t *to = base + (i * w->out_w + j) * w->out_c;
			simd_f32 v = y[i * WINOGRAD_OUT + j] + bias;
			if (w->accumulate)
				v += act_load_upto(to, n);
			act_store_upto(to, w->relu ? lanes_relu(v) : v, n);
		}
}

static void transform_output(
	const struct winograd *w, int64_t tile, int64_t tiles, int64_t o, int64_t count, const float *m)
{
	for (int64_t t = 0; t < tiles; t++)
		for (int64_t j = 0; j < count && o + j < w->out_c; j += SIMD_WIDTH) {
			simd_f32 line[WINOGRAD_IN], half[WINOGRAD_OUT * WINOGRAD_IN];
			simd_f32 y[WINOGRAD_OUT * WINOGRAD_OUT];
			const float *from = m + t * w->group_channels + j;
#pragma GCC unroll 6
			for (int k = 0; k < WINOGRAD_IN; k++) {
				for (int l = 0; l < WINOGRAD_IN; l++)
					line[l] = simd_load(from + (l * WINOGRAD_IN + k) * w->m_plane);
				winograd_output(line, 1, WINOGRAD_OUT, half + k, WINOGRAD_IN);
			}
#pragma GCC unroll 4
			for (int k = 0; k < WINOGRAD_OUT; k++)
				winograd_output(half + k * WINOGRAD_IN, 1, WINOGRAD_OUT, y + k * WINOGRAD_OUT, 1);
			store_tile(w, tile + t, o + j, w->out_c - o - j, y);
		}
}

/* ------------------------------------------------------------------ jobs */

/* m (+)= v u at every point. */
static void multiply(const struct winograd *w, const struct winograd_scratch *s, int64_t tiles,
	int64_t channels, int64_t count, bool first)
{
	const struct gemm_kernels *kernels = winograd_kernels();
	const int64_t nr = kernels->nr, strips = num_ceil_div(tiles, kernels->mr);
	for (int point = 0; point < WINOGRAD_POINTS; point++)
		for (int64_t j = 0; j < count; j += nr)
			for (int64_t i = 0; i < strips; i++) {
				int64_t row = tiles * i / strips;
				float *m = s->m + point * w->m_plane + row * w->group_channels + j;
				struct gemm_tile t = { .units = channels,
					.a = (const char *)(s->v + point * w->v_plane + row * w->sum_channels),
					.a_row = w->sum_channels * (int64_t)sizeof(float),
					.a_unit = sizeof(float),
					.b = (char *)(s->u + point * w->u_plane + j * w->sum_channels),
					.in = first ? NULL : m,
					.in_stride = w->group_channels,
					.out = m,
					.out_stride = w->group_channels };
				kernels->tile((int)(tiles * (i + 1) / strips - row), 2, &t);
			}
}

/* group_kept: the group whose weights are in the scratch already; only when one block of channels
 * is all. */
static void run_job(
	const struct winograd *w, const struct winograd_scratch *s, int64_t job, int64_t *group_kept)
{
	int64_t group = job / w->blocks, block = job % w->blocks;
	int64_t tile = w->tiles * block / w->blocks, tiles = w->tiles * (block + 1) / w->blocks - tile;
	int64_t o = group * w->group_channels;
	int64_t count = num_min(w->group_channels, num_round_up(w->out_c - o, winograd_kernels()->nr));
	for (int64_t c = 0; c < w->in.c; c += w->sum_channels) {
		int64_t channels = num_min(w->sum_channels, w->in.c - c);
		if (*group_kept != group)
			transform_weight(w, c, channels, o, count, s->u);
		if (channels == w->in.c)
			*group_kept = group;
		transform_input(w, tile, tiles, c, channels, s->v);
		multiply(w, s, tiles, channels, count, c == 0);
	}
	transform_output(w, tile, tiles, o, count, s->m);
}

static int64_t scratch_floats(const struct winograd *w)
{
	return WINOGRAD_POINTS * (w->v_plane + w->u_plane + w->m_plane);
}

static void plan_jobs(struct winograd *w)
{
	const int64_t nr = winograd_kernels()->nr;
	w->blocks = num_ceil_div(w->tiles, WINOGRAD_TILES);
	w->block_tiles = num_ceil_div(w->tiles, w->blocks);
	w->group_channels = num_min(WINOGRAD_CHANNELS, num_round_up(w->out_c, nr));
	w->groups = num_ceil_div(w->out_c, w->group_channels);
	w->sum_channels = num_min(WINOGRAD_CHANNELS, num_round_up(w->in.c, WINOGRAD_PAD));
	w->v_plane = w->block_tiles * w->sum_channels + WINOGRAD_PAD;
	w->u_plane = w->sum_channels * w->group_channels + WINOGRAD_PAD;
	w->m_plane = w->block_tiles * w->group_channels + WINOGRAD_PAD;
}

static void run(struct winograd *w, struct backend_workspace ws, int64_t used)
{
	plan_jobs(w);
	int64_t share = scratch_floats(w);
	float *scratch = (float *)ws.data + used;
	int64_t shares = (ws.bytes / (int64_t)sizeof(float) - used) / share;
	int64_t jobs = w->groups * w->blocks;
	assert(shares >= 1);
	int threads = (int)num_min(num_min(shares, jobs), omp_get_max_threads());
#pragma omp parallel num_threads(threads)
	{
		int64_t thread = omp_get_thread_num(), team = omp_get_num_threads(), kept = -1;
		struct winograd_scratch s = { .v = scratch + thread * share };
		s.u = s.v + WINOGRAD_POINTS * w->v_plane;
		s.m = s.u + WINOGRAD_POINTS * w->u_plane;
		for (int64_t job = jobs * thread / team; job < jobs * (thread + 1) / team; job++)
			run_job(w, &s, job, &kept);
	}
}

/* ------------------------------------------------------------------ the two directions */

/* [out][in][tap] -> [in][tap][out] */
static void order_forward(const struct backend_conv *d, float *dst)
{
	const act_t *w = d->weight;
	int64_t rows = d->out, columns = d->in * 9;
#pragma omp parallel for schedule(static) if (rows * columns > CPU_PARALLEL_MIN)
	for (int64_t j = 0; j < columns; j += SIMD_WIDTH)
		for (int64_t i = 0; i < rows; i += SIMD_WIDTH) {
			simd_f32 v[SIMD_WIDTH];
			for (int64_t k = 0; k < SIMD_WIDTH; k++) {
				v[k] = (simd_f32){ 0 };
				if (i + k < rows)
					v[k] = act_load_upto(w + (i + k) * columns + j, columns - j);
			}
			simd_transpose(v);
			for (int64_t k = 0; k < SIMD_WIDTH && j + k < columns; k++)
				simd_store_upto(dst + (j + k) * rows + i, v[k], rows - i);
		}
}

/* [out][in][tap] -> [out][tap, last first][in] */
static void order_backward(const struct backend_conv *d, float *dst)
{
	const act_t *w = d->weight;
#pragma omp parallel for schedule(static) if (d->out * d->in * 9 > CPU_PARALLEL_MIN)
	for (int64_t o = 0; o < d->out; o++)
		for (int64_t t = 0; t < 9; t++)
			for (int64_t i = 0; i < d->in; i++)
				dst[(o * 9 + t) * d->in + i] = act_get(w + (o * d->in + i) * 9 + 8 - t);
}

static int64_t tiles_of(int64_t size)
{
	return num_ceil_div(size, WINOGRAD_OUT);
}

bool CPU_FN(winograd_fits)(const struct backend_conv *d)
{
	enum { CHANNELS_MIN = 16, PAD_MAX = 2 };
	if (d->kernel != 3 || d->stride != 1 || d->pad > PAD_MAX || d->in < CHANNELS_MIN ||
		d->out < CHANNELS_MIN)
		return false;
	int64_t oh = d->h + 2 * d->pad - 2, ow = d->w + 2 * d->pad - 2;
	/* Tiles that hang over the edge are work for nothing. */
	return 4 * tiles_of(oh) * tiles_of(ow) * 2 <= oh * ow;
}

void CPU_FN(winograd_forward)(const struct backend_conv *d)
{
	int64_t oh = d->h + 2 * d->pad - 2, ow = d->w + 2 * d->pad - 2;
	struct winograd w = {
		.in = { d->x, d->h, d->w, d->in, d->pad, tiles_of(oh), tiles_of(ow) },
		.tiles = d->n * tiles_of(oh) * tiles_of(ow),
		.out_h = oh,
		.out_w = ow,
		.out_c = d->out,
		.out = d->y,
		.bias = d->bias,
		.relu = d->act == PLAN_ACT_RELU,
		.weight = d->ws.data,
	};
	order_forward(d, d->ws.data);
	run(&w, d->ws, num_round_up(d->in * d->out * 9, WINOGRAD_PAD));
}

void CPU_FN(winograd_backward_data)(const struct backend_conv *d)
{
	int64_t oh = d->h + 2 * d->pad - 2, ow = d->w + 2 * d->pad - 2;
	struct winograd w = {
		.in = { d->dy, oh, ow, d->out, 2 - d->pad, tiles_of(d->h), tiles_of(d->w) },
		.tiles = d->n * tiles_of(d->h) * tiles_of(d->w),
		.out_h = d->h,
		.out_w = d->w,
		.out_c = d->in,
		.out = d->dx,
		.accumulate = d->accumulate,
		.weight = d->ws.data,
	};
	order_backward(d, d->ws.data);
	run(&w, d->ws, num_round_up(d->in * d->out * 9, WINOGRAD_PAD));
}

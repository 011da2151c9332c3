/* SPDX-License-Identifier: Apache-2.0
 * PLAN_OP_BATCHNORM and its backward pass over [rows, c]. Statistics: PLAN_ROW_BLOCKS parts of the
 * rows; a thread takes chunks of rows whose mean and squared deviations are exact to rounding, and
 * chunks, threads and parts are merged in a fixed order (Chan), so that a large mean spoils
 * nothing. Then a thread for each channel, then all elements; columns.h says who has which. */
#include "workers/engine/cuda/ops/columns.h"

enum {
	BATCHNORM_LANES = 4, /* of sums over rows: few, for there are only so many parts */
	BATCHNORM_THREADS = 512,
	BATCHNORM_CHUNK = 4,
	BATCHNORM_APPLY_LANES = 8,
	BATCHNORM_APPLY_ROWS = 8, /* rows of a thread, so that it reads a column's numbers once */
};

/* Of the rows seen: their number, mean and sum of squared deviations, of N columns. */
template <int N> struct batchnorm_moments {
	float count, mean[N], m2[N];
};

/* more joins s. */
template <int N>
static __device__ __forceinline__ void batchnorm_join(
	struct batchnorm_moments<N> *s, const struct batchnorm_moments<N> &more)
{
	float all = s->count + more.count;
	if (!(more.count > 0))
		return;
	float part = more.count / all;
#pragma unroll
	for (int j = 0; j < N; j++) {
		float apart = more.mean[j] - s->mean[j];
		s->mean[j] += apart * part;
		s->m2[j] += more.m2[j] + apart * apart * (s->count * part);
	}
	s->count = all;
}

/* Rows r, r + step, ... (ROWS of them) join s. */
template <typename T, int N, int ROWS>
static __device__ __forceinline__ void batchnorm_chunk(
	struct batchnorm_moments<N> *s, const T *x, int64_t step)
{
	values_held<N, T> rows[ROWS];
	struct batchnorm_moments<N> own = {
		(float)ROWS, { 0 }, { 0 }
	};
	float v[N];
#pragma unroll
	for (int k = 0; k < ROWS; k++)
		rows[k].load(x + k * step);
#pragma unroll
	for (int k = 0; k < ROWS; k++) {
		rows[k].get(v);
		for (int j = 0; j < N; j++)
			own.mean[j] += v[j] * (1.0f / (float)ROWS);
	}
#pragma unroll
	for (int k = 0; k < ROWS; k++) {
		rows[k].get(v);
		for (int j = 0; j < N; j++)
			own.m2[j] += (v[j] - own.mean[j]) * (v[j] - own.mean[j]);
	}
	batchnorm_join(s, own);
}

/* The block's strips join; strip 0 has the result. All threads take part. */
template <int N, int LANES, int THREADS>
static __device__ __forceinline__ void batchnorm_join_strips(
	struct batchnorm_moments<N> *s, float *means, float *m2s, float *counts)
{
	typedef columns<N, LANES, THREADS> at;
	int warp = (int)threadIdx.x / CUDA_WARP, lane = (int)threadIdx.x % CUDA_WARP;
	for (int step = LANES; step < CUDA_WARP; step *= 2) {
		struct batchnorm_moments<N> other;
		other.count = __shfl_down_sync(0xffffffffu, s->count, step);
#pragma unroll
		for (int j = 0; j < N; j++) {
			other.mean[j] = __shfl_down_sync(0xffffffffu, s->mean[j], step);
			other.m2[j] = __shfl_down_sync(0xffffffffu, s->m2[j], step);
		}
		batchnorm_join(s, other); /* garbage in lanes that nobody reads */
	}
	if (lane < LANES) {
#pragma unroll
		for (int j = 0; j < N; j++) {
			means[warp * at::tile + lane * N + j] = s->mean[j];
			m2s[warp * at::tile + lane * N + j] = s->m2[j];
		}
		counts[warp * LANES + lane] = s->count;
	}
	__syncthreads();
	if (at::strip() > 0)
		return;
	for (int w = 1; w < at::warps; w++) {
		struct batchnorm_moments<N> other;
		other.count = counts[w * LANES + lane];
#pragma unroll
		for (int j = 0; j < N; j++) {
			other.mean[j] = means[w * at::tile + lane * N + j];
			other.m2[j] = m2s[w * at::tile + lane * N + j];
		}
		batchnorm_join(s, other);
	}
}

/* Part blockIdx.x: means at 2 * part * c of the workspace, squared deviations c behind. */
template <typename T, int N, int LANES>
static __global__ void __launch_bounds__(BATCHNORM_THREADS)
	batchnorm_part_kernel(struct backend_batchnorm d)
{
	typedef columns<N, LANES, BATCHNORM_THREADS> at;
	CUDA_SHARED(float, means, at::room);
	CUDA_SHARED(float, m2s, at::room);
	CUDA_SHARED(float, counts, at::warps *LANES);
	struct columns_part part = columns_part_of(d.rows, blockIdx.x);
	struct batchnorm_moments<N> s = {
		0, { 0 }, { 0 }
	};
	const int64_t i = at::column(), step = at::strips * d.c;
	if (i < d.c) {
		const T *x = static_cast<const T *>(d.x) + i;
		int64_t r = part.begin + at::strip();
		for (; r + (BATCHNORM_CHUNK - 1) * at::strips < part.end; r += BATCHNORM_CHUNK * at::strips)
			batchnorm_chunk<T, N, BATCHNORM_CHUNK>(&s, x + r * d.c, step);
		for (; r < part.end; r += at::strips)
			batchnorm_chunk<T, N, 1>(&s, x + r * d.c, step);
	}
	batchnorm_join_strips<N, LANES, BATCHNORM_THREADS>(&s, means, m2s, counts);
	if (at::strip() > 0 || i >= d.c)
		return;
	float *out = static_cast<float *>(d.ws.data) + 2 * (int64_t)blockIdx.x * d.c + i;
	for (int j = 0; j < N; j++) {
		out[j] = s.mean[j];
		out[d.c + j] = s.m2[j];
	}
}

/* A thread for each channel: its mean and deviation, in training from the parts. */
static __global__ void batchnorm_channel_kernel(struct backend_batchnorm d)
{
	int64_t i = grid_begin();
	if (i >= d.c)
		return;
	if (!d.train) {
		d.mean[i] = d.running_mean[i];
		d.rstd[i] = (float)(1 / sqrt((double)d.running_var[i] + (double)d.eps));
		return;
	}
	const float *part = static_cast<const float *>(d.ws.data) + i;
	double rows = (double)d.rows, sum = 0, m2 = 0;
#pragma unroll 8
	for (int b = 0; b < PLAN_ROW_BLOCKS; b++) {
		struct columns_part at = columns_part_of(d.rows, b);
		sum += (double)(at.end - at.begin) * (double)part[2 * b * d.c];
	}
	double mean = sum / rows;
#pragma unroll 8
	for (int b = 0; b < PLAN_ROW_BLOCKS; b++) {
		struct columns_part at = columns_part_of(d.rows, b);
		double apart = (double)part[2 * b * d.c] - mean;
		m2 += (double)part[(2 * b + 1) * d.c] + apart * apart * (double)(at.end - at.begin);
	}
	d.mean[i] = (float)mean;
	d.rstd[i] = (float)(1 / sqrt(m2 / rows + (double)d.eps));
	if (!d.update_running)
		return;
	double unbiased = m2 / (d.rows > 1 ? rows - 1 : 1);
	d.running_mean[i] = (float)(d.keep * (double)d.running_mean[i] + d.add * mean);
	d.running_var[i] = (float)(d.keep * (double)d.running_var[i] + d.add * unbiased);
}

/* Blocks of a kernel whose threads go through rows of their columns. */
template <int N, int LANES> static dim3 batchnorm_grid(const struct backend_batchnorm *d)
{
	typedef columns<N, LANES, CUDA_THREADS> at;
	int64_t blocks =
		(d->rows + at::strips * BATCHNORM_APPLY_ROWS - 1) / (at::strips * BATCHNORM_APPLY_ROWS);
	return dim3((unsigned)blocks, at::tiles(d->c));
}

template <typename T, int N, int LANES>
static __global__ void __launch_bounds__(CUDA_THREADS) batchnorm_kernel(struct backend_batchnorm d)
{
	typedef columns<N, LANES, CUDA_THREADS> at;
	const int64_t i = at::column();
	if (i >= d.c)
		return;
	float mean[N], scale[N], gain[N], bias[N];
	values_load(d.mean + i, mean);
	values_load(d.rstd + i, scale);
	values_load(d.gain + i, gain);
	values_load(d.bias + i, bias);
	for (int j = 0; j < N; j++)
		scale[j] *= gain[j];
	const bool relu = d.act == PLAN_ACT_RELU;
#pragma unroll 2
	for (int64_t r = (int64_t)blockIdx.x * at::strips + at::strip(); r < d.rows;
		 r += (int64_t)gridDim.x * at::strips) {
		float x[N], more[N] = { 0 };
		values_load(static_cast<const T *>(d.x) + r * d.c + i, x);
		if (d.residual)
			values_load(static_cast<const T *>(d.residual) + r * d.c + i, more);
		for (int j = 0; j < N; j++) {
			float v = (x[j] - mean[j]) * scale[j] + bias[j];
			if (d.residual)
				v += more[j];
			x[j] = relu && v < 0 ? 0.0f : v; /* NaN stays */
		}
		values_store(static_cast<T *>(d.y) + r * d.c + i, x);
	}
}

template <typename T, int N, int LANES, int APPLY_LANES>
static void batchnorm_of(const struct backend_batchnorm *d)
{
	if (d->train)
		CUDA_LAUNCH((batchnorm_part_kernel<T, N, LANES>),
			dim3(PLAN_ROW_BLOCKS, columns<N, LANES, BATCHNORM_THREADS>::tiles(d->c)),
			BATCHNORM_THREADS, 0, *d);
	CUDA_LAUNCH(batchnorm_channel_kernel, (unsigned)((d->c + CUDA_THREADS - 1) / CUDA_THREADS),
		CUDA_THREADS, 0, *d);
	CUDA_LAUNCH((batchnorm_kernel<T, N, APPLY_LANES>), (batchnorm_grid<N, APPLY_LANES>(d)),
		CUDA_THREADS, 0, *d);
}

template <typename T> static void batchnorm(const struct backend_batchnorm *d)
{
	if (values_fit<T>(d->c, d->x, d->residual, d->y, d->mean, d->rstd, d->gain, d->bias))
		batchnorm_of<T, cuda_pack<T>::count, BATCHNORM_LANES, BATCHNORM_APPLY_LANES>(d);
	else
		batchnorm_of<T, 1, CUDA_WARP, CUDA_WARP>(d);
}

/* ------------------------------------------------------------------------------------- backward */

/* The gradient behind the ReLU, and the normalised value, of N columns. */
template <typename T, int N> struct batchnorm_grad {
	float g[N], hat[N];

	__device__ __forceinline__ batchnorm_grad(const struct backend_batchnorm &d, int64_t at,
		const float (&mean)[N], const float (&rstd)[N])
	{
		values_load(static_cast<const T *>(d.dy) + at, g);
		values_load(static_cast<const T *>(d.x) + at, hat);
		if (d.act == PLAN_ACT_RELU) {
			float y[N];
			values_load(static_cast<const T *>(d.y) + at, y);
			for (int j = 0; j < N; j++)
				g[j] = y[j] > 0 ? g[j] : 0.0f;
		}
		for (int j = 0; j < N; j++)
			hat[j] = (hat[j] - mean[j]) * rstd[j];
	}
};

/* Part blockIdx.x: sums of g at 2 * part * c of the workspace, of g hat c behind. */
template <typename T, int N, int LANES>
static __global__ void __launch_bounds__(BATCHNORM_THREADS)
	batchnorm_backward_part_kernel(struct backend_batchnorm d)
{
	typedef columns<N, LANES, BATCHNORM_THREADS> at;
	CUDA_SHARED(float, room, at::room);
	struct columns_part part = columns_part_of(d.rows, blockIdx.x);
	const int64_t i = at::column();
	float sum[N] = { 0 }, dot[N] = { 0 };
	if (i < d.c) {
		float mean[N], rstd[N];
		values_load(d.mean + i, mean);
		values_load(d.rstd + i, rstd);
#pragma unroll 2
		for (int64_t r = part.begin + at::strip(); r < part.end; r += at::strips) {
			batchnorm_grad<T, N> v(d, r * d.c + i, mean, rstd);
			for (int j = 0; j < N; j++) {
				sum[j] += v.g[j];
				dot[j] += v.g[j] * v.hat[j];
			}
		}
	}
	columns_sum<N, LANES, BATCHNORM_THREADS>(sum, room);
	columns_sum<N, LANES, BATCHNORM_THREADS>(dot, room);
	if (at::strip() > 0 || i >= d.c)
		return;
	float *out = static_cast<float *>(d.ws.data) + 2 * (int64_t)blockIdx.x * d.c + i;
	for (int j = 0; j < N; j++) {
		out[j] = sum[j];
		out[d.c + j] = dot[j];
	}
}

/* A thread for each sum: the parameters' gradients, and the mean over rows in the first part's
 * place. */
static __global__ void batchnorm_backward_channel_kernel(struct backend_batchnorm d)
{
	int64_t i = grid_begin();
	if (i >= 2 * d.c)
		return;
	float *part = static_cast<float *>(d.ws.data) + i;
	double total = 0;
#pragma unroll 8
	for (int b = 0; b < PLAN_ROW_BLOCKS; b++)
		total += (double)part[2 * b * d.c];
	part[0] = (float)(total / (double)d.rows);
	float *out = i < d.c ? d.dbias + i : d.dgain + (i - d.c);
	*out += (float)total;
}

template <typename T, int N, int LANES>
static __global__ void __launch_bounds__(CUDA_THREADS)
	batchnorm_backward_kernel(struct backend_batchnorm d)
{
	typedef columns<N, LANES, CUDA_THREADS> at;
	const int64_t i = at::column();
	if (i >= d.c)
		return;
	const float *means = static_cast<const float *>(d.ws.data) + i;
	float mean[N], rstd[N], scale[N], mean_g[N], mean_dot[N];
	values_load(d.mean + i, mean);
	values_load(d.rstd + i, rstd);
	values_load(d.gain + i, scale);
	values_load(means, mean_g);
	values_load(means + d.c, mean_dot);
	for (int j = 0; j < N; j++)
		scale[j] *= rstd[j];
	for (int64_t r = (int64_t)blockIdx.x * at::strips + at::strip(); r < d.rows;
		 r += (int64_t)gridDim.x * at::strips) {
		const int64_t place = r * d.c + i;
		batchnorm_grad<T, N> v(d, place, mean, rstd); /* read before dy may become dx */
		float dx[N];
		for (int j = 0; j < N; j++)
			dx[j] = (v.g[j] - mean_g[j] - v.hat[j] * mean_dot[j]) * scale[j];
		if (d.dresidual) {
			T *to = static_cast<T *>(d.dresidual) + place;
			float old[N] = { 0 };
			if (d.accumulate)
				values_load(to, old);
			for (int j = 0; j < N; j++)
				v.g[j] += old[j];
			values_store(to, v.g);
		}
		values_store(static_cast<T *>(d.dx) + place, dx);
	}
}

template <typename T, int N, int LANES, int APPLY_LANES>
static void batchnorm_backward_of(const struct backend_batchnorm *d)
{
	CUDA_LAUNCH((batchnorm_backward_part_kernel<T, N, LANES>),
		dim3(PLAN_ROW_BLOCKS, columns<N, LANES, BATCHNORM_THREADS>::tiles(d->c)), BATCHNORM_THREADS,
		0, *d);
	CUDA_LAUNCH(batchnorm_backward_channel_kernel,
		(unsigned)((2 * d->c + CUDA_THREADS - 1) / CUDA_THREADS), CUDA_THREADS, 0, *d);
	CUDA_LAUNCH((batchnorm_backward_kernel<T, N, APPLY_LANES>), (batchnorm_grid<N, APPLY_LANES>(d)),
		CUDA_THREADS, 0, *d);
}

template <typename T> static void batchnorm_backward(const struct backend_batchnorm *d)
{
	const void *y = d->act == PLAN_ACT_RELU ? d->y : NULL;
	if (values_fit<T>(
			d->c, d->x, y, d->dy, d->dx, d->dresidual, d->mean, d->rstd, d->gain, d->ws.data))
		batchnorm_backward_of<T, cuda_pack<T>::count, BATCHNORM_LANES, BATCHNORM_APPLY_LANES>(d);
	else
		batchnorm_backward_of<T, 1, CUDA_WARP, CUDA_WARP>(d);
}

CUDA_EXPORT(batchnorm, (const struct backend_batchnorm *d), (d))
CUDA_EXPORT(batchnorm_backward, (const struct backend_batchnorm *d), (d))

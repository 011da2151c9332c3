/* SPDX-License-Identifier: Apache-2.0
 * PLAN_OP_INTERACTION, PLAN_OP_INTERACTION_BACKWARD: dot products of all pairs of a sample's
 * features, z [samples, F, D], y [samples, D + F(F-1)/2]. */
#include "workers/engine/cuda/ops/map.h"

/* A warp takes a sample, whose features it brings into shared memory as fp32, INTERACTION_UNITS
 * units at a time. With T = F/4 (rounded up) forward lanes have tiles of 4 by 4 products, of
 * features a, a + T, ... and b, b + T, ... (a >= b): neighbours in a are neighbours in memory, so
 * no two lanes want one bank. Backward lanes have 4 features by 4 units of dz = S z, where S is
 * symmetric and has the pairs' gradients. */

enum {
	INTERACTION_TILE = 4,
	INTERACTION_UNITS = 32,
	INTERACTION_STRIDE = INTERACTION_UNITS + 4, /* 9 packs: an odd number spreads over the banks */
	INTERACTION_WARPS = 4,                      /* of a block, at most */
	INTERACTION_BLOCKS = 5,                     /* of a multiprocessor, at least */
	INTERACTION_SHARED_MAX = 48 << 10,          /* bytes that every kernel may have */
};

template <typename T> struct interaction_call {
	int64_t samples, d;
	int features, tiles, warps; /* tiles: T; warps: of a block */
	bool packs;                 /* rows of z, dz begin at whole packs */
	const T *z, *dy;
	T *y, *dz;
};

/* n units from `first` on of a warp's sample; what is left of the rows and features is 0. */
template <typename T>
static __device__ __forceinline__ void interaction_load(
	const struct interaction_call<T> &c, const T *z, int64_t first, int n, float *to)
{
	constexpr int N = cuda_pack<T>::count, PACKS = INTERACTION_UNITS / N;
	int lane = (int)threadIdx.x % CUDA_WARP, rows = c.tiles * INTERACTION_TILE;
	for (int i = lane; i < rows * PACKS; i += CUDA_WARP) {
		int row = i / PACKS, unit = i % PACKS * N;
		const T *from = z + row * c.d + first + unit;
		float x[N] = {};
		if (row < c.features) {
			if (c.packs && unit + N <= n)
				values_load<N>(from, x);
			else
				for (int k = 0; k < N && unit + k < n; k++)
					x[k] = act_float(from[k]);
		}
		values_store<N>(to + row * INTERACTION_STRIDE + unit, x);
	}
}

/* One tile's part of a block of units. */
static __device__ __forceinline__ void interaction_products(
	const float *rows, const float *columns, int tiles, float (*sum)[INTERACTION_TILE])
{
	for (int k = 0; k < INTERACTION_UNITS; k += 4) {
		float x[INTERACTION_TILE][4], y[INTERACTION_TILE][4];
#pragma unroll
		for (int r = 0; r < INTERACTION_TILE; r++) {
			values_load<4>(rows + r * tiles * INTERACTION_STRIDE + k, x[r]);
			values_load<4>(columns + r * tiles * INTERACTION_STRIDE + k, y[r]);
		}
#pragma unroll
		for (int r = 0; r < INTERACTION_TILE; r++)
#pragma unroll
			for (int s = 0; s < INTERACTION_TILE; s++)
#pragma unroll
				for (int e = 0; e < 4; e++)
					sum[r][s] += x[r][e] * y[s][e];
	}
}

/* The products of tile (a, b): each pair once, the larger feature first. */
template <typename T>
static __device__ __forceinline__ void interaction_write(
	const struct interaction_call<T> &c, int a, int b, float (*sum)[INTERACTION_TILE], T *pairs)
{
#pragma unroll
	for (int r = 0; r < INTERACTION_TILE; r++)
#pragma unroll
		for (int s = 0; s < INTERACTION_TILE; s++) {
			int i = a + r * c.tiles, j = b + s * c.tiles;
			int high = i > j ? i : j, low = i > j ? j : i;
			if (high < c.features && low < high && (a != b || i > j))
				pairs[high * (high - 1) / 2 + low] = act_round<T>(sum[r][s]);
		}
}

template <typename T>
static __global__ void __launch_bounds__(INTERACTION_WARPS *CUDA_WARP, INTERACTION_BLOCKS)
	interaction_kernel(struct interaction_call<T> c)
{
	CUDA_SHARED_DYNAMIC(float, shared);
	int warp = (int)threadIdx.x / CUDA_WARP, lane = (int)threadIdx.x % CUDA_WARP;
	float *z = shared + warp * c.tiles * INTERACTION_TILE * INTERACTION_STRIDE;
	int64_t width = c.d + c.features * (c.features - 1) / 2;
	int count = c.tiles * (c.tiles + 1) / 2;
	for (int64_t s = (int64_t)blockIdx.x * c.warps + warp; s < c.samples;
		 s += (int64_t)gridDim.x * c.warps) {
		const T *from = c.z + s * c.features * c.d;
		T *to = c.y + s * width;
		for (int64_t i = lane; i < c.d; i += CUDA_WARP)
			to[i] = from[i];
		for (int turn = 0; turn < count; turn += CUDA_WARP) {
			int tile = turn + lane < count ? turn + lane : count - 1, a = 0;
			while ((a + 1) * (a + 2) / 2 <= tile)
				a++;
			int b = tile - a * (a + 1) / 2;
			float sum[INTERACTION_TILE][INTERACTION_TILE] = {};
			for (int64_t first = 0; first < c.d; first += INTERACTION_UNITS) {
				int n = c.d - first < INTERACTION_UNITS ? (int)(c.d - first) : INTERACTION_UNITS;
				__syncwarp();
				interaction_load(c, from, first, n, z);
				__syncwarp();
				interaction_products(
					z + a * INTERACTION_STRIDE, z + b * INTERACTION_STRIDE, c.tiles, sum);
			}
			if (turn + lane < count)
				interaction_write(c, a, b, sum, to + c.d);
		}
	}
}

/* The warp's S, padded with zeros to whole tiles. */
template <typename T>
static __device__ __forceinline__ void interaction_slopes(
	const struct interaction_call<T> &c, const T *pairs, float *slopes)
{
	int lane = (int)threadIdx.x % CUDA_WARP, rows = c.tiles * INTERACTION_TILE;
	for (int i = 0; i < rows; i++)
		for (int j = lane; j < rows; j += CUDA_WARP) {
			int high = i > j ? i : j, low = i > j ? j : i;
			bool has = high < c.features && low < high;
			slopes[i * rows + j] = has ? act_float(pairs[high * (high - 1) / 2 + low]) : 0.0f;
		}
}

/* Stores a lane's units of feature i. The dense feature has a gradient of its own too, and is the
 * output of a ReLU. */
template <typename T>
static __device__ __forceinline__ void interaction_store(const struct interaction_call<T> &c, int i,
	const float *z, const T *dense, int n, float (&v)[4], T *to)
{
	if (i == 0)
#pragma unroll
		for (int k = 0; k < 4; k++)
			v[k] = k < n && z[k] > 0.0f ? v[k] + act_float(dense[k]) : 0.0f;
	if (c.packs && n >= 4)
		values_store<4>(to, v);
	else
		for (int k = 0; k < 4 && k < n; k++)
			to[k] = act_round<T>(v[k]);
}

template <typename T>
static __global__ void __launch_bounds__(INTERACTION_WARPS *CUDA_WARP, INTERACTION_BLOCKS)
	interaction_backward_kernel(struct interaction_call<T> c)
{
	constexpr int ACROSS = INTERACTION_UNITS / 4; /* lanes that share features */
	CUDA_SHARED_DYNAMIC(float, shared);
	int warp = (int)threadIdx.x / CUDA_WARP, lane = (int)threadIdx.x % CUDA_WARP;
	int rows = c.tiles * INTERACTION_TILE, unit = lane % ACROSS * 4;
	float *slopes = shared + warp * rows * (rows + INTERACTION_STRIDE), *z = slopes + rows * rows;
	int64_t width = c.d + c.features * (c.features - 1) / 2;
	for (int64_t s = (int64_t)blockIdx.x * c.warps + warp; s < c.samples;
		 s += (int64_t)gridDim.x * c.warps) {
		const T *from = c.z + s * c.features * c.d, *dy = c.dy + s * width;
		__syncwarp();
		interaction_slopes(c, dy + c.d, slopes);
		for (int64_t first = 0; first < c.d; first += INTERACTION_UNITS) {
			int n = c.d - first < INTERACTION_UNITS ? (int)(c.d - first) : INTERACTION_UNITS;
			__syncwarp();
			interaction_load(c, from, first, n, z);
			__syncwarp();
			for (int i = lane / ACROSS * 4; i < c.features; i += CUDA_WARP / ACROSS * 4) {
				float sum[4][4] = {};
				for (int j = 0; j < c.features; j++) {
					float g[4], x[4];
					values_load<4>(slopes + j * rows + i, g);
					values_load<4>(z + j * INTERACTION_STRIDE + unit, x);
#pragma unroll
					for (int r = 0; r < 4; r++)
#pragma unroll
						for (int e = 0; e < 4; e++)
							sum[r][e] += g[r] * x[e];
				}
#pragma unroll
				for (int r = 0; r < 4; r++)
					if (i + r < c.features)
						interaction_store(c, i + r, z + unit, dy + first + unit, n - unit, sum[r],
							c.dz + (s * c.features + i + r) * c.d + first + unit);
			}
		}
	}
}

/* bytes: of shared memory a warp. */
template <typename T>
static struct interaction_call<T> interaction_call_of(
	int64_t samples, int64_t features, int64_t d, const void *z, int64_t bytes) {
	interaction_call<T> c = {};
	int64_t warps = INTERACTION_SHARED_MAX / bytes; /* 1 for the most features */
	c.samples = samples;
	c.d = d;
	c.features = (int)features;
	c.tiles = (int)(features + INTERACTION_TILE - 1) / INTERACTION_TILE;
	c.warps = warps < INTERACTION_WARPS ? (int)warps : INTERACTION_WARPS;
	c.packs = d % cuda_pack<T>::count == 0 && pack_fits(z);
	c.z = static_cast<const T *>(z);
	return c;
}

template <typename T>
static void interaction(int64_t samples, int64_t features, int64_t d, const void *z, void *y)
{
	int64_t rows = (features + INTERACTION_TILE - 1) / INTERACTION_TILE * INTERACTION_TILE;
	int64_t bytes = rows * INTERACTION_STRIDE * (int64_t)sizeof(float);
	struct interaction_call<T> c = interaction_call_of<T>(samples, features, d, z, bytes);
	c.y = static_cast<T *>(y);
	CUDA_LAUNCH((interaction_kernel<T>), grid_of(samples, c.warps), c.warps * CUDA_WARP,
		c.warps * bytes, c);
}

template <typename T>
static void interaction_backward(
	int64_t samples, int64_t features, int64_t d, const void *z, const void *dy, void *dz)
{
	int64_t rows = (features + INTERACTION_TILE - 1) / INTERACTION_TILE * INTERACTION_TILE;
	int64_t bytes = rows * (rows + INTERACTION_STRIDE) * (int64_t)sizeof(float);
	struct interaction_call<T> c = interaction_call_of<T>(samples, features, d, z, bytes);
	c.dy = static_cast<const T *>(dy);
	c.dz = static_cast<T *>(dz);
	c.packs = c.packs && pack_fits(dz);
	CUDA_LAUNCH((interaction_backward_kernel<T>), grid_of(samples, c.warps), c.warps * CUDA_WARP,
		c.warps * bytes, c);
}

CUDA_EXPORT(interaction, (int64_t samples, int64_t features, int64_t d, const void *z, void *y),
	(samples, features, d, z, y))
CUDA_EXPORT(interaction_backward,
	(int64_t samples, int64_t features, int64_t d, const void *z, const void *dy, void *dz),
	(samples, features, d, z, dy, dz))

/* SPDX-License-Identifier: Apache-2.0
 * PLAN_OP_PIECE_IDS, PLAN_OP_PIECE_GATHER, PLAN_OP_PIECE_SPREAD: tables that ranks share. z
 * [samples, features, d], of which column table + 1 is the table's; a piece has [samples, d]. A
 * thread takes N neighbours of a sample's row in a turn: a pack of T, or one. */
#include "workers/comm/comm.h"
#include "workers/engine/cuda/ops/map.h"

template <typename T> struct piece_call {
	int64_t packs, width; /* packs of all samples, of a sample */
	int64_t d, column, features;
	const T *z;
	T *to;
};

/* In a launch's parameters, of which there may be 4 KiB. */
template <typename T> struct piece_list {
	int count;
	const T *piece[COMM_RANKS_MAX];
};

static __global__ void piece_ids_kernel(
	int64_t count, int64_t first, int64_t rows, const int32_t *ids, int32_t *y)
{
	for (int64_t i = grid_begin(); i < count; i += grid_stride()) {
		int64_t id = ids[i] - first;
		y[i] = id >= 0 && id < rows ? (int32_t)id : -1;
	}
}

template <typename T, int N>
static __global__ void piece_gather_kernel(struct piece_call<T> c, const struct piece_list<T> list)
{
	for (int64_t i = grid_begin(); i < c.packs; i += grid_stride()) {
		struct map_place at = map_place_of(i, c.width);
		float sum[N] = {}, x[N];
#pragma unroll 4
		for (int k = 0; k < list.count; k++) {
			values_load<N>(list.piece[k] + i * N, x);
#pragma unroll
			for (int e = 0; e < N; e++)
				sum[e] += x[e];
		}
		values_store<N>(c.to + map_feature<N>(at, c.features, c.column, c.d), sum);
	}
}

template <typename T, int N> static __global__ void piece_spread_kernel(struct piece_call<T> c)
{
	for (int64_t i = grid_begin(); i < c.packs; i += grid_stride()) {
		struct map_place at = map_place_of(i, c.width);
		float x[N];
		values_load<N>(c.z + map_feature<N>(at, c.features, c.column, c.d), x);
		values_store<N>(c.to + i * N, x);
	}
}

extern "C" void piece_ids_cuda(
	int64_t count, int64_t first, int64_t rows, const int32_t *ids, int32_t *y)
{
	CUDA_LAUNCH(piece_ids_kernel, grid_of(count, CUDA_THREADS), CUDA_THREADS, 0, count, first, rows,
		ids, y);
}

template <typename T> static void piece_gather(const struct backend_pieces *d)
{
	constexpr int N = cuda_pack<T>::count;
	bool packs = d->d % N == 0 && pack_fits(d->z);
	piece_list<T> list = {};
	if (d->count > COMM_RANKS_MAX) {
		cuda_failed(cudaErrorInvalidValue, "piece_gather: more pieces than ranks");
		return;
	}
	list.count = d->count;
	for (int i = 0; i < d->count; i++) {
		list.piece[i] = static_cast<const T *>(d->piece[i]);
		packs = packs && pack_fits(d->piece[i]);
	}
	int64_t width = packs ? d->d / N : d->d;
	piece_call<T> c = { d->samples * width, width, d->d, d->table + 1, d->features, NULL,
		static_cast<T *>(d->z) };
	unsigned grid = grid_of(c.packs, CUDA_THREADS);
	if (packs)
		CUDA_LAUNCH((piece_gather_kernel<T, N>), grid, CUDA_THREADS, 0, c, list);
	else
		CUDA_LAUNCH((piece_gather_kernel<T, 1>), grid, CUDA_THREADS, 0, c, list);
}

template <typename T>
static void piece_spread(
	int64_t samples, int64_t d, int64_t table, int64_t features, const void *z, void *y)
{
	constexpr int N = cuda_pack<T>::count;
	bool packs = d % N == 0 && pack_fits(z) && pack_fits(y);
	int64_t width = packs ? d / N : d;
	piece_call<T> c = { samples * width, width, d, table + 1, features, static_cast<const T *>(z),
		static_cast<T *>(y) };
	unsigned grid = grid_of(c.packs, CUDA_THREADS);
	if (packs)
		CUDA_LAUNCH((piece_spread_kernel<T, N>), grid, CUDA_THREADS, 0, c);
	else
		CUDA_LAUNCH((piece_spread_kernel<T, 1>), grid, CUDA_THREADS, 0, c);
}

CUDA_EXPORT(piece_gather, (const struct backend_pieces *d), (d))
CUDA_EXPORT(piece_spread,
	(int64_t samples, int64_t d, int64_t table, int64_t features, const void *z, void *y),
	(samples, d, table, features, z, y))

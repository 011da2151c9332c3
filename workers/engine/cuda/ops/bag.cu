/* SPDX-License-Identifier: Apache-2.0
 * PLAN_OP_EMBEDDING_BAG, and PLAN_OP_SPARSE_STORE, which keeps a micro-batch's part of a table's
 * gradient until the step. z, dz [samples, features, d], of which column table + 1 is ours; the
 * table [rows, d] fp32. A thread takes N neighbours of a sample's row in a turn (a pack of T, or
 * one), so the threads of a row read the rows of its look-ups as long runs. */
#include "workers/engine/cuda/ops/map.h"

template <typename T> struct bag_call {
	int64_t packs, width; /* packs of all samples, of a sample */
	int64_t lookups, d, column, features;
	const int32_t *bags;
	const float *weight;
	T *z;
	/* sparse_store */
	int64_t count; /* of ids */
	const T *dz;
	int32_t *ids;
	float *grads;
};

/* Sums in the order of look-ups. */
template <typename T, int N> static __global__ void bag_kernel(struct bag_call<T> c)
{
	for (int64_t i = grid_begin(); i < c.packs; i += grid_stride()) {
		struct map_place at = map_place_of(i, c.width);
		const int32_t *bag = c.bags + at.row * c.lookups;
		float sum[N] = {};
#pragma unroll 4
		for (int64_t k = 0; k < c.lookups; k++) {
			int64_t row = bag[k];
			float x[N] = {};
			if (row >= 0)
				values_load<N>(c.weight + row * c.d + at.column * N, x);
#pragma unroll
			for (int e = 0; e < N; e++)
				sum[e] += x[e];
		}
		values_store<N>(c.z + map_feature<N>(at, c.features, c.column, c.d), sum);
	}
}

template <typename T, int N> static __global__ void bag_store_kernel(struct bag_call<T> c)
{
	for (int64_t i = grid_begin(); i < c.packs; i += grid_stride()) {
		struct map_place at = map_place_of(i, c.width);
		float x[N];
		values_load<N>(c.dz + map_feature<N>(at, c.features, c.column, c.d), x);
		values_store<N>(c.grads + i * N, x);
	}
	for (int64_t i = grid_begin(); i < c.count; i += grid_stride())
		c.ids[i] = c.bags[i];
}

template <typename T>
static struct bag_call<T> bag_call_of(const struct backend_bag *d, bool packs) {
	bag_call<T> c = {};
	c.width = packs ? d->d / cuda_pack<T>::count : d->d;
	c.packs = d->samples * c.width;
	c.lookups = d->lookups;
	c.d = d->d;
	c.column = d->table + 1;
	c.features = d->features;
	c.bags = d->bags;
	c.weight = d->weight;
	c.z = static_cast<T *>(d->z);
	c.count = d->samples * d->lookups;
	c.dz = static_cast<const T *>(d->dz);
	c.ids = d->ids;
	c.grads = d->grads;
	return c;
}

template <typename T>
static void embedding_bag(const struct backend_bag *d)
{
	constexpr int N = cuda_pack<T>::count;
	bool packs = d->d % N == 0 && pack_fits(d->weight) && pack_fits(d->z);
	struct bag_call<T> c = bag_call_of<T>(d, packs);
	if (packs)
		CUDA_LAUNCH((bag_kernel<T, N>), grid_of(c.packs, CUDA_THREADS), CUDA_THREADS, 0, c);
	else
		CUDA_LAUNCH((bag_kernel<T, 1>), grid_of(c.packs, CUDA_THREADS), CUDA_THREADS, 0, c);
}

template <typename T> static void sparse_store(const struct backend_bag *d)
{
	constexpr int N = cuda_pack<T>::count;
	bool packs = d->d % N == 0 && pack_fits(d->dz) && pack_fits(d->grads);
	struct bag_call<T> c = bag_call_of<T>(d, packs);
	unsigned grid = grid_of(c.packs > c.count ? c.packs : c.count, CUDA_THREADS);
	if (packs)
		CUDA_LAUNCH((bag_store_kernel<T, N>), grid, CUDA_THREADS, 0, c);
	else
		CUDA_LAUNCH((bag_store_kernel<T, 1>), grid, CUDA_THREADS, 0, c);
}

CUDA_EXPORT(embedding_bag, (const struct backend_bag *d), (d))
CUDA_EXPORT(sparse_store, (const struct backend_bag *d), (d))

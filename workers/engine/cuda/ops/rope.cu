/* SPDX-License-Identifier: Apache-2.0
 * PLAN_OP_ROPE: turns queries and keys in place by their position's angles; element i of a head
 * goes with element i + head_size / 2. A thread has a pack of pairs. */
#include "workers/engine/cuda/ops/values.h"

template <typename T, int N> static __global__ void rope_kernel(struct backend_rope d)
{
	const int64_t half = d.head_size / 2, packs = half / N, turned = d.heads + d.kv_heads;
	const int64_t width = (turned + d.kv_heads) * d.head_size, each = turned * packs;
	const float sign = d.inverse ? -1.0f : 1.0f;
	for (int64_t k = grid_begin(); k < d.rows * each; k += grid_stride()) {
		int64_t r = k / each, head = (k - r * each) / packs, i = (k - r * each - head * packs) * N;
		int64_t position = d.positions ? d.positions[r] : r % d.t;
		T *x = static_cast<T *>(d.qkv) + r * width + head * d.head_size + i;
		const float *angles = d.table + position * d.head_size + i;
		float a[N], b[N], cosine[N], sine[N];
		values_load(x, a);
		values_load(x + half, b);
		values_load(angles, cosine);
		values_load(angles + half, sine);
		for (int j = 0; j < N; j++) {
			float one = a[j], other = b[j], turn = sine[j] * sign;
			a[j] = one * cosine[j] - other * turn;
			b[j] = other * cosine[j] + one * turn;
		}
		values_store(x, a);
		values_store(x + half, b);
	}
}

template <typename T> static void rope(const struct backend_rope *d)
{
	constexpr int N = cuda_pack<T>::count;
	int64_t pairs = d->rows * (d->heads + d->kv_heads) * (d->head_size / 2);
	if (values_fit<T>(d->head_size / 2, d->qkv, d->table))
		CUDA_LAUNCH((rope_kernel<T, N>), grid_of(pairs / N, CUDA_THREADS), CUDA_THREADS, 0, *d);
	else
		CUDA_LAUNCH((rope_kernel<T, 1>), grid_of(pairs, CUDA_THREADS), CUDA_THREADS, 0, *d);
}

CUDA_EXPORT(rope, (const struct backend_rope *d), (d))

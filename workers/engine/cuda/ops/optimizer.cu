/* SPDX-License-Identifier: Apache-2.0
 * PLAN_OP_ADAMW and PLAN_OP_SGD over the flat parameters: one pass over memory, which also rounds
 * the new values into the low-precision weights. A plan has a segment for each run of parameters
 * of one decay, many of them short, so a launch takes up to OPTIMIZER_SEGMENTS of them: their
 * chunks of OPTIMIZER_CHUNK elements are numbered through, and a block takes a chunk. */
#include "workers/engine/cuda/ops/map.h"

enum {
	OPTIMIZER_SEGMENTS = 64, /* in a launch's parameters, of which there may be 4 KiB */
	OPTIMIZER_CHUNK = 4096,
	OPTIMIZER_CHUNKS_MAX = 1 << 30, /* blocks of a launch */
};

struct optimizer_segment {
	int64_t begin, end, weights; /* weights: where begin goes; -1 = nowhere */
	float decay;
	int first; /* number of its first chunk */
};

struct optimizer_batch {
	int count;
	struct optimizer_segment segment[OPTIMIZER_SEGMENTS];
};

struct optimizer_values {
	float *w, *m, *v;
	const float *g;
	void *weights;
	float grad_scale, learning_rate;
	float beta1, beta2, eps, step, correct2;
	float momentum;
};

enum optimizer_rule { OPTIMIZER_ADAMW, OPTIMIZER_SGD, OPTIMIZER_MOMENTUM };

static __device__ __forceinline__ float optimizer_adamw(
	const struct optimizer_values &d, float shrink, float w, float g, float *m, float *v)
{
	g *= d.grad_scale;
	*m = d.beta1 * *m + (1.0f - d.beta1) * g;
	*v = d.beta2 * *v + (1.0f - d.beta2) * (g * g);
	return w - (d.step * *m / (sqrtf(*v * d.correct2) + d.eps) + shrink * w);
}

static __device__ __forceinline__ float optimizer_sgd(
	const struct optimizer_values &d, float decay, float w, float g, float *m)
{
	g = g * d.grad_scale + decay * w;
	if (m)
		g = *m = g + d.momentum * *m;
	return w - d.learning_rate * g;
}

/* N elements from i on; weights (NULL: none) is where the first of them goes. */
template <typename T, enum optimizer_rule RULE, int N>
static __device__ __forceinline__ void optimizer_elements(
	const struct optimizer_values &d, float decay, int64_t i, T *weights)
{
	float w[N], g[N], m[N], v[N], shrink = d.learning_rate * decay;
	values_load<N>(d.w + i, w);
	values_load<N>(d.g + i, g);
	if (RULE != OPTIMIZER_SGD)
		values_load<N>(d.m + i, m);
	if (RULE == OPTIMIZER_ADAMW)
		values_load<N>(d.v + i, v);
#pragma unroll
	for (int k = 0; k < N; k++) {
		if (RULE == OPTIMIZER_ADAMW)
			w[k] = optimizer_adamw(d, shrink, w[k], g[k], &m[k], &v[k]);
		else
			w[k] = optimizer_sgd(d, decay, w[k], g[k], RULE == OPTIMIZER_SGD ? NULL : &m[k]);
	}
	if (RULE != OPTIMIZER_SGD)
		values_store<N>(d.m + i, m);
	if (RULE == OPTIMIZER_ADAMW)
		values_store<N>(d.v + i, v);
	values_store<N>(d.w + i, w);
	if (weights)
		values_store<N>(weights, w);
}

/* Whether packs may be used from element i of p on; they may where p is NULL. */
template <typename T> static __device__ __forceinline__ bool optimizer_fits(const T *p, int64_t i)
{
	return !p || (reinterpret_cast<uintptr_t>(p) + (uintptr_t)i * sizeof(T)) % 16 == 0;
}

template <typename T, enum optimizer_rule RULE>
static __global__ void __launch_bounds__(CUDA_THREADS)
	optimizer_kernel(const struct optimizer_batch b, const struct optimizer_values d)
{
	constexpr int N = cuda_pack<T>::count;
	int at = 0;
	while (at + 1 < b.count && b.segment[at + 1].first <= (int)blockIdx.x)
		at++;
	const struct optimizer_segment &s = b.segment[at];
	int64_t begin = s.begin + (int64_t)((int)blockIdx.x - s.first) * OPTIMIZER_CHUNK;
	int64_t end = begin + OPTIMIZER_CHUNK < s.end ? begin + OPTIMIZER_CHUNK : s.end;
	T *weights = s.weights >= 0 ? static_cast<T *>(d.weights) : NULL;
	int64_t shift = s.weights - s.begin;
	bool packs = optimizer_fits(d.w, begin) && optimizer_fits(d.g, begin) &&
		optimizer_fits(d.m, begin) && optimizer_fits(d.v, begin) &&
		optimizer_fits(weights, begin + shift);
	int64_t packed = packs ? begin + (end - begin) / N * N : begin;
	for (int64_t i = begin + threadIdx.x * N; i < packed; i += CUDA_THREADS * N)
		optimizer_elements<T, RULE, N>(d, s.decay, i, weights ? weights + i + shift : NULL);
	for (int64_t i = packed + threadIdx.x; i < end; i += CUDA_THREADS)
		optimizer_elements<T, RULE, 1>(d, s.decay, i, weights ? weights + i + shift : NULL);
}

template <typename T, enum optimizer_rule RULE>
static void optimizer_update(const struct backend_update *d)
{
	struct optimizer_values values = { d->w, d->m, d->v, d->g, d->weights, d->grad_scale,
		d->learning_rate, d->beta1, d->beta2, d->eps, d->learning_rate * d->correct1, d->correct2,
		d->momentum };
	struct optimizer_batch b = {};
	int64_t chunks = 0;
	for (int i = 0; i < d->segment_count; i++) {
		const struct backend_segment *s = &d->segments[i];
		if (s->end > s->begin) {
			b.segment[b.count++] = { s->begin, s->end, s->weights, s->decay, (int)chunks };
			chunks += (s->end - s->begin + OPTIMIZER_CHUNK - 1) / OPTIMIZER_CHUNK;
		}
		if (b.count > 0 &&
			(b.count == OPTIMIZER_SEGMENTS || i + 1 == d->segment_count ||
				chunks > OPTIMIZER_CHUNKS_MAX)) {
			CUDA_LAUNCH((optimizer_kernel<T, RULE>), (unsigned)chunks, CUDA_THREADS, 0, b, values);
			b.count = 0;
			chunks = 0;
		}
	}
}

template <typename T> static void adamw(const struct backend_update *d)
{
	optimizer_update<T, OPTIMIZER_ADAMW>(d);
}

template <typename T> static void sgd(const struct backend_update *d)
{
	if (d->m)
		optimizer_update<T, OPTIMIZER_MOMENTUM>(d);
	else
		optimizer_update<T, OPTIMIZER_SGD>(d);
}

CUDA_EXPORT(adamw, (const struct backend_update *d), (d))
CUDA_EXPORT(sgd, (const struct backend_update *d), (d))

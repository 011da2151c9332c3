/* SPDX-License-Identifier: Apache-2.0
 * PLAN_OP_MAXPOOL and its backward pass, channels last: any square window, stride and padding.
 * `which` is the place of the first largest value in its window (ky * kernel + kx); padding is
 * never chosen; a NaN is the largest. A thread for each pack of y, backward of dx: it gathers, so
 * overlapping windows add up in one order. */
#include "workers/engine/cuda/ops/values.h"

/* The operation with its output's sizes. */
struct maxpool_shape {
	struct backend_pool d;
	int64_t oh, ow;
};

/* N places of one byte, moved by one instruction. p is a multiple of N. */
template <int N> struct maxpool_word;
template <> struct maxpool_word<1> {
	typedef uint8_t type;
};
template <> struct maxpool_word<4> {
	typedef uint32_t type;
};
template <> struct maxpool_word<8> {
	typedef uint64_t type;
};
template <int N> struct maxpool_places {
	uint8_t v[N];
};
template <int N>
static __device__ __forceinline__ maxpool_places<N> maxpool_places_load(const uint8_t *p)
{
	typedef typename maxpool_word<N>::type word;
	maxpool_places<N> x;
	word bits = *reinterpret_cast<const word *>(p);
	memcpy(&x, &bits, sizeof(bits));
	return x;
}
template <int N>
static __device__ __forceinline__ void maxpool_places_store(uint8_t *p, const maxpool_places<N> &x)
{
	typedef typename maxpool_word<N>::type word;
	word bits;
	memcpy(&bits, &x, sizeof(bits));
	*reinterpret_cast<word *>(p) = bits;
}

/* The taps [ret_first, ret_end) of a window that begins at `origin` that lie inside. */
static __device__ __forceinline__ void maxpool_taps(
	int kernel, int64_t origin, int64_t size, int *ret_first, int *ret_end)
{
	*ret_first = origin < 0 ? (int)-origin : 0;
	*ret_end = origin + kernel > size ? (int)(size - origin) : kernel;
}

template <typename T, int N> static __global__ void maxpool_kernel(struct maxpool_shape s)
{
	const struct backend_pool &d = s.d;
	const int64_t packs = d.c / N;
	const int kernel = (int)d.kernel;
	for (int64_t k = grid_begin(); k < d.n * s.oh * s.ow * packs; k += grid_stride()) {
		int64_t pixel = k / packs, i = (k - pixel * packs) * N;
		int64_t row = pixel / s.ow, image = row / s.oh;
		int64_t top = (row - image * s.oh) * d.stride - d.pad;
		int64_t left = (pixel - row * s.ow) * d.stride - d.pad;
		int y[2], x[2];
		maxpool_taps(kernel, top, d.h, &y[0], &y[1]);
		maxpool_taps(kernel, left, d.w, &x[0], &x[1]);
		float best[N] = { 0 }, v[N];
		maxpool_places<N> at = { { 0 } };
		for (int ky = y[0]; ky < y[1]; ky++)
			for (int kx = x[0]; kx < x[1]; kx++) {
				int64_t from = ((image * d.h + top + ky) * d.w + left + kx) * d.c + i;
				bool first = ky == y[0] && kx == x[0];
				values_load(static_cast<const T *>(d.x) + from, v);
				for (int j = 0; j < N; j++) {
					/* The first NaN stays. */
					bool larger = v[j] > best[j] || (isnan(v[j]) && !isnan(best[j]));
					if (first || larger) {
						best[j] = v[j];
						at.v[j] = (uint8_t)(ky * kernel + kx);
					}
				}
			}
		values_store(static_cast<T *>(d.y) + pixel * d.c + i, best);
		maxpool_places_store<N>(d.which + pixel * d.c + i, at);
	}
}

/* The windows [ret_first, ret_end) that hold the place `at`. */
static __device__ __forceinline__ void maxpool_windows(
	const struct backend_pool &d, int64_t at, int64_t count, int64_t *ret_first, int64_t *ret_end)
{
	int64_t low = at + d.pad - d.kernel + 1;
	int64_t end = (at + d.pad) / d.stride + 1;
	*ret_first = low <= 0 ? 0 : (low + d.stride - 1) / d.stride;
	*ret_end = end < count ? end : count;
}

template <typename T, int N> static __global__ void maxpool_backward_kernel(struct maxpool_shape s)
{
	const struct backend_pool &d = s.d;
	const int64_t packs = d.c / N;
	for (int64_t k = grid_begin(); k < d.n * d.h * d.w * packs; k += grid_stride()) {
		int64_t pixel = k / packs, i = (k - pixel * packs) * N;
		int64_t row = pixel / d.w, image = row / d.h;
		int64_t y = row - image * d.h, x = pixel - row * d.w, wy[2], wx[2];
		maxpool_windows(d, y, s.oh, &wy[0], &wy[1]);
		maxpool_windows(d, x, s.ow, &wx[0], &wx[1]);
		float sum[N] = { 0 }, v[N];
		for (int64_t oy = wy[0]; oy < wy[1]; oy++)
			for (int64_t ox = wx[0]; ox < wx[1]; ox++) {
				int64_t out = ((image * s.oh + oy) * s.ow + ox) * d.c + i;
				int tap = (int)((y + d.pad - oy * d.stride) * d.kernel + x + d.pad - ox * d.stride);
				maxpool_places<N> at = maxpool_places_load<N>(d.which + out);
				values_load(static_cast<const T *>(d.dy) + out, v);
				for (int j = 0; j < N; j++)
					sum[j] += at.v[j] == tap ? v[j] : 0.0f;
			}
		values_store(static_cast<T *>(d.dx) + pixel * d.c + i, sum);
	}
}

static struct maxpool_shape maxpool_shape_of(const struct backend_pool *d)
{
	struct maxpool_shape s = { *d, (d->h + 2 * d->pad - d->kernel) / d->stride + 1,
		(d->w + 2 * d->pad - d->kernel) / d->stride + 1 };
	return s;
}

/* Whether the places of packs may be moved at once. */
template <typename T> static bool maxpool_fits(const struct backend_pool *d, const void *a, void *b)
{
	return values_fit<T>(d->c, a, b) &&
		reinterpret_cast<uintptr_t>(d->which) % cuda_pack<T>::count == 0;
}

template <typename T> static void maxpool(const struct backend_pool *d)
{
	constexpr int N = cuda_pack<T>::count;
	struct maxpool_shape s = maxpool_shape_of(d);
	int64_t pixels = d->n * s.oh * s.ow;
	if (maxpool_fits<T>(d, d->x, d->y))
		CUDA_LAUNCH(
			(maxpool_kernel<T, N>), grid_of(pixels * (d->c / N), CUDA_THREADS), CUDA_THREADS, 0, s);
	else
		CUDA_LAUNCH(
			(maxpool_kernel<T, 1>), grid_of(pixels * d->c, CUDA_THREADS), CUDA_THREADS, 0, s);
}

template <typename T> static void maxpool_backward(const struct backend_pool *d)
{
	constexpr int N = cuda_pack<T>::count;
	struct maxpool_shape s = maxpool_shape_of(d);
	int64_t pixels = d->n * d->h * d->w;
	if (maxpool_fits<T>(d, d->dy, d->dx))
		CUDA_LAUNCH((maxpool_backward_kernel<T, N>), grid_of(pixels * (d->c / N), CUDA_THREADS),
			CUDA_THREADS, 0, s);
	else
		CUDA_LAUNCH((maxpool_backward_kernel<T, 1>), grid_of(pixels * d->c, CUDA_THREADS),
			CUDA_THREADS, 0, s);
}

CUDA_EXPORT(maxpool, (const struct backend_pool *d), (d))
CUDA_EXPORT(maxpool_backward, (const struct backend_pool *d), (d))

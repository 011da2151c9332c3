/* SPDX-License-Identifier: Apache-2.0
 * 2x2 max pooling with stride 2, channels last. Odd last rows and columns are dropped; their
 * gradient is zero. */
#include "workers/engine/cpu/isa.h"

#include <string.h>

void CPU_FN(maxpool_forward)(
	int64_t n, int64_t h, int64_t w, int64_t c, const float *x, float *y, uint8_t *which)
{
	int64_t oh = h / 2, ow = w / 2;
#pragma omp parallel for schedule(static)
	for (int64_t row = 0; row < n * oh; row++) {
		const float *top = x + (row / oh * h + row % oh * 2) * w * c;
		for (int64_t col = 0; col < ow; col++) {
			const float *a = top + 2 * col * c, *b = a + c, *p = a + w * c, *q = p + c;
			float *restrict out = y + (row * ow + col) * c;
			uint8_t *restrict from = which + (row * ow + col) * c;
#pragma omp simd
			for (int64_t i = 0; i < c; i++) {
				float best = a[i];
				uint8_t k = 0;
				k = b[i] > best ? 1 : k;
				best = b[i] > best ? b[i] : best;
				k = p[i] > best ? 2 : k;
				best = p[i] > best ? p[i] : best;
				k = q[i] > best ? 3 : k;
				best = q[i] > best ? q[i] : best;
				out[i] = best;
				from[i] = k;
			}
		}
	}
}

static void backward_pair(int64_t w, int64_t c, const float *dy, const uint8_t *which, float *dx)
{
	for (int64_t col = 0; col < w / 2; col++) {
		const float *restrict g = dy + col * c;
		const uint8_t *restrict from = which + col * c;
		float *a = dx + 2 * col * c, *b = a + c, *p = a + w * c, *q = p + c;
#pragma omp simd
		for (int64_t i = 0; i < c; i++) {
			a[i] = from[i] == 0 ? g[i] : 0.0f;
			b[i] = from[i] == 1 ? g[i] : 0.0f;
			p[i] = from[i] == 2 ? g[i] : 0.0f;
			q[i] = from[i] == 3 ? g[i] : 0.0f;
		}
	}
	if (w % 2) {
		memset(dx + (w - 1) * c, 0, (size_t)c * sizeof(float));
		memset(dx + (2 * w - 1) * c, 0, (size_t)c * sizeof(float));
	}
}

void CPU_FN(maxpool_backward)(
	int64_t n, int64_t h, int64_t w, int64_t c, const float *dy, const uint8_t *which, float *dx)
{
	int64_t oh = h / 2, ow = w / 2;
#pragma omp parallel for schedule(static)
	for (int64_t row = 0; row < n * oh; row++)
		backward_pair(w, c, dy + row * ow * c, which + row * ow * c,
			dx + (row / oh * h + row % oh * 2) * w * c);
	if (h % 2)
		for (int64_t i = 0; i < n; i++)
			memset(dx + ((i + 1) * h - 1) * w * c, 0, (size_t)(w * c) * sizeof(float));
}

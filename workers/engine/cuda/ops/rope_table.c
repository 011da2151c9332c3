/* SPDX-License-Identifier: Apache-2.0
 * The table of angles that rope.cu reads: a row for each position, half a head of cosines, then of
 * sines. Computed here in double, once, when an engine is made, so that both devices turn by the
 * same angles. Called through the backend's table. */
#include "core/base/attr.h"
#include "workers/engine/cuda/cuda.h"

#include <math.h>
#include <stdlib.h>

enum { ROPE_PUT_BYTES = 1024 * 1024 }; /* at a time, or one row */

void rope_table_cuda(int64_t t, int64_t head_size, double theta, float *table);

void rope_table_cuda(int64_t t, int64_t head_size, double theta, float *table)
{
	int64_t half = head_size / 2, row_bytes = head_size * (int64_t)sizeof(float);
	int64_t per = ROPE_PUT_BYTES / row_bytes > 0 ? ROPE_PUT_BYTES / row_bytes : 1;
	cleanup(freep) float *rows = calloc((size_t)(per < t ? per : t), (size_t)row_bytes);
	if (!rows) {
		cuda_failed(cudaErrorMemoryAllocation, "rope_table");
		return;
	}
	for (int64_t first = 0; first < t; first += per) {
		int64_t count = t - first < per ? t - first : per;
		for (int64_t p = 0; p < count; p++)
			for (int64_t i = 0; i < half; i++) {
				double angle =
					(double)(first + p) * pow(theta, -2.0 * (double)i / (double)head_size);
				rows[p * head_size + i] = (float)cos(angle);
				rows[p * head_size + half + i] = (float)sin(angle);
			}
		cuda_put(table + first * head_size, rows, count * row_bytes);
	}
}

/* SPDX-License-Identifier: Apache-2.0
 * The table of angles that rope.c reads: a row for each position, half a head of cosines, then of
 * sines. Filled once, when an engine is made. */
#include "workers/engine/cpu/isa.h"

#include <math.h>

void CPU_PLAIN(rope_table)(int64_t t, int64_t head_size, double theta, float *table)
{
	int64_t half = head_size / 2;
#pragma omp parallel for schedule(static) if (t * head_size > CPU_PARALLEL_MIN)
	for (int64_t p = 0; p < t; p++)
		for (int64_t i = 0; i < half; i++) {
			double angle = (double)p * pow(theta, -2.0 * (double)i / (double)head_size);
			table[p * head_size + i] = (float)cos(angle);
			table[p * head_size + half + i] = (float)sin(angle);
		}
}

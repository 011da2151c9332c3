/* SPDX-License-Identifier: Apache-2.0
 * SwiGLU: y = silu(gate) * up, where a row holds the gates, then the ups. Called through the
 * backend's table. */
#include "workers/engine/cpu/ops/act.h"

void CPU_FN(swiglu_forward)(int64_t rows, int64_t inner, const void *gate_up, void *y)
{
#pragma omp parallel for schedule(static) if (rows * inner > CPU_PARALLEL_MIN)
	for (int64_t r = 0; r < rows; r++) {
		const act_t *gate = (const act_t *)gate_up + r * 2 * inner, *up = gate + inner;
		act_t *to = (act_t *)y + r * inner;
		for (int64_t i = 0; i < inner; i += SIMD_WIDTH) {
			simd_f32 g = act_load_upto(gate + i, inner - i), u = act_load_upto(up + i, inner - i);
			act_store_upto(to + i, g / (1.0f + simd_exp(-g)) * u, inner - i);
		}
	}
}

void CPU_FN(swiglu_backward)(
	int64_t rows, int64_t inner, const void *gate_up, const void *dy, void *d_gate_up)
{
#pragma omp parallel for schedule(static) if (rows * inner > CPU_PARALLEL_MIN)
	for (int64_t r = 0; r < rows; r++) {
		const act_t *gate = (const act_t *)gate_up + r * 2 * inner, *up = gate + inner;
		const act_t *grad = (const act_t *)dy + r * inner;
		act_t *dgate = (act_t *)d_gate_up + r * 2 * inner, *dup = dgate + inner;
		for (int64_t i = 0; i < inner; i += SIMD_WIDTH) {
			int64_t n = inner - i;
			simd_f32 g = act_load_upto(gate + i, n), u = act_load_upto(up + i, n);
			simd_f32 d = act_load_upto(grad + i, n);
			simd_f32 e = simd_exp(-g), s = 1.0f / (1.0f + e), silu = g * s;
			/* e s = 1 - s, exact also where s is about 1 */
			act_store_upto(dgate + i, d * u * (s + silu * (e * s)), n);
			act_store_upto(dup + i, d * silu, n);
		}
	}
}

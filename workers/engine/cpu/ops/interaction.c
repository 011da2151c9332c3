/* SPDX-License-Identifier: Apache-2.0
 * Dot products of all pairs of a sample's features. z is [samples, F, D]; y is [samples, D +
 * F(F-1)/2]: the dense feature, then z_i . z_j for i > j, row by row. A sample's products are one
 * small matrix in the cache. */
#include "core/spec/spec.h"
#include "workers/engine/cpu/ops/lanes.h"

enum {
	INTERACTION_F_MAX = SPEC_TABLES_MAX + 1,
	INTERACTION_F_PAD = (INTERACTION_F_MAX + SIMD_WIDTH - 1) / SIMD_WIDTH * SIMD_WIDTH,
	INTERACTION_D_BLOCK = 64, /* of a feature at a time */
};

struct interaction_scratch {
	float z[INTERACTION_F_PAD * INTERACTION_D_BLOCK];      /* [F][block] */
	float across[INTERACTION_D_BLOCK * INTERACTION_F_PAD]; /* [block][F padded] */
	float pairs[INTERACTION_F_PAD * INTERACTION_F_PAD];    /* [F][F padded] */
};

static int64_t padded(int64_t features)
{
	return (features + SIMD_WIDTH - 1) / SIMD_WIDTH * SIMD_WIDTH;
}

/* n units of each feature from `first` on as fp32; the rest of the block's rows is 0. */
static void block_load(const act_t *z, int64_t features, int64_t d, int64_t first, int64_t n,
	struct interaction_scratch *s)
{
	for (int64_t f = 0; f < features; f++)
		for (int64_t i = 0; i < INTERACTION_D_BLOCK; i += SIMD_WIDTH) {
			simd_f32 v = { 0 };
			if (i < n)
				v = act_load_upto(z + f * d + first + i, n - i);
			simd_store(s->z + f * INTERACTION_D_BLOCK + i, v);
		}
}

static void sample_forward(
	const act_t *z, int64_t features, int64_t d, act_t *y, struct interaction_scratch *s)
{
	int64_t pad = padded(features);
	for (int64_t first = 0; first < d; first += INTERACTION_D_BLOCK) {
		int64_t n = d - first < INTERACTION_D_BLOCK ? d - first : INTERACTION_D_BLOCK;
		block_load(z, features, d, first, n, s);
		for (int64_t i = 0; i < n; i++)
			for (int64_t f = 0; f < pad; f++)
				s->across[i * pad + f] = f < features ? s->z[f * INTERACTION_D_BLOCK + i] : 0.0f;
		simd_gemm(features, pad, n, s->z, INTERACTION_D_BLOCK, 1, s->across, pad, s->pairs, pad,
			first > 0);
		for (int64_t i = 0; i < n; i++)
			act_set(y + first + i, s->z[i]);
	}
	act_t *out = y + d;
	for (int64_t i = 1; i < features; i++) {
		for (int64_t j = 0; j < i; j += SIMD_WIDTH)
			act_store_upto(out + j, simd_load(s->pairs + i * pad + j), i - j);
		out += i;
	}
}

void CPU_FN(interaction_forward)(
	int64_t samples, int64_t features, int64_t d, const void *z, void *y)
{
	int64_t width = d + features * (features - 1) / 2;
#pragma omp parallel for schedule(static) if (samples * features * d > CPU_PARALLEL_MIN)
	for (int64_t i = 0; i < samples; i++) {
		struct interaction_scratch s;
		sample_forward(
			(const act_t *)z + i * features * d, features, d, (act_t *)y + i * width, &s);
	}
}

/* dz = S z, where S is symmetric with the pairs' gradients. The dense feature has its own too, and
 * is the output of a ReLU. */
static void sample_backward(const act_t *z, const act_t *dy, int64_t features, int64_t d, act_t *dz,
	struct interaction_scratch *s)
{
	const act_t *in = dy + d;
	for (int64_t i = 0; i < features; i++) {
		for (int64_t j = 0; j < i; j++)
			s->pairs[i * features + j] = s->pairs[j * features + i] = act_get(in + j);
		s->pairs[i * features + i] = 0;
		in += i;
	}
	for (int64_t first = 0; first < d; first += INTERACTION_D_BLOCK) {
		int64_t n = d - first < INTERACTION_D_BLOCK ? d - first : INTERACTION_D_BLOCK;
		block_load(z, features, d, first, n, s);
		float *out = s->across;
		simd_gemm(features, INTERACTION_D_BLOCK, features, s->pairs, features, 1, s->z,
			INTERACTION_D_BLOCK, out, INTERACTION_D_BLOCK, 0);
		for (int64_t f = 0; f < features; f++)
			for (int64_t i = 0; i < n; i += SIMD_WIDTH) {
				simd_f32 v = simd_load(out + f * INTERACTION_D_BLOCK + i);
				if (f == 0)
					v = lanes_keep(act_load_upto(z + first + i, n - i) > (simd_f32){ 0 },
						v + act_load_upto(dy + first + i, n - i));
				act_store_upto(dz + f * d + first + i, v, n - i);
			}
	}
}

void CPU_FN(interaction_backward)(
	int64_t samples, int64_t features, int64_t d, const void *z, const void *dy, void *dz)
{
	int64_t width = d + features * (features - 1) / 2;
#pragma omp parallel for schedule(static) if (samples * features * d > CPU_PARALLEL_MIN)
	for (int64_t i = 0; i < samples; i++) {
		struct interaction_scratch s;
		sample_backward((const act_t *)z + i * features * d, (const act_t *)dy + i * width,
			features, d, (act_t *)dz + i * features * d, &s);
	}
}

/* SPDX-License-Identifier: Apache-2.0
 * PLAN_OP_ROUND: masters into bf16 weights, up or down by chance (backend.h). Called through the
 * backend's table. */
#include "workers/engine/cpu/ops/act.h"
#include "workers/engine/cpu/ops/random.h"

/* A value of act_t, in fp32. Of 2^16 equally likely numbers, as many as x is steps of 2^-16 beyond
 * the neighbour nearer to 0 carry over into the bits that stay. */
CPU_INLINE simd_f32 round_by(simd_f32 x, simd_u32 random)
{
#if CPU_TYPE_IS(bf16)
	simd_u32 u = (simd_u32)x;
	simd_f32 rounded = (simd_f32)((u + (random >> 16)) & 0xffff0000u);
	return simd_select((simd_i32)((u & 0x7fffffffu) > 0x7f800000u), x, rounded);
#else
	return x;
#endif
}

static void round_range(int64_t index, int64_t count, uint64_t key, const float *x, act_t *y)
{
	uint64_t k = random_key(key, index);
	for (int64_t i = 0; i < count; i += SIMD_WIDTH)
		act_store_upto(y + i, round_by(simd_load_upto(x + i, count - i), random_bits(index + i, k)),
			count - i);
}

/* Elements [begin, end), piece by piece. */
static void round_block(const struct backend_round *d, int64_t begin, int64_t end)
{
	act_t *y = d->y;
	for (int64_t i = begin; i < end;) {
		int64_t index = plan_cut_at(&d->cut, d->begin + i);
		int64_t count = random_piece(&d->cut, d->begin + i, index, end - i);
		round_range(index, count, d->key, d->x + i, y + i);
		i += count;
	}
}

void CPU_FN(round_random)(const struct backend_round *d)
{
#pragma omp parallel for schedule(static) if (d->count > CPU_PARALLEL_MIN)
	for (int64_t begin = 0; begin < d->count; begin += ACT_BLOCK)
		round_block(d, begin, act_block_end(begin, d->count));
}

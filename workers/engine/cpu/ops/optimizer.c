/* SPDX-License-Identifier: Apache-2.0
 * AdamW and SGD over the flat parameters: one pass over memory, which also rounds the new values
 * into the low-precision weights. Called through the backend's table. */
#include "workers/engine/cpu/ops/act.h"

#include <omp.h>

/* One vector's worth of updates of element at + i; n values. */
struct update_at {
	int64_t i, n;
	act_t *weights; /* NULL = none */
};

CPU_INLINE void store_weight(const struct update_at *at, float *w, simd_f32 v)
{
	simd_store_upto(w + at->i, v, at->n);
	if (at->weights)
		act_store_upto(at->weights + at->i, v, at->n);
}

CPU_INLINE void adamw_step(
	const struct backend_update *d, const struct update_at *at, float step, float shrink)
{
	int64_t i = at->i, n = at->n;
	simd_f32 g = simd_load_upto(d->g + i, n) * d->grad_scale;
	simd_f32 m = d->beta1 * simd_load_upto(d->m + i, n) + (1.0f - d->beta1) * g;
	simd_f32 v = d->beta2 * simd_load_upto(d->v + i, n) + (1.0f - d->beta2) * (g * g);
	simd_f32 w = simd_load_upto(d->w + i, n);
	simd_store_upto(d->m + i, m, n);
	simd_store_upto(d->v + i, v, n);
	simd_f32 by = simd_sqrt(v * d->correct2) + d->eps;
	store_weight(at, d->w, w - (step * m / by + shrink * w));
}

CPU_INLINE void sgd_step(
	const struct backend_update *d, const struct update_at *at, float decay, const bool momentum)
{
	int64_t i = at->i, n = at->n;
	simd_f32 w = simd_load_upto(d->w + i, n);
	simd_f32 g = simd_load_upto(d->g + i, n) * d->grad_scale + decay * w;
	if (momentum) {
		g += d->momentum * simd_load_upto(d->m + i, n);
		simd_store_upto(d->m + i, g, n);
	}
	store_weight(at, d->w, w - d->learning_rate * g);
}

enum update_rule { RULE_ADAMW, RULE_SGD, RULE_MOMENTUM };

/* Elements [begin, end) of a segment. */
CPU_INLINE void update_range(const struct backend_update *d, const struct backend_segment *s,
	int64_t begin, int64_t end, const enum update_rule rule)
{
	act_t *weights =
		d->weights && s->weights >= 0 ? (act_t *)d->weights + (s->weights - s->begin) : NULL;
	float step = d->learning_rate * d->correct1, shrink = d->learning_rate * s->decay;
	for (int64_t i = begin; i < end; i += SIMD_WIDTH) {
		struct update_at at = { i, end - i, weights };
		if (rule == RULE_ADAMW)
			adamw_step(d, &at, step, shrink);
		else
			sgd_step(d, &at, s->decay, rule == RULE_MOMENTUM);
	}
}

/* The blocks of all segments, numbered through, are divided evenly: a thread's share may begin and
 * end inside a segment, but a block's vectors begin where its segment says. */
CPU_INLINE void update_share(
	const struct backend_update *d, int64_t first, int64_t last, const enum update_rule rule)
{
	int64_t at = 0; /* number of the segment's first block */
	for (int s = 0; s < d->segment_count && at < last; s++) {
		const struct backend_segment *seg = &d->segments[s];
		int64_t blocks = (seg->end - seg->begin + ACT_BLOCK - 1) / ACT_BLOCK;
		int64_t from = first > at ? first - at : 0;
		int64_t to = last - at < blocks ? last - at : blocks;
		if (from < to) {
			int64_t end = seg->begin + to * ACT_BLOCK;
			update_range(
				d, seg, seg->begin + from * ACT_BLOCK, end < seg->end ? end : seg->end, rule);
		}
		at += blocks;
	}
}

CPU_INLINE void update_all(const struct backend_update *d, const enum update_rule rule)
{
	int64_t blocks = 0, elements = 0;
	for (int s = 0; s < d->segment_count; s++) {
		elements += d->segments[s].end - d->segments[s].begin;
		blocks += (d->segments[s].end - d->segments[s].begin + ACT_BLOCK - 1) / ACT_BLOCK;
	}
#pragma omp parallel if (elements > CPU_PARALLEL_MIN)
	{
		int64_t threads = omp_get_num_threads(), me = omp_get_thread_num();
		update_share(d, blocks * me / threads, blocks * (me + 1) / threads, rule);
	}
}

void CPU_FN(adamw_update)(const struct backend_update *d)
{
	update_all(d, RULE_ADAMW);
}

void CPU_FN(sgd_update)(const struct backend_update *d)
{
	update_all(d, d->m ? RULE_MOMENTUM : RULE_SGD);
}

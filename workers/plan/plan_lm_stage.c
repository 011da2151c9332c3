/* SPDX-License-Identifier: Apache-2.0
 * Which layers of a language model a rank of a pipeline has. Called by the family files, before and
 * while they add parameters. */
#include "workers/plan/plan_lm.h"

enum { LAYERS_MAX = 512 };

/* Multiply-adds of products for one row, of a layer and of the head: what takes the time. Looking
 * up an embedding takes next to none of it. */
static double layer_cost(const struct plan_lm *lm)
{
	double c = (double)lm->c, heads = (double)lm->heads, kv = (double)lm->kv_heads;
	double size = (double)lm->head_size, inner = (double)lm->inner;
	double products = c * (heads + 2 * kv) * size + heads * size * c;
	products += (lm->gated ? 3 : 2) * c * inner;
	return products + (double)lm->t * heads * size; /* attention: half of two squares */
}

static double head_cost(const struct plan_lm *lm)
{
	return (double)lm->c * (double)lm->vocab;
}

/* A layer goes to the stage that has least to do; of several, to the latest, which has the fewest
 * micro-batches under way. */
static void split(const struct plan_lm *lm, int stages, int count[static LAYERS_MAX])
{
	double layer = layer_cost(lm), head = head_cost(lm);
	for (int s = 0; s < stages; s++)
		count[s] = 1;
	for (int i = stages; i < lm->layer_count; i++) {
		int best = 0;
		double least = layer * count[0];
		for (int s = 1; s < stages; s++) {
			double cost = layer * count[s] + (s == stages - 1 ? head : 0);
			if (cost <= least) {
				best = s;
				least = cost;
			}
		}
		count[best]++;
	}
}

static bool enough(const struct plan_lm *lm, int64_t stages)
{
	const struct plan_mesh *m = &lm->b->p->mesh;
	if (lm->layer_count >= stages)
		return true;
	if (lm->layer_count < m->pipeline)
		plan_build_fail(lm->b, ERR_INVALID_VALUE, "$.parallelism.pipeline",
			"$.parallelism.pipeline: each of the %d ranks needs a layer, and the model has %d",
			m->pipeline, lm->layer_count);
	else
		plan_build_fail(lm->b, ERR_INVALID_VALUE, "$.parallelism.interleave",
			"$.parallelism.interleave: %d stages on each of %d ranks need a layer each, and the "
			"model has %d",
			m->chunks, m->pipeline, lm->layer_count);
	return false;
}

void plan_lm_stages(struct plan_lm *lm)
{
	struct plan *p = lm->b->p;
	int stages = p->mesh.pipeline * p->mesh.chunks, count[LAYERS_MAX], first = 0;
	if (lm->b->code || lm->layer_count > LAYERS_MAX || !enough(lm, stages))
		return;
	split(lm, stages, count);
	p->chunk_count = p->mesh.chunks;
	for (int s = 0; s < stages; s++) {
		struct plan_chunk *c = &p->chunks[s / p->mesh.pipeline];
		if (s % p->mesh.pipeline == p->mesh.pipeline_rank) {
			c->first_layer = first;
			c->layer_count = count[s];
			c->slots =
				p->mesh.pipeline > 1 ? plan_schedule_slots(&p->schedule, s / p->mesh.pipeline) : 1;
		}
		first += count[s];
	}
}

static bool has_first(const struct plan *p)
{
	return p->mesh.pipeline_rank == 0;
}

static bool has_last(const struct plan *p)
{
	return p->mesh.pipeline_rank == p->mesh.pipeline - 1;
}

void plan_lm_at_embedding(struct plan_lm *lm, bool is_head)
{
	struct plan_build *b = lm->b;
	b->ends = is_head && b->p->mesh.pipeline > 1;
	b->elsewhere = !has_first(b->p) && !(is_head && has_last(b->p));
	b->chunk = has_first(b->p) ? 0 : b->p->chunk_count - 1;
}

void plan_lm_at_layer(struct plan_lm *lm, int i)
{
	struct plan_build *b = lm->b;
	b->ends = false;
	b->elsewhere = true;
	for (int c = 0; c < b->p->chunk_count; c++) {
		const struct plan_chunk *k = &b->p->chunks[c];
		if (i < k->first_layer || i >= k->first_layer + k->layer_count)
			continue;
		b->elsewhere = false;
		b->chunk = c;
	}
}

void plan_lm_at_head(struct plan_lm *lm)
{
	struct plan_build *b = lm->b;
	b->ends = false;
	b->elsewhere = !has_last(b->p);
	b->chunk = b->p->chunk_count - 1;
}

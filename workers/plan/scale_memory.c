/* SPDX-License-Identifier: Apache-2.0
 * Memory of the fullest rank, by kind, with the plan's own bytes: bf16 weights, fp32 gradients,
 * masters and moments are 18 bytes a parameter, not the 16 of papers whose gradients are bf16.
 * Called by the estimate. */
#include "workers/plan/scale_private.h"

#include <math.h>

const char *scale_memory_word(enum scale_memory kind)
{
	static const char *const words[] = { "weights", "gradients", "optimizer", "activations",
		"workspace" };
	return words[kind];
}

static void add(struct scale_state *to, const struct scale_state *s, double times)
{
	to->weights += times * s->weights;
	to->gradients += times * s->gradients;
	to->optimizer += times * s->optimizer;
	to->trained += times * s->trained;
	to->all += times * s->all;
}

/* Tensor parallel splits every matrix t ways; the vectors that it does not split are nothing beside
 * them. A tied head on a stage of its own is a second copy of the embedding [N21]. */
static struct scale_state stage_state(const struct scale_model *m, const struct scale_mesh *mesh,
	int64_t layers, bool first, bool last)
{
	struct scale_state s = { 0 };
	double share = 1.0 / mesh->tensor;
	add(&s, &m->state[SCALE_LAYER], share * (double)layers);
	add(&s, &m->state[SCALE_FIRST], first || (last && m->tied) ? share : 0);
	add(&s, &m->state[SCALE_LAST], last ? share : 0);
	return s;
}

struct scale_state scale_stage_state(
	const struct scale_model *m, const struct scale_mesh *mesh, const struct scale_stages *s)
{
	return stage_state(m, mesh, s->layers, s->first, s->last);
}

/* 1F1B: the first stage holds p micro-batches, or all there are; interleaved
 * 1 + (p-1)/(p v) times as many [K22, MC theoretical_memory_usage]. */
static double in_flight(int64_t micro_steps, const struct scale_mesh *mesh)
{
	double p = mesh->pipeline;
	double n = fmin((double)micro_steps, p);
	return mesh->interleave > 1 ? n * (1 + (p - 1) / (p * mesh->interleave)) : n;
}

/* ZeRO-3 holds the weights of the layer that computes and of the one that is being fetched, ZeRO-2
 * and 3 as many whole gradients that wait for their reduction; the head counts as a layer. */
static double transient_bytes(const struct scale_model *m, const struct scale_mesh *mesh)
{
	if (mesh->zero < 2)
		return 0;
	const struct scale_state *layer = &m->state[SCALE_LAYER];
	const struct scale_state *head = &m->state[m->tied ? SCALE_FIRST : SCALE_LAST];
	double weights = fmax(2 * layer->weights, layer->weights + head->weights);
	double gradients = fmax(2 * layer->gradients, layer->gradients + head->gradients);
	return ((mesh->zero > 2 ? weights : 0) + gradients) / mesh->tensor;
}

static double total(const double *memory)
{
	double sum = 0;
	for (int i = 0; i < SCALE_MEMORY_COUNT; i++)
		sum += memory[i];
	return sum;
}

/* [Z]: of weights, gradients and optimizer's state what the level splits is divided by d.
 * Activations: what the plan keeps for the backward pass, split t ways by sequence parallelism
 * [K22]; at the peak its working set beside them. */
static void rank_memory(const struct scale_model *m, const struct scale_cluster *c,
	const struct scale_mesh *mesh, const struct scale_state *s, double kept, double *memory)
{
	const struct scale_way *way = &m->way[mesh->checkpointing];
	double b = (double)mesh->micro_batch, t = mesh->tensor, d = mesh->data;
	memory[SCALE_WEIGHTS] = s->weights / (mesh->zero > 2 ? d : 1);
	memory[SCALE_GRADIENTS] = s->gradients / (mesh->zero > 1 ? d : 1);
	memory[SCALE_OPTIMIZER] = s->optimizer / (mesh->zero > 0 ? d : 1);
	memory[SCALE_ACTIVATIONS] = kept * b / t;
	memory[SCALE_WORKSPACE] = way->working_fixed + way->working_sample * b / t +
		transient_bytes(m, mesh) + c->device.context_bytes;
}

/* The first stage has the embedding and the most micro-batches in flight, the last the head. */
void scale_memory_estimate(const struct scale_model *m, const struct scale_cluster *c,
	const struct scale_mesh *mesh, const struct scale_stages *s, struct scale_cost *cost)
{
	const struct scale_way *way = &m->way[mesh->checkpointing];
	bool whole = mesh->pipeline == 1;
	double layers = way->kept_layer * (double)s->layers;
	struct scale_state first = stage_state(m, mesh, s->layers, true, whole);
	double kept = layers * in_flight(scale_micro_steps(m, mesh), mesh) + way->kept_rest;
	rank_memory(m, c, mesh, &first, kept, cost->memory);
	cost->memory_bytes = total(cost->memory);
	if (!whole) {
		double other[SCALE_MEMORY_COUNT];
		struct scale_state last = stage_state(m, mesh, s->layers, false, true);
		rank_memory(m, c, mesh, &last, layers + way->kept_rest, other);
		if (total(other) > cost->memory_bytes) {
			for (int i = 0; i < SCALE_MEMORY_COUNT; i++)
				cost->memory[i] = other[i];
			cost->memory_bytes = total(other);
		}
	}
	cost->fits = cost->memory_bytes <= c->device.memory_bytes;
}

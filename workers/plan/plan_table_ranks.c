/* SPDX-License-Identifier: Apache-2.0
 * What a rank sends in a step, and what is computed meanwhile: the part of the plan's table that a
 * mesh has. Called by plan_table.c. */
#include "workers/plan/plan_table_private.h"

#include <stdio.h>
#include <string.h>

enum { CALLS_MAX = SPEC_TABLES_MAX + 16 };

/* Calls of one kind and name, all of a step. */
struct calls {
	const struct plan_op *op;
	double times, wire_bytes, flops; /* flops: of operations between the starts and the waits */
};

static bool is_call(enum plan_op_kind kind)
{
	return kind == PLAN_OP_ALL_REDUCE || kind == PLAN_OP_REDUCE_SCATTER ||
		kind == PLAN_OP_ALL_GATHER || kind == PLAN_OP_ALL_TO_ALL || kind == PLAN_OP_SEND;
}

/* What is computed until the call is waited for. A send is waited for in the next section of its
 * kind: all of another. */
static double beside(const struct plan *p, int start)
{
	double flops = 0;
	if (p->ops[start].kind == PLAN_OP_SEND)
		return p->flops_per_step / (double)p->micro_steps / p->chunk_count;
	for (int i = start + 1; i < p->op_count; i++) {
		const struct plan_op *op = &p->ops[i];
		if (op->kind == PLAN_OP_WAIT && op->ticket == p->ops[start].ticket)
			break;
		flops += op->flops;
	}
	return flops;
}

static double times_of(const struct plan *p, const struct plan_op *op)
{
	return op->phase == PLAN_OPTIMIZE || op->last_micro ? 1 : (double)p->micro_steps;
}

static void add(struct calls *list, int *count, const struct plan *p, int index)
{
	const struct plan_op *op = &p->ops[index];
	int i = 0;
	while (i < *count &&
		(list[i].op->kind != op->kind || list[i].op->phase != op->phase ||
			strcmp(list[i].op->name, op->name) != 0))
		i++;
	if (i == CALLS_MAX)
		return;
	if (i == *count)
		list[(*count)++] = (struct calls){ .op = op };
	list[i].times += times_of(p, op);
	list[i].wire_bytes += times_of(p, op) * op->wire_bytes;
	list[i].flops += times_of(p, op) * beside(p, index);
}

/* What a pipeline's rank has, and for how much of a step it waits. */
static void write_stages(const struct plan *p, struct buf *out)
{
	const struct plan_mesh *m = &p->mesh;
	if (m->pipeline == 1)
		return;
	buf_printf(out, "\nStages of the pipeline on this rank:\n%6s %-10s %s\n", "stage", "layers",
		"micro-batches under way");
	for (int c = 0; c < p->chunk_count; c++) {
		const struct plan_chunk *k = &p->chunks[c];
		char layers[32];
		snprintf(layers, sizeof(layers), "%d to %d", k->first_layer,
			k->first_layer + k->layer_count - 1);
		buf_printf(out, "%6d %-10s %lld\n", c * m->pipeline + m->pipeline_rank, layers,
			(long long)k->slots);
	}
	buf_printf(out, "Bubble: %.1f%% of a step, were all stages as long as each other.\n",
		100 * plan_schedule_bubble(&p->schedule));
}

void plan_table_ranks(const struct plan *p, struct buf *out)
{
	const struct plan_mesh *m = &p->mesh;
	struct calls list[CALLS_MAX];
	int count = 0;
	if (plan_mesh_size(m) == 1)
		return;
	for (int i = 0; i < p->op_count; i++)
		if (is_call(p->ops[i].kind))
			add(list, &count, p, i);
	buf_printf(out,
		"\nRank %d of %d: data %d x tensor %d x pipeline %d, ZeRO stage %d. All above is this "
		"rank's. Sent to the\nothers in a step, and what this rank computes until it waits for "
		"them:\n",
		plan_mesh_rank(m), plan_mesh_size(m), m->data, m->tensor, m->pipeline, m->zero);
	buf_printf(
		out, "%6s %9s %9s  %-10s %-16s %s\n", "times", "MB", "GFLOP", "phase", "operation", "name");
	for (int i = 0; i < count; i++)
		buf_printf(out, "%6.0f %9.3g %9.3g  %-10s %-16s %s\n", list[i].times,
			list[i].wire_bytes * 1e-6, list[i].flops * 1e-9, plan_phase_word(list[i].op->phase),
			plan_op_word(list[i].op->kind), list[i].op->name);
	write_stages(p, out);
}

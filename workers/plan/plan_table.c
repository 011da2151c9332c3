/* SPDX-License-Identifier: Apache-2.0
 * A plan as text for people. Operations of the same kind whose names differ in numbers alone (the
 * layers of a model) are one row. Called by the trainer's plan command. */
#include "workers/plan/plan_table.h"

#include "workers/plan/plan_table_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	GROUPS_MAX = 512,
	ROWS_MAX = 16,
	NUMBER_MAX = 32, /* an int64 in groups of three */
};

static const double MIB = 1024.0 * 1024.0;

/* All operations of a step that are the same but for numbers in their names. */
struct group {
	char name[PLAN_NAME_MAX];
	enum plan_op_kind kind;
	bool recompute;
	int count;
	double flops, bytes, seconds;
};

/* 124439808 as "124,439,808". */
static const char *number(int64_t v, char text[static NUMBER_MAX])
{
	char digits[NUMBER_MAX];
	int len = snprintf(digits, sizeof(digits), "%lld", (long long)v);
	int at = 0;
	for (int i = 0; i < len; i++) {
		if (i > 0 && (len - i) % 3 == 0)
			text[at++] = ',';
		text[at++] = digits[i];
	}
	text[at] = '\0';
	return text;
}

static bool is_language(const struct plan *p)
{
	return p->family == SPEC_GPT2 || p->family == SPEC_LLAMA;
}

static void write_sizes(const struct plan *p, struct buf *out)
{
	char a[NUMBER_MAX], b[NUMBER_MAX];
	buf_printf(out, "precision        %s\n", p->tf32 ? "tf32" : plan_type_word(p->type));
	buf_printf(out, "parameters       %s, of them trained %s\n", number(p->parameter_count, a),
		number(p->trained_count, b));
	buf_printf(out, "batch            %lld (micro-batches: %lld of %lld)", (long long)p->batch,
		(long long)p->micro_steps, (long long)p->micro_batch);
	if (is_language(p))
		buf_printf(out, ", sequences of %s tokens", number(p->sequence_length, a));
	buf_printf(out, "\nsteps            %s\n",
		p->total_steps > 0 ? number(p->total_steps, a) : "known with the data");
}

static void write_memory(const struct plan *p, struct buf *out)
{
	char a[NUMBER_MAX];
	buf_printf(out, "\n%-16s %20s %14s\n", "memory", "bytes", "MiB");
	for (int k = 0; k < PLAN_KIND_COUNT; k++)
		buf_printf(out, "%-16s %20s %14.1f\n", plan_kind_word((enum plan_buffer_kind)k),
			number(p->kind_bytes[k], a), (double)p->kind_bytes[k] / MIB);
	buf_printf(out, "%-16s %20s %14.1f\n", "allocated", number(p->total_bytes, a),
		(double)p->total_bytes / MIB);
	int64_t shared = p->total_bytes;
	for (int i = 0; i < p->buffer_count; i++)
		if (p->buffers[i].first_op == 0 && p->buffers[i].last_op == p->op_count - 1)
			shared -= p->buffers[i].bytes;
	buf_printf(out,
		"What is never needed together shares bytes: activations and workspace take %.1f MiB.\n",
		(double)shared / MIB);
}

static void write_work(const struct plan *p, struct buf *out)
{
	bool language = is_language(p);
	buf_printf(
		out, "\nFLOPs\n  %-22s %.4g\n", language ? "per token" : "per sample", p->flops_per_token);
	if (language)
		buf_printf(out, "  %-22s %.4g\n", "per sequence", p->flops_per_sample);
	buf_printf(out, "  %-22s %.4g\n", "per step", p->flops_per_step);
	buf_printf(out, "  %-22s %.4g\n", "recomputed per step", p->recompute_flops_per_step);
	buf_printf(out, "  %-22s %.4g\n", "bytes moved per step", p->bytes_per_step);
	buf_printf(out, "Counted: %s.\n", PLAN_FLOP_CONVENTION);
}

/* "transformer.h.11.mlp.c_fc" as "transformer.h.*.mlp.c_fc". */
static void general_name(const char *name, char ret_name[static PLAN_NAME_MAX])
{
	size_t at = 0;
	bool start = true; /* of a component */
	while (*name && at + 1 < PLAN_NAME_MAX) {
		size_t digits = start ? strspn(name, "0123456789") : 0;
		bool whole = digits > 0 && (name[digits] == '.' || name[digits] == '\0');
		ret_name[at++] = whole ? '*' : *name;
		start = *name == '.';
		name += whole ? digits : 1;
	}
	ret_name[at] = '\0';
}

static void add(struct group *groups, int *count, const struct plan *p, const struct plan_op *op)
{
	struct group g = { .kind = op->kind, .recompute = op->recompute };
	general_name(op->name, g.name);
	int i = 0;
	while (i < *count &&
		(groups[i].kind != g.kind || groups[i].recompute != g.recompute ||
			strcmp(groups[i].name, g.name) != 0))
		i++;
	if (i >= GROUPS_MAX) { /* one more, for all that have no place */
		i = GROUPS_MAX;
		g = (struct group){ .name = "(others)", .kind = PLAN_OP_COUNT };
	}
	if (i == *count)
		groups[(*count)++] = g;
	double flops_rate =
		1e9 * (p->type == PLAN_F32 ? PLAN_TABLE_GFLOPS_F32 : PLAN_TABLE_GFLOPS_16BIT);
	double by_flops = op->flops / flops_rate, by_bytes = op->bytes / (1e9 * PLAN_TABLE_GBYTES);
	double times = op->phase == PLAN_OPTIMIZE ? 1 : (double)p->micro_steps;
	groups[i].count++;
	groups[i].flops += op->flops * times;
	groups[i].bytes += op->bytes * times;
	groups[i].seconds += (by_flops > by_bytes ? by_flops : by_bytes) * times;
}

static int longer(const void *a, const void *b)
{
	const struct group *x = a, *y = b;
	if (x->seconds != y->seconds)
		return x->seconds < y->seconds ? 1 : -1;
	int order = strcmp(x->name, y->name);
	return order ? order : (int)x->kind - (int)y->kind;
}

static void write_longest(
	const struct plan *p, const struct group *groups, int count, struct buf *out)
{
	double sum = 0;
	for (int i = 0; i < count; i++)
		sum += groups[i].seconds;
	int rate = p->type == PLAN_F32 ? PLAN_TABLE_GFLOPS_F32 : PLAN_TABLE_GFLOPS_16BIT;
	buf_printf(out,
		"\nLongest operations of a step, were it bound by %d GFLOP/s or %d GB/s alone (%.4g s in "
		"all):\n",
		rate, PLAN_TABLE_GBYTES, sum);
	buf_printf(out, "%6s %9s %6s %9s %9s  %-24s %s\n", "share", "ms", "times", "GFLOP", "MB",
		"operation", "name");
	for (int i = 0; i < count && i < ROWS_MAX; i++)
		buf_printf(out, "%5.1f%% %9.3g %6d %9.3g %9.3g  %-24s %s%s\n",
			100 * groups[i].seconds / sum, groups[i].seconds * 1e3, groups[i].count,
			groups[i].flops * 1e-9, groups[i].bytes * 1e-6,
			groups[i].kind < PLAN_OP_COUNT ? plan_op_word(groups[i].kind) : "", groups[i].name,
			groups[i].recompute ? " (again)" : "");
}

int plan_table_write(const struct plan *p, struct buf *out, struct err *err)
{
	cleanup(freep) struct group *groups = calloc(GROUPS_MAX + 1, sizeof(*groups));
	if (!groups)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for the table");
	int count = 0;
	for (int i = 0; i < p->op_count; i++)
		add(groups, &count, p, &p->ops[i]);
	qsort(groups, (size_t)count, sizeof(*groups), longer);
	write_sizes(p, out);
	write_memory(p, out);
	write_work(p, out);
	plan_table_ranks(p, out);
	write_longest(p, groups, count, out);
	return out->failed ? err_set(err, out->failed, NULL, "the table does not fit into its buffer")
					   : 0;
}

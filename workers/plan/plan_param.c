/* SPDX-License-Identifier: Apache-2.0
 * Parameters and sparse tables, with the buffers that role, precision and optimizer ask for (the
 * rules are in plan.h). Called by the family files. */
#include "core/base/num.h"
#include "workers/plan/plan_private.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* Most models need no more, and what is not written to costs nothing. */
enum { FIRST_CAP = 1024 };

static struct plan_param *append(struct plan_build *b)
{
	struct plan *p = b->p;
	if (b->code)
		return NULL;
	if (p->param_count == b->param_cap) {
		int next = b->param_cap ? b->param_cap * 2 : FIRST_CAP;
		void *mem = p->param_count < PLAN_BUFFERS_MAX
			? realloc(p->params, (size_t)next * sizeof(*p->params))
			: NULL;
		if (!mem) {
			plan_build_fail(b, ERR_NO_MEMORY, NULL, "no memory for the plan");
			return NULL;
		}
		p->params = mem;
		b->param_cap = next;
	}
	return &p->params[p->param_count];
}

static void add_optimizer(struct plan_build *b, struct plan_param *pr)
{
	const struct spec_hyper *h = &b->spec->hyper;
	bool adam = h->optimizer == SPEC_ADAMW;
	if (adam || h->momentum > 0)
		pr->moment1 = plan_build_again(b, PLAN_OPTIMIZER, PLAN_F32, pr->count, pr->weight);
	if (adam)
		pr->moment2 = plan_build_again(b, PLAN_OPTIMIZER, PLAN_F32, pr->count, pr->weight);
	if (h->ema_decay > 0)
		pr->average = plan_build_again(b, PLAN_OPTIMIZER, PLAN_F32, pr->count, pr->weight);
}

/* Buffers that operations name until plan_parallel puts those of the bucket in their place. */
static void add_names(struct plan_build *b, struct plan_param *pr, enum plan_type type)
{
	pr->weight = plan_build_buffer(b, PLAN_WEIGHTS, type, pr->count, "%s", pr->name);
	pr->master = -1;
	if (pr->role == PLAN_TRAINED)
		pr->gradient = plan_build_buffer(b, PLAN_GRADIENTS, PLAN_F32, pr->count, "%s", pr->name);
}

static int keep(struct plan_build *b, struct plan_param pr)
{
	struct plan_param *at = append(b);
	if (b->code)
		return -1;
	*at = pr;
	return b->p->param_count++;
}

/* Of the model, whoever keeps it. */
static void count_whole(struct plan_build *b, const struct plan_param *pr)
{
	int64_t whole = 1;
	if (b->code)
		return; /* what is too large has no product */
	for (int i = 0; i < pr->rank; i++)
		whole *= pr->shape[i];
	if (pr->role != PLAN_STATE)
		b->p->parameter_count += whole;
	if (pr->role == PLAN_TRAINED)
		b->p->trained_count += whole;
}

static int add(struct plan_build *b, struct plan_param pr)
{
	bool narrow = b->p->type != PLAN_F32 && pr.rank >= 2 && pr.role != PLAN_STATE && !pr.sparse;
	if (!b->units_named && pr.rank > 1)
		b->unit++;
	pr.unit = b->unit;
	pr.number = b->number++;
	count_whole(b, &pr);
	if (b->elsewhere)
		return -1;
	pr.chunk = b->chunk;
	pr.ends = b->ends;
	if (plan_bucket_wants(b->p, &pr)) {
		add_names(b, &pr, narrow ? b->p->type : PLAN_F32);
		return keep(b, pr);
	}
	pr.weight = plan_build_persistent(b, PLAN_WEIGHTS, narrow ? b->p->type : PLAN_F32, pr.count,
		"%s%s", pr.name, pr.sparse && b->p->pieces ? ".own" : "");
	pr.master = pr.weight;
	if (pr.role == PLAN_TRAINED) {
		if (narrow)
			pr.master = plan_build_again(b, PLAN_OPTIMIZER, PLAN_F32, pr.count, pr.weight);
		if (!pr.sparse)
			pr.gradient = plan_build_again(b, PLAN_GRADIENTS, PLAN_F32, pr.count, pr.weight);
		add_optimizer(b, &pr);
	}
	return keep(b, pr);
}

static const struct plan_param none = {
	.count = 1,
	.weight = -1,
	.master = -1,
	.gradient = -1,
	.moment1 = -1,
	.moment2 = -1,
	.average = -1,
	.flat = -1,
	.bucket = -1,
};

/* The part of this rank. */
static void cut(struct plan_param *pr, const struct plan_param_def *def)
{
	pr->cut = plan_cut_none(pr->count);
	pr->room = pr->count;
	if (def->cut_count == 0 || pr->count == 0)
		return;
	int64_t inner = 1, block = def->shape[def->cut_dim];
	for (int i = def->cut_dim + 1; i < def->rank; i++)
		inner *= def->shape[i];
	if (def->cut_blocks > 1)
		block /= def->cut_blocks;
	pr->cut = (struct plan_cut){
		.first = def->cut_first * inner, .run = def->cut_count * inner, .period = block * inner
	};
	int64_t blocks = pr->count / pr->cut.period, most = def->cut_most;
	pr->count = blocks * pr->cut.run;
	pr->room = most > 0 ? blocks * most * inner : pr->count;
}

int plan_param_add(struct plan_build *b, struct plan_param_def def, const char *fmt, ...)
{
	struct plan_param pr = none;
	pr.rank = def.rank;
	pr.init = def.init;
	pr.init_scale = def.init_scale;
	pr.role = def.role;
	pr.decay = def.role == PLAN_TRAINED && def.rank > 1;
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(pr.name, sizeof(pr.name), fmt, ap);
	va_end(ap);
	for (int i = 0; i < def.rank; i++) {
		pr.shape[i] = def.shape[i];
		pr.count = plan_build_count(b, pr.count, def.shape[i], 1);
	}
	pr.summed = def.summed;
	cut(&pr, &def);
	return add(b, pr);
}

int plan_param_table(struct plan_build *b, struct plan_table_def def, const char *fmt, ...)
{
	struct plan_param pr = none;
	pr.rank = 2;
	pr.shape[0] = def.rows;
	pr.shape[1] = def.d;
	pr.count = pr.room = plan_build_count(b, def.own.rows, def.d, 1);
	pr.cut = plan_cut_none(plan_build_count(b, def.rows, def.d, 1));
	if (b->p->pieces)
		pr.cut = (struct plan_cut){ .first = def.own.first * def.d,
			.run = num_max(pr.count, def.d),
			.period = def.rows * def.d };
	pr.init = PLAN_INIT_UNIFORM;
	pr.init_scale = def.init_scale;
	pr.sparse = true;
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(pr.name, sizeof(pr.name), fmt, ap);
	va_end(ap);
	int param = add(b, pr);
	if (b->code)
		return -1;
	if (b->p->sparse_count == 0)
		b->p->sparse_first = param;
	b->p->sparse_count++;
	return param;
}

int plan_param_lookups(struct plan_build *b, int param, int64_t rows, int64_t lookups)
{
	struct plan *p = b->p;
	if (!b->code && b->table_count >= SPEC_TABLES_MAX)
		plan_build_fail(b, ERR_INVALID_VALUE, "$.model.config.table_rows",
			"a model has at most %d tables", SPEC_TABLES_MAX);
	if (b->code)
		return -1;
	const struct plan_param *pr = &p->params[param];
	struct plan_table t = { .param = param, .rows = rows, .d = pr->shape[1], .lookups = lookups };
	t.ids = plan_build_persistent(b, PLAN_GRADIENTS, PLAN_I32,
		plan_build_count(b, p->batch, lookups, 1), "%.64s.ids", pr->name);
	t.grads = plan_build_persistent(b, PLAN_GRADIENTS, PLAN_F32,
		plan_build_count(b, p->batch, t.d, 1), "%.64s.grads", pr->name);
	if (b->code)
		return -1;
	b->table[b->table_count] = t;
	return b->table_count++;
}

int plan_param_weight(const struct plan_build *b, int param)
{
	return b->code || param < 0 ? -1 : b->p->params[param].weight;
}

int plan_param_gradient(const struct plan_build *b, int param)
{
	return b->code || param < 0 ? -1 : b->p->params[param].gradient;
}

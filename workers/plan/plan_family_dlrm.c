/* SPDX-License-Identifier: Apache-2.0
 * The dlrm family (Naumov et al. 2019): dense features through bottom.N, a sum of a few rows of
 * each embedding.N.weight, dot products of all pairs of those vectors, and top.N to one logit. A
 * table's gradient is its look-ups' rows, kept until the step. Called by plan.c. */
#include "workers/plan/plan_vision.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

struct dlrm_layer {
	char name[PLAN_NAME_MAX];
	struct plan_dense dense;
	int x; /* buffers; y is the next layer's x */
};

struct dlrm {
	struct dlrm_layer bottom[SPEC_LAYERS_MAX], top[SPEC_LAYERS_MAX + 1];
	int bottoms, tops;
	int64_t d, features, width; /* width: of what top reads */
	int z, pairs, logits;
	int table[SPEC_TABLES_MAX]; /* in b->table */
};

static bool shape_ok(struct plan_build *b)
{
	const struct spec_model *m = &b->spec->model;
	if (m->table_count < 1 || m->table_count > SPEC_TABLES_MAX || m->lookups < 1)
		plan_build_fail(b, ERR_INVALID_VALUE, "$.model.config.table_rows",
			"a dlrm has 1 to %d tables and at least one look-up in each", SPEC_TABLES_MAX);
	else if (m->dense_features < 1)
		plan_build_fail(b, ERR_INVALID_VALUE, "$.model.config.dense_features",
			"a dlrm has at least one dense feature");
	else if (m->hidden_count < 1 || m->hidden[m->hidden_count - 1] != m->embedding_dim)
		plan_build_fail(b, ERR_INVALID_VALUE, "$.model.config.bottom",
			"the last bottom layer must have embedding_dim (%lld) units",
			(long long)m->embedding_dim);
	for (int t = 0; t < m->table_count && !b->code; t++)
		if (m->table_rows[t] < 1 || m->table_rows[t] > INT32_MAX)
			plan_build_fail(b, ERR_INVALID_VALUE, "$.model.config.table_rows",
				"table %d must have 1 to %d rows", t + 1, INT32_MAX);
	return !b->code;
}

/* The last bottom layer writes the first of each sample's features. */
static void bottom_forward(struct plan_build *b, struct dlrm *r)
{
	const struct spec_model *m = &b->spec->model;
	int64_t k = m->dense_features, count = plan_build_count(b, b->p->rows, k, 1);
	plan_build_input(b, PLAN_INPUT, PLAN_F32, count);
	int x = plan_build_cast(b, "input", b->p->inputs.input, count);
	r->bottoms = m->hidden_count;
	for (int i = 0; i < r->bottoms; i++) {
		struct dlrm_layer *l = &r->bottom[i];
		bool last = i == r->bottoms - 1;
		int64_t n = m->hidden[i];
		snprintf(l->name, sizeof(l->name), "bottom.%d", i);
		l->x = x;
		plan_dense_layer(b, &l->dense, l->name, k, n, true);
		if (last)
			l->dense.ldy = r->features * r->d;
		x = last ? r->z
				 : plan_build_activation(b, plan_build_count(b, b->p->rows, n, 1), "%s", l->name);
		plan_dense_forward(b, &l->dense, l->x, x, -1);
		k = n;
	}
}

static void tables_forward(struct plan_build *b, struct dlrm *r)
{
	const struct spec_model *m = &b->spec->model;
	struct plan *p = b->p;
	int64_t look_ups = plan_build_count(b, p->rows, m->lookups, m->table_count);
	plan_build_input(b, PLAN_BAGS, PLAN_I32, look_ups);
	for (int t = 0; t < m->table_count; t++)
		r->table[t] = plan_param_table(b, m->table_rows[t], r->d, m->lookups,
			1 / sqrt((double)m->table_rows[t]), "embedding.%d.weight", t);
	for (int t = 0; t < m->table_count && !b->code; t++) {
		const struct plan_param *pr = &p->params[b->table[r->table[t]].param];
		plan_build_op(b, PLAN_OP_EMBEDDING_BAG, pr->name,
			PLAN_OPERANDS(p->inputs.bags, pr->weight, r->z),
			PLAN_DIMS(p->rows, m->lookups, r->d, m->table_rows[t], t, r->features), 0);
	}
}

static void top_forward(struct plan_build *b, struct dlrm *r)
{
	const struct spec_model *m = &b->spec->model;
	struct plan *p = b->p;
	r->pairs = plan_build_activation(b, plan_build_count(b, p->rows, r->width, 1), "interaction");
	plan_build_op(b, PLAN_OP_INTERACTION, "interaction", PLAN_OPERANDS(r->z, r->pairs),
		PLAN_DIMS(p->rows, r->features, r->d), 0);
	int x = r->pairs;
	int64_t k = r->width;
	r->tops = m->top_count + 1;
	for (int i = 0; i < r->tops; i++) {
		struct dlrm_layer *l = &r->top[i];
		bool last = i == r->tops - 1;
		int64_t n = last ? 1 : m->top[i];
		snprintf(l->name, sizeof(l->name), "top.%d", i);
		l->x = x;
		plan_dense_layer(b, &l->dense, l->name, k, n, !last);
		x = plan_build_activation(b, plan_build_count(b, p->rows, n, 1), "%s", l->name);
		plan_dense_forward(b, &l->dense, l->x, x, -1);
		k = n;
	}
	plan_head_loss(b, x);
}

/* Through layers whose inputs, but the first's, are outputs of a ReLU; returns the gradient of the
 * first's input (-1 unless wanted). */
static int layers_backward(
	struct plan_build *b, const struct dlrm_layer *layers, int count, int dy, bool want_dx)
{
	for (int i = count - 1; i >= 0; i--) {
		const struct plan_dense *d = &layers[i].dense;
		struct plan_gate gate = plan_gate_none;
		int dx = -1;
		if (i > 0)
			gate = (struct plan_gate){ PLAN_ACT_RELU, layers[i].x };
		if (i > 0 || want_dx)
			dx =
				plan_build_activation(b, plan_build_count(b, d->m, d->k, 1), "d.%.48s.in", d->name);
		plan_dense_backward(b, d, layers[i].x, dy, dx, gate);
		dy = dx;
	}
	return dy;
}

static void backward(struct plan_build *b, const struct dlrm *r)
{
	const struct spec_model *m = &b->spec->model;
	struct plan *p = b->p;
	int dy = layers_backward(b, r->top, r->tops, p->output, true);
	int dz =
		plan_build_activation(b, plan_build_count(b, p->rows, r->features, r->d), "d.features");
	plan_build_op(b, PLAN_OP_INTERACTION_BACKWARD, "interaction", PLAN_OPERANDS(r->z, dy, dz),
		PLAN_DIMS(p->rows, r->features, r->d), 0);
	for (int t = 0; t < m->table_count && !b->code; t++) {
		const struct plan_table *table = &b->table[r->table[t]];
		plan_build_op(b, PLAN_OP_SPARSE_STORE, p->params[table->param].name,
			PLAN_OPERANDS(p->inputs.bags, dz, table->ids, table->grads),
			PLAN_DIMS(p->rows, m->lookups, r->d, t, r->features), 0);
	}
	(void)layers_backward(b, r->bottom, r->bottoms, dz, false);
}

void plan_family_dlrm(struct plan_build *b)
{
	const struct spec_model *m = &b->spec->model;
	if (!shape_ok(b))
		return;
	struct dlrm *r = calloc(1, sizeof(*r));
	if (!r) {
		plan_build_fail(b, ERR_NO_MEMORY, NULL, "no memory for the plan");
		return;
	}
	r->d = m->embedding_dim;
	r->features = m->table_count + 1;
	r->width = r->d + r->features * (r->features - 1) / 2;
	r->z = plan_build_activation(b, plan_build_count(b, b->p->rows, r->features, r->d), "features");
	bottom_forward(b, r);
	tables_forward(b, r);
	top_forward(b, r);
	plan_build_backward(b);
	backward(b, r);
	free(r);
}

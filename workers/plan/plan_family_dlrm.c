/* SPDX-License-Identifier: Apache-2.0
 * The dlrm family (Naumov et al. 2019): dense features through bottom.N, a sum of a few rows of
 * each embedding.N.weight, dot products of all pairs of those vectors, and top.N to one logit. A
 * table's gradient is its look-ups' rows, kept until the step. With ZeRO the tables are shared out
 * (plan_tables.h), and what is looked up travels. Called by plan.c. */
#include "workers/plan/plan_vision.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

struct dlrm_layer {
	char name[PLAN_NAME_MAX];
	struct plan_dense dense;
	int x; /* buffers; y is the next layer's x */
};

/* What goes from every rank to every rank: `count` elements to each. */
struct dlrm_traffic {
	int out, in, ticket;
	int64_t count;
};

struct dlrm {
	struct dlrm_layer bottom[SPEC_LAYERS_MAX], top[SPEC_LAYERS_MAX + 1];
	int bottoms, tops;
	int64_t d, features, width; /* width: of what top reads */
	int z, pairs, logits;
	struct dlrm_traffic ids, sums, grads; /* where ranks share the tables */
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

/* Where ranks share the tables, the pieces of each. */
static void share_tables(struct plan_build *b, struct dlrm *r)
{
	const struct spec_model *m = &b->spec->model;
	struct plan *p = b->p;
	for (int t = 0; t < m->table_count; t++)
		plan_build_count(b, m->table_rows[t], r->d, 1);
	if (b->code || !plan_tables_are_cut(&p->mesh))
		return;
	p->piece_slots = plan_tables_slots(m->table_count, p->mesh.data);
	p->pieces = calloc((size_t)p->piece_slots * (size_t)p->mesh.data, sizeof(*p->pieces));
	if (!p->pieces)
		plan_build_fail(b, ERR_NO_MEMORY, NULL, "no memory for the plan");
	else
		plan_tables_cut(m->table_rows, m->table_count, p->mesh.data,
			r->d * plan_type_bytes(PLAN_F32), p->pieces);
}

/* The last bottom layer writes the first of each sample's features. */
static void bottom_layers(struct plan_build *b, struct dlrm *r)
{
	const struct spec_model *m = &b->spec->model;
	int64_t k = m->dense_features;
	r->bottoms = m->hidden_count;
	for (int i = 0; i < r->bottoms; i++) {
		struct dlrm_layer *l = &r->bottom[i];
		snprintf(l->name, sizeof(l->name), "bottom.%d", i);
		plan_dense_layer(b, &l->dense, l->name, k, m->hidden[i], true);
		if (i == r->bottoms - 1)
			l->dense.ldy = r->features * r->d;
		k = m->hidden[i];
	}
}

static void bottom_forward(struct plan_build *b, struct dlrm *r, int x)
{
	for (int i = 0; i < r->bottoms; i++) {
		struct dlrm_layer *l = &r->bottom[i];
		l->x = x;
		x = i == r->bottoms - 1
			? r->z
			: plan_build_activation(
				  b, plan_build_count(b, b->p->rows, l->dense.n, 1), "%s", l->name);
		plan_dense_forward(b, &l->dense, l->x, x, -1);
	}
}

/* This rank's rows of a table; NULL: no slot is the table's. */
static const struct plan_piece *own_piece(const struct plan *p, int table)
{
	const struct plan_piece *own = p->pieces + p->mesh.data_rank * p->piece_slots;
	for (int i = 0; i < p->piece_slots; i++)
		if (own[i].table == table)
			return &own[i];
	return NULL;
}

/* Slots are in the order of tables, so they have the indices of b->table. */
static void tables(struct plan_build *b, const struct dlrm *r)
{
	const struct spec_model *m = &b->spec->model;
	for (int t = 0; t < m->table_count && !b->code; t++) {
		int64_t rows = m->table_rows[t];
		struct plan_piece whole = { t, 0, rows }, none = { t, 0, 0 };
		const struct plan_piece *own = b->p->pieces ? own_piece(b->p, t) : &whole;
		int param = plan_param_table(b,
			(struct plan_table_def){ .rows = rows,
				.d = r->d,
				.init_scale = 1 / sqrt((double)rows),
				.own = own ? *own : none },
			"embedding.%d.weight", t);
		if (own)
			plan_param_lookups(b, param, own->rows, m->lookups);
	}
}

/* ------------------------------------------------------------------ tables that ranks share */

static struct dlrm_traffic traffic_of(
	struct plan_build *b, enum plan_type type, int64_t width, const char *what)
{
	const struct plan *p = b->p;
	struct dlrm_traffic t = { .count = plan_build_count(b, p->piece_slots, p->rows, width) };
	int64_t all = plan_build_count(b, t.count, p->mesh.data, 1);
	t.out = plan_build_buffer(b, PLAN_ACTIVATIONS, type, all, "tables.%s.out", what);
	t.in = plan_build_buffer(b, PLAN_ACTIVATIONS, type, all, "tables.%s", what);
	return t;
}

static void send(struct plan_build *b, struct dlrm_traffic *t)
{
	t->ticket = plan_parallel_ticket(b);
	plan_parallel_call(
		b, PLAN_AXIS_DATA, PLAN_OP_ALL_TO_ALL, "tables", t->out, t->in, t->count, t->ticket);
}

static void receive(struct plan_build *b, const struct dlrm_traffic *t)
{
	plan_parallel_wait(b, PLAN_AXIS_DATA, "tables", t->out, t->in, t->ticket);
}

/* Who keeps a row sums it up; the sums travel while the bottom layers compute. */
static void shared_lookups(struct plan_build *b, struct dlrm *r)
{
	const struct spec_model *m = &b->spec->model;
	const struct plan *p = b->p;
	r->ids = traffic_of(b, PLAN_I32, m->lookups, "ids");
	plan_build_op(b, PLAN_OP_PIECE_IDS, "tables", PLAN_OPERANDS(p->inputs.bags, r->ids.out),
		PLAN_DIMS(p->rows, m->lookups), 0);
	send(b, &r->ids);
	receive(b, &r->ids);
	r->sums = traffic_of(b, p->type, r->d, "sums");
	for (int i = 0; i < b->table_count && !b->code; i++) {
		const struct plan_param *pr = &p->params[b->table[i].param];
		plan_build_op(b, PLAN_OP_PIECE_SUM, pr->name,
			PLAN_OPERANDS(r->ids.in, pr->weight, r->sums.out),
			PLAN_DIMS(p->rows, m->lookups, r->d, b->table[i].rows, i, p->mesh.data, p->piece_slots),
			0);
	}
	send(b, &r->sums);
}

static void shared_sums(struct plan_build *b, struct dlrm *r)
{
	receive(b, &r->sums);
	plan_build_op(b, PLAN_OP_PIECE_GATHER, "tables", PLAN_OPERANDS(r->sums.in, r->z),
		PLAN_DIMS(b->p->rows, r->d, r->features), 0);
}

static void shared_spread(struct plan_build *b, struct dlrm *r, int dz)
{
	r->grads = traffic_of(b, b->p->type, r->d, "gradients");
	plan_build_op(b, PLAN_OP_PIECE_SPREAD, "tables", PLAN_OPERANDS(dz, r->grads.out),
		PLAN_DIMS(b->p->rows, r->d, r->features), 0);
	send(b, &r->grads);
}

static void shared_store(struct plan_build *b, const struct dlrm *r)
{
	const struct plan *p = b->p;
	receive(b, &r->grads);
	for (int i = 0; i < b->table_count && !b->code; i++) {
		const struct plan_table *t = &b->table[i];
		plan_build_op(b, PLAN_OP_PIECE_STORE, p->params[t->param].name,
			PLAN_OPERANDS(r->ids.in, r->grads.in, t->ids, t->grads),
			PLAN_DIMS(p->rows, t->lookups, r->d, i, p->mesh.data, p->piece_slots), 0);
	}
}

/* ------------------------------------------------------------------ tables of each rank's own */

static void own_lookups(struct plan_build *b, struct dlrm *r)
{
	const struct spec_model *m = &b->spec->model;
	struct plan *p = b->p;
	for (int t = 0; t < m->table_count && !b->code; t++) {
		const struct plan_param *pr = &p->params[b->table[t].param];
		plan_build_op(b, PLAN_OP_EMBEDDING_BAG, pr->name,
			PLAN_OPERANDS(p->inputs.bags, pr->weight, r->z),
			PLAN_DIMS(p->rows, m->lookups, r->d, m->table_rows[t], t, r->features), 0);
	}
}

static void own_store(struct plan_build *b, const struct dlrm *r, int dz)
{
	const struct spec_model *m = &b->spec->model;
	struct plan *p = b->p;
	for (int t = 0; t < m->table_count && !b->code; t++) {
		const struct plan_table *table = &b->table[t];
		plan_build_op(b, PLAN_OP_SPARSE_STORE, p->params[table->param].name,
			PLAN_OPERANDS(p->inputs.bags, dz, table->ids, table->grads),
			PLAN_DIMS(p->rows, m->lookups, r->d, t, r->features), 0);
	}
}

/* ------------------------------------------------------------------ passes */

static void features_forward(struct plan_build *b, struct dlrm *r)
{
	const struct spec_model *m = &b->spec->model;
	struct plan *p = b->p;
	bool shared = p->pieces != NULL;
	int64_t dense = plan_build_count(b, p->rows, m->dense_features, 1);
	plan_build_input(b, PLAN_INPUT, PLAN_F32, dense);
	plan_build_input(
		b, PLAN_BAGS, PLAN_I32, plan_build_count(b, p->rows, m->lookups, m->table_count));
	if (shared)
		shared_lookups(b, r);
	bottom_forward(b, r, plan_build_cast(b, "input", p->inputs.input, dense));
	if (shared)
		shared_sums(b, r);
	else
		own_lookups(b, r);
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

static void backward(struct plan_build *b, struct dlrm *r)
{
	struct plan *p = b->p;
	int dy = layers_backward(b, r->top, r->tops, p->output, true);
	int dz =
		plan_build_activation(b, plan_build_count(b, p->rows, r->features, r->d), "d.features");
	plan_build_op(b, PLAN_OP_INTERACTION_BACKWARD, "interaction", PLAN_OPERANDS(r->z, dy, dz),
		PLAN_DIMS(p->rows, r->features, r->d), 0);
	if (p->pieces)
		shared_spread(b, r, dz);
	else
		own_store(b, r, dz);
	(void)layers_backward(b, r->bottom, r->bottoms, dz, false);
	if (p->pieces)
		shared_store(b, r);
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
	share_tables(b, r);
	bottom_layers(b, r);
	tables(b, r);
	features_forward(b, r);
	top_forward(b, r);
	plan_build_backward(b);
	backward(b, r);
	free(r);
}

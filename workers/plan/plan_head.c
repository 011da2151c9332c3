/* SPDX-License-Identifier: Apache-2.0
 * Dense layers with ReLU and dropout, the output layer and the loss: the whole of an mlp, the end
 * of a cnn. Called by the family files. */
#include "workers/plan/plan_vision.h"

#include <math.h>
#include <stdio.h>

/* Standard deviation that keeps the variance through a layer of fan_in inputs (He; gain 1 at the
 * output, which no ReLU follows). */
static double he_scale(int64_t fan_in, bool relu)
{
	return sqrt((relu ? 2.0 : 1.0) / (double)fan_in);
}

void plan_head_loss(struct plan_build *b, int y)
{
	struct plan *p = b->p;
	int labels = p->inputs.labels;
	if (p->task == SPEC_REGRESSION)
		plan_build_op(b, PLAN_OP_MSE, "loss", PLAN_OPERANDS(y, labels, p->row_loss),
			PLAN_DIMS(p->rows, p->n_classes), 0);
	else if (p->task == SPEC_CLICK_THROUGH)
		plan_build_op(b, PLAN_OP_BCE, "loss", PLAN_OPERANDS(y, labels, p->row_loss, p->row_hit),
			PLAN_DIMS(p->rows), 0);
	else
		plan_build_op(b, PLAN_OP_SOFTMAX_XENT, "loss",
			PLAN_OPERANDS(y, labels, p->row_loss, p->row_hit), PLAN_DIMS(p->rows, p->n_classes), 0);
	p->output = y;
}

void plan_dense_layer(
	struct plan_build *b, struct plan_dense *d, const char *name, int64_t k, int64_t n, bool relu)
{
	*d = (struct plan_dense){ .name = name,
		.m = b->p->rows,
		.k = k,
		.n = n,
		.transposed = true,
		.act = relu ? PLAN_ACT_RELU : PLAN_ACT_NONE };
	d->weight = plan_param_add(b,
		(struct plan_param_def){ PLAN_INIT_NORMAL, he_scale(k, relu), 2, { n, k }, PLAN_TRAINED },
		"%s.weight", name);
	d->bias = plan_param_add(
		b, (struct plan_param_def){ PLAN_INIT_ZERO, 0, 1, { n }, PLAN_TRAINED }, "%s.bias", name);
}

void plan_head_forward(
	struct plan_build *b, struct plan_head *h, const char *prefix, int x, int64_t features)
{
	const struct spec_model *m = &b->spec->model;
	struct plan *p = b->p;
	h->layers = m->hidden_count + 1;
	h->x[0] = x;
	int64_t k = features;
	for (int i = 0; i < h->layers && !b->code; i++) {
		bool last = i == m->hidden_count;
		int64_t n = last ? p->n_classes : m->hidden[i];
		snprintf(h->name[i], PLAN_NAME_MAX, "%s.%d", prefix, i);
		struct plan_dense *d = &h->dense[i];
		plan_dense_layer(b, d, h->name[i], k, n, !last);
		h->x[i + 1] =
			plan_build_activation(b, plan_build_count(b, p->rows, n, 1), "%s", h->name[i]);
		plan_dense_forward(b, d, h->x[i], h->x[i + 1], -1);
		if (!last && b->spec->hyper.dropout > 0)
			plan_build_dropout(b, h->name[i], h->x[i + 1], h->x[i + 1],
				&(struct plan_mask){ p->rows * n, i, b->spec->hyper.dropout, { 0 } });
		k = n;
	}
	plan_head_loss(b, h->x[h->layers]);
}

int plan_head_backward(struct plan_build *b, struct plan_head *h, bool want_dx)
{
	double dropout = b->spec->hyper.dropout;
	int dy = h->x[h->layers]; /* the loss left the gradient in place of the output */
	for (int i = h->layers - 1; i >= 0 && !b->code; i--) {
		const struct plan_dense *d = &h->dense[i];
		struct plan_gate gate = plan_gate_none;
		int dx = -1;
		if (i > 0 || want_dx)
			dx =
				plan_build_activation(b, plan_build_count(b, d->m, d->k, 1), "d.%.48s.in", d->name);
		if (i > 0)
			gate = (struct plan_gate){ PLAN_ACT_RELU, h->x[i] };
		plan_dense_backward(b, d, h->x[i], dy, dx, gate);
		/* Dropout happened after the ReLU; both only scale, so the order back is free. */
		if (i > 0 && dropout > 0)
			plan_build_dropout_backward(b, h->name[i - 1], dx, dx,
				&(struct plan_mask){ d->m * d->k, i - 1, dropout, { 0 } });
		dy = dx;
	}
	return dy;
}

/* SPDX-License-Identifier: Apache-2.0
 * A linear module of a language model, with its LoRA adapter (Hu et al. 2021, named as in PEFT).
 * Called by plan_lm_layer.c and the family files. */
#include "workers/plan/plan_lm.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Targets are the last component of a module's name. */
static bool is_target(const struct spec_lora *lora, const char *name)
{
	const char *dot = strrchr(name, '.');
	for (int i = 0; i < lora->target_count && lora->rank > 0; i++)
		if (strcmp(dot ? dot + 1 : name, lora->target[i]) == 0)
			return true;
	return false;
}

/* A starts as PEFT's do: uniform within 1/sqrt(in) (Kaiming with a = sqrt 5); B at zero. */
static void add_adapter(struct plan_lm *lm, struct plan_lm_linear *l)
{
	struct plan_build *b = lm->b;
	const struct spec_lora *lora = &b->spec->lora;
	const struct plan_dense *base = &l->base;
	int64_t r = lora->rank;
	l->adapted = true;
	snprintf(l->name_a, sizeof(l->name_a), "%.80s.lora_A", l->name);
	snprintf(l->name_b, sizeof(l->name_b), "%.80s.lora_B", l->name);
	l->a = (struct plan_dense){
		.name = l->name_a, .bias = -1, .m = base->m, .k = base->k, .n = r, .transposed = true
	};
	l->a.weight = plan_param_add(b,
		(struct plan_param_def){ .init = PLAN_INIT_UNIFORM,
			.init_scale = 1.0 / sqrt((double)base->k),
			.rank = 2,
			.shape = { r, base->k } },
		"base_model.model.%.64s.weight", l->name_a);
	l->b = (struct plan_dense){ .name = l->name_b,
		.bias = -1,
		.m = base->m,
		.k = r,
		.n = base->n,
		.ldy = base->ldy,
		.y_shift = base->y_shift,
		.transposed = true,
		.alpha = lora->alpha / (double)r };
	l->b.weight = plan_param_add(b,
		(struct plan_param_def){ .init = PLAN_INIT_ZERO, .rank = 2, .shape = { base->n, r } },
		"base_model.model.%.64s.weight", l->name_b);
}

void plan_lm_linear_add(
	struct plan_lm *lm, struct plan_lm_linear *l, struct plan_lm_shape shape, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(l->name, sizeof(l->name), fmt, ap);
	va_end(ap);
	l->base = (struct plan_dense){ .name = l->name,
		.bias = -1,
		.m = lm->rows,
		.k = shape.k,
		.n = shape.n,
		.ldy = shape.ldy,
		.y_shift = shape.y_shift,
		.transposed = lm->row_out,
		.pre = -1 };
	struct plan_param_def weight = { .init = PLAN_INIT_NORMAL,
		.init_scale = shape.scale,
		.rank = 2,
		.shape = { lm->row_out ? shape.n : shape.k, lm->row_out ? shape.k : shape.n },
		.role = lm->base_role };
	l->base.weight = plan_param_add(lm->b, weight, "%.80s.weight", l->name);
	if (lm->biased)
		l->base.bias = plan_param_add(lm->b,
			(struct plan_param_def){
				.init = PLAN_INIT_ZERO, .rank = 1, .shape = { shape.n }, .role = lm->base_role },
			"%.80s.bias", l->name);
	if (is_target(&lm->b->spec->lora, l->name)) {
		l->site = lm->next_site++;
		add_adapter(lm, l);
	}
}

/* What A multiplies: x, or x with the adapter's own dropout. Computed again for the backward pass
 * rather than kept: it is as large as x, and a mask costs next to nothing. */
static int adapter_input(const struct plan_lm *lm, const struct plan_lm_linear *l, int x)
{
	double p = lm->b->spec->lora.dropout;
	if (p == 0)
		return x;
	int64_t count = lm->rows * l->base.k;
	int y = plan_build_activation(lm->b, count, "%.80s.dropout", l->name_a);
	plan_build_dropout(lm->b, l->name_a, x, y, count, l->site, p);
	return y;
}

void plan_lm_linear_forward(
	const struct plan_lm *lm, struct plan_lm_linear *l, int x, int y, int residual)
{
	struct plan_build *b = lm->b;
	plan_dense_forward(b, &l->base, x, y, residual);
	if (!l->adapted)
		return;
	l->t = plan_build_activation(b, lm->rows * l->a.n, "%.80s.t", l->name_a);
	plan_dense_forward(b, &l->a, adapter_input(lm, l, x), l->t, -1);
	plan_dense_forward(b, &l->b, l->t, y, y);
}

bool plan_lm_linear_needs_input(const struct plan_lm *lm, const struct plan_lm_linear *l)
{
	return l->adapted || lm->base_role == PLAN_TRAINED;
}

static void adapter_weights(
	const struct plan_lm *lm, const struct plan_lm_linear *l, int x, int dy, int dt)
{
	struct plan_build *b = lm->b;
	plan_dense_backward_weight(b, &l->b, l->t, dy);
	plan_dense_backward_data(b, &l->b, dy, dt, -1, plan_gate_none);
	b->recompute = true;
	int dropped = adapter_input(lm, l, x);
	b->recompute = false;
	plan_dense_backward_weight(b, &l->a, dropped, dt);
}

/* The adapter's part of dx. A mask cannot be applied to a sum, so with dropout it is made apart. */
static void adapter_data(
	const struct plan_lm *lm, const struct plan_lm_linear *l, int dt, int dx, bool accumulate)
{
	struct plan_build *b = lm->b;
	double p = b->spec->lora.dropout;
	int64_t count = lm->rows * l->base.k;
	if (p == 0) {
		plan_dense_backward_data(b, &l->a, dt, dx, accumulate ? dx : -1, plan_gate_none);
		return;
	}
	int to = accumulate ? plan_build_activation(b, count, "%.80s.d.x", l->name_a) : dx;
	plan_dense_backward_data(b, &l->a, dt, to, -1, plan_gate_none);
	plan_build_dropout_backward(b, l->name_a, to, to, count, l->site, p);
	if (accumulate)
		plan_build_op(b, PLAN_OP_ADD, l->name_a, PLAN_OPERANDS(to, dx), PLAN_DIMS(count), 0);
}

void plan_lm_linear_backward(const struct plan_lm *lm, const struct plan_lm_linear *l, int x,
	int dy, int dx, bool accumulate, struct plan_gate gate)
{
	struct plan_build *b = lm->b;
	if (l->adapted) {
		int dt = plan_build_activation(b, lm->rows * l->a.n, "%.80s.d.t", l->name_a);
		adapter_weights(lm, l, x, dy, dt);
		if (dx >= 0) {
			adapter_data(lm, l, dt, dx, accumulate);
			accumulate = true;
		}
	}
	plan_dense_backward_weight(b, &l->base, x, dy);
	if (dx >= 0)
		plan_dense_backward_data(b, &l->base, dy, dx, accumulate ? dx : -1, gate);
}

/* SPDX-License-Identifier: Apache-2.0
 * A linear module of a language model, with its LoRA adapter (Hu et al. 2021, named as in PEFT).
 * Called by plan_lm_layer.c and the family files. */
#include "workers/plan/plan_lm.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* The two products of an adapter, t = A dropout(x) and y += alpha / r * B t. */
struct adapter {
	char name_a[PLAN_NAME_MAX], name_b[PLAN_NAME_MAX];
	struct plan_dense a, b;
};

static void adapter_of(
	const struct plan_lm *lm, const struct plan_lm_linear *l, struct adapter *ret)
{
	const struct spec_lora *lora = &lm->b->spec->lora;
	const struct plan_dense *base = &l->base;
	snprintf(ret->name_a, sizeof(ret->name_a), "%s.lora_A", l->name);
	snprintf(ret->name_b, sizeof(ret->name_b), "%s.lora_B", l->name);
	ret->a = (struct plan_dense){ .name = ret->name_a,
		.weight = l->a,
		.bias = -1,
		.m = base->m,
		.k = base->k,
		.n = lora->rank,
		.transposed = true };
	ret->b = (struct plan_dense){ .name = ret->name_b,
		.weight = l->b,
		.bias = -1,
		.m = base->m,
		.k = lora->rank,
		.n = base->n,
		.ldy = base->ldy,
		.y_shift = base->y_shift,
		.transposed = true,
		.alpha = lora->alpha / (double)lora->rank };
}

/* The target that the last component of a module's name is; -1 = none. */
static int target_of(const struct spec_lora *lora, const char *name)
{
	const char *dot = strrchr(name, '.');
	for (int i = 0; i < lora->target_count && lora->rank > 0; i++)
		if (strcmp(dot ? dot + 1 : name, lora->target[i]) == 0)
			return i;
	return -1;
}

/* Sets the part of a rank: of outputs (in blocks) or inputs, which dimension dim of shape is. */
static void cut_dim(const struct plan_lm *lm, struct plan_param_def *def, int dim, int64_t blocks)
{
	int64_t own = def->shape[dim] / (blocks > 0 ? blocks : 1) / lm->tensor;
	def->cut_dim = dim;
	def->cut_blocks = blocks;
	def->cut_first = lm->tensor_rank * own;
	def->cut_count = lm->tensor > 1 ? own : 0;
}

/* A starts as PEFT's do: uniform within 1/sqrt(in) (Kaiming with a = sqrt 5); B at zero. Of the two
 * one is cut as the module is; of the other each rank makes a part of the gradient. */
static void add_adapter(
	struct plan_lm *lm, struct plan_lm_linear *l, const struct plan_lm_shape *shape)
{
	int64_t r = lm->b->spec->lora.rank;
	bool by_input = shape->cut == PLAN_LM_BY_INPUT, shared = lm->tensor > 1;
	struct plan_param_def a = { .init = PLAN_INIT_UNIFORM,
		.init_scale = 1.0 / sqrt((double)shape->k),
		.rank = 2,
		.shape = { r, shape->k },
		.summed = shared && !by_input };
	struct plan_param_def b = {
		.init = PLAN_INIT_ZERO, .rank = 2, .shape = { shape->n, r }, .summed = shared && by_input
	};
	if (by_input)
		cut_dim(lm, &a, 1, 0);
	else
		cut_dim(lm, &b, 0, shape->blocks);
	l->site = lm->next_site++;
	l->a = plan_param_add(lm->b, a, "base_model.model.%s.lora_A.weight", l->name);
	l->b = plan_param_add(lm->b, b, "base_model.model.%s.lora_B.weight", l->name);
}

static void add_base(
	struct plan_lm *lm, struct plan_lm_linear *l, const struct plan_lm_shape *shape)
{
	bool by_input = shape->cut == PLAN_LM_BY_INPUT;
	struct plan_param_def weight = { .init = PLAN_INIT_NORMAL,
		.init_scale = shape->scale,
		.rank = 2,
		.shape = { lm->row_out ? shape->n : shape->k, lm->row_out ? shape->k : shape->n },
		.role = lm->base_role };
	cut_dim(lm, &weight, by_input == lm->row_out, by_input ? 0 : shape->blocks);
	l->base.weight = plan_param_add(lm->b, weight, "%s.weight", l->name);
	struct plan_param_def bias = {
		.init = PLAN_INIT_ZERO, .rank = 1, .shape = { shape->n }, .role = lm->base_role
	};
	if (!by_input)
		cut_dim(lm, &bias, 0, shape->blocks);
	if (lm->biased)
		l->base.bias = plan_param_add(lm->b, bias, "%s.bias", l->name);
	l->base.bias_apart = by_input && lm->tensor_rank > 0;
}

void plan_lm_linear_add(
	struct plan_lm *lm, struct plan_lm_linear *l, struct plan_lm_shape shape, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(l->name, sizeof(l->name), fmt, ap);
	va_end(ap);
	bool by_input = shape.cut == PLAN_LM_BY_INPUT;
	l->a = l->b = -1;
	l->whole_k = shape.k;
	l->base = (struct plan_dense){ .name = l->name,
		.bias = -1,
		.m = lm->rows,
		.k = by_input ? shape.k / lm->tensor : shape.k,
		.n = by_input ? shape.n : shape.n / lm->tensor,
		.ldy = shape.ldy,
		.y_shift = shape.y_shift,
		.transposed = lm->row_out,
		.pre = -1 };
	add_base(lm, l, &shape);
	int target = target_of(&lm->b->spec->lora, l->name);
	if (target < 0)
		return;
	lm->targets_found |= 1u << (unsigned)target;
	add_adapter(lm, l, &shape);
}

/* The adapter's dropout: of all inputs, or of the columns that this rank has. */
static struct plan_mask mask_of(const struct plan_lm *lm, const struct plan_lm_linear *l)
{
	int64_t k = l->base.k;
	return (struct plan_mask){ .count = lm->rows * k,
		.site = l->site,
		.p = lm->b->spec->lora.dropout,
		.cut = { k < l->whole_k ? lm->tensor_rank * k : 0, k, l->whole_k } };
}

/* What A multiplies: x, or x with the adapter's own dropout. Computed again for the backward pass
 * rather than kept: it is as large as x, and a mask costs next to nothing. */
static int adapter_input(
	const struct plan_lm *lm, const struct plan_lm_linear *l, const struct adapter *p, int x)
{
	const struct plan_mask mask = mask_of(lm, l);
	if (mask.p == 0)
		return x;
	int y = plan_build_activation(lm->b, mask.count, "%s.x", p->name_a);
	plan_build_dropout(lm->b, p->name_a, x, y, &mask);
	return y;
}

void plan_lm_linear_forward(
	const struct plan_lm *lm, struct plan_lm_linear *l, int x, int y, int residual)
{
	struct plan_build *b = lm->b;
	plan_dense_forward(b, &l->base, x, y, residual);
	if (!plan_lm_linear_adapted(l))
		return;
	struct adapter p;
	adapter_of(lm, l, &p);
	l->t = plan_build_activation(b, lm->rows * p.a.n, "%s.y", p.name_a);
	plan_dense_forward(b, &p.a, adapter_input(lm, l, &p, x), l->t, -1);
	plan_dense_forward(b, &p.b, l->t, y, y);
}

bool plan_lm_linear_needs_input(const struct plan_lm *lm, const struct plan_lm_linear *l)
{
	return plan_lm_linear_adapted(l) || lm->base_role == PLAN_TRAINED;
}

/* The adapter's part of dx. A mask cannot be applied to a sum, so with dropout it is made apart. */
static void adapter_data(const struct plan_lm *lm, const struct plan_lm_linear *l,
	const struct adapter *p, int dt, int dx, bool accumulate)
{
	struct plan_build *b = lm->b;
	const struct plan_mask mask = mask_of(lm, l);
	if (mask.p == 0) {
		plan_dense_backward_data(b, &p->a, dt, dx, accumulate ? dx : -1, plan_gate_none);
		return;
	}
	int to = accumulate ? plan_build_activation(b, mask.count, "%s.d.x", p->name_a) : dx;
	plan_dense_backward_data(b, &p->a, dt, to, -1, plan_gate_none);
	plan_build_dropout_backward(b, p->name_a, to, to, &mask);
	if (accumulate)
		plan_build_op(b, PLAN_OP_ADD, p->name_a, PLAN_OPERANDS(to, dx), PLAN_DIMS(mask.count), 0);
}

static void adapter_backward(const struct plan_lm *lm, const struct plan_lm_linear *l, int x,
	int dy, int dx, bool accumulate)
{
	struct plan_build *b = lm->b;
	struct adapter p;
	adapter_of(lm, l, &p);
	int dt = plan_build_activation(b, lm->rows * p.a.n, "%s.d.y", p.name_a);
	plan_dense_backward_weight(b, &p.b, l->t, dy);
	plan_dense_backward_data(b, &p.b, dy, dt, -1, plan_gate_none);
	b->recompute = true;
	int dropped = adapter_input(lm, l, &p, x);
	b->recompute = false;
	plan_dense_backward_weight(b, &p.a, dropped, dt);
	if (dx >= 0)
		adapter_data(lm, l, &p, dt, dx, accumulate);
}

void plan_lm_linear_backward(const struct plan_lm *lm, const struct plan_lm_linear *l, int x,
	int dy, int dx, bool accumulate, struct plan_gate gate)
{
	struct plan_build *b = lm->b;
	if (plan_lm_linear_adapted(l)) {
		adapter_backward(lm, l, x, dy, dx, accumulate);
		accumulate = true;
	}
	plan_dense_backward_weight(b, &l->base, x, dy);
	if (dx >= 0)
		plan_dense_backward_data(b, &l->base, dy, dx, accumulate ? dx : -1, gate);
}

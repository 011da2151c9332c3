/* SPDX-License-Identifier: Apache-2.0
 * Executes the optimizer's operations, over flat ranges cut into segments of one weight decay, and
 * over the touched rows of sparse tables. Called by engine_exec.c. */
#include "workers/engine/engine_private.h"
#include "workers/engine/rng.h"

#include <math.h>
#include <stdlib.h>

#define OPERAND(i) engine_exec_operand(e, op, i)

/* What is known when the device has finished; engine_step_settle adds them up in this order. */
static double *next_square(struct engine *e)
{
	return &e->squares[e->square_count++];
}

static void gradient_norm(struct engine *e, const struct plan_op *op)
{
	double *partial = engine_exec_workspace(e, op).data;
	if (!op->uncounted)
		e->backend->square_sum(op->dim[0], OPERAND(0), partial, next_square(e));
}

static void sparse_reduce(struct engine *e, const struct plan_op *op)
{
	double *const none = &e->squares[e->plan->op_count];
	e->backend->sparse_reduce(&(struct backend_sparse){ .samples = op->dim[0],
		.lookups = op->dim[1],
		.d = op->dim[2],
		.table_rows = op->dim[3],
		.ids = OPERAND(0),
		.grads = OPERAND(1),
		.rows = OPERAND(2),
		.sums = OPERAND(3),
		.count = OPERAND(4),
		.ret_square = op->uncounted ? none : next_square(e),
		.ws = engine_exec_workspace(e, op) });
}

/* The update of a bucket has the bucket's segments, that of the flat ranges all. */
static void set_segments(const struct engine *e, const struct plan_op *op, struct backend_update *d)
{
	int first = op->bucket < 0 ? 0 : e->bucket_segments[op->bucket];
	int end = op->bucket < 0 ? e->segment_count : e->bucket_segments[op->bucket + 1];
	d->segments = e->segments + first;
	d->segment_count = end - first;
}

/* What all updates of a step have in common. */
static struct backend_update update_of(const struct engine *e)
{
	const struct spec_hyper *h = &e->spec->hyper;
	double t = (double)(e->state.step + 1);
	return (struct backend_update){ .grad_scale = e->grad_scale,
		.learning_rate = e->learning_rate,
		.beta1 = (float)h->beta1,
		.beta2 = (float)h->beta2,
		.eps = (float)h->eps,
		.correct1 = (float)(1.0 / (1.0 - pow(h->beta1, t))),
		.correct2 = (float)(1.0 / (1.0 - pow(h->beta2, t))),
		.momentum = (float)h->momentum };
}

static void adamw(struct engine *e, const struct plan_op *op)
{
	struct backend_update d = update_of(e);
	set_segments(e, op, &d);
	d.w = OPERAND(0);
	d.g = OPERAND(1);
	d.m = OPERAND(2);
	d.v = OPERAND(3);
	d.weights = OPERAND(4);
	e->backend->adamw(&d);
}

static void sgd(struct engine *e, const struct plan_op *op)
{
	struct backend_update d = update_of(e);
	set_segments(e, op, &d);
	d.w = OPERAND(0);
	d.g = OPERAND(1);
	d.m = OPERAND(2);
	d.weights = OPERAND(3);
	e->backend->sgd(&d);
}

static void sparse_adamw(struct engine *e, const struct plan_op *op)
{
	struct backend_update d = update_of(e);
	d.d = op->dim[1];
	d.w = OPERAND(0);
	d.m = OPERAND(1);
	d.v = OPERAND(2);
	d.rows = OPERAND(3);
	d.g = OPERAND(4);
	d.count = OPERAND(5);
	e->backend->sparse_adamw(&d);
}

static void sparse_sgd(struct engine *e, const struct plan_op *op)
{
	struct backend_update d = update_of(e);
	d.d = op->dim[1];
	d.w = OPERAND(0);
	d.m = OPERAND(1);
	d.rows = OPERAND(2);
	d.g = OPERAND(3);
	d.count = OPERAND(4);
	e->backend->sparse_sgd(&d);
}

static void average(struct engine *e, const struct plan_op *op)
{
	e->backend->average(op->dim[0], (float)e->spec->hyper.ema_decay, OPERAND(0), OPERAND(1));
}

static void round_random(struct engine *e, const struct plan_op *op)
{
	uint64_t step = rng_key((uint64_t)e->state.seed, RNG_ROUNDING, (uint64_t)e->reading_step);
	e->backend->round_random(&(struct backend_round){ .count = op->dim[0],
		.key = rng_mix(step + (uint64_t)op->dim[1]),
		.begin = op->dim[2],
		.cut = { op->dim[3], op->dim[4], op->dim[5] },
		.x = OPERAND(0),
		.y = OPERAND(1) });
}

engine_exec_fn engine_exec_optimize(enum plan_op_kind kind)
{
	static const engine_exec_fn table[PLAN_OP_COUNT] = {
		[PLAN_OP_GRADIENT_NORM] = gradient_norm,
		[PLAN_OP_SPARSE_REDUCE] = sparse_reduce,
		[PLAN_OP_ADAMW] = adamw,
		[PLAN_OP_SGD] = sgd,
		[PLAN_OP_SPARSE_ADAMW] = sparse_adamw,
		[PLAN_OP_SPARSE_SGD] = sparse_sgd,
		[PLAN_OP_ROUND] = round_random,
		[PLAN_OP_AVERAGE] = average,
	};
	return table[kind];
}

/* Offset of the flat range of low-precision weights, which the update's operation names; -1 where
 * it writes none. */
static int64_t weights_base(const struct plan *p)
{
	for (int i = p->optimize_begin; i < p->op_count; i++) {
		const struct plan_op *op = &p->ops[i];
		int weights = op->kind == PLAN_OP_ADAMW ? op->operand[4]
			: op->kind == PLAN_OP_SGD           ? op->operand[3]
												: -1;
		if (weights >= 0)
			return p->buffers[weights].offset;
	}
	return -1;
}

/* Neighbours with one decay and, in both flat ranges, one distance become one segment. A segment
 * takes the padding with it, where everything stays 0. */
static void add_segment(struct engine *e, struct backend_segment s)
{
	struct backend_segment *last = e->segment_count ? &e->segments[e->segment_count - 1] : NULL;
	bool joins = last && last->decay == s.decay &&
		(s.weights < 0 ? last->weights < 0
					   : last->weights >= 0 && s.weights - last->weights == s.begin - last->begin);
	if (joins)
		last->end = s.end;
	else
		e->segments[e->segment_count++] = s;
}

static bool is_update(enum plan_op_kind kind)
{
	return kind == PLAN_OP_ADAMW || kind == PLAN_OP_SGD || kind == PLAN_OP_SPARSE_ADAMW ||
		kind == PLAN_OP_SPARSE_SGD || kind == PLAN_OP_AVERAGE;
}

/* The own part of a bucket, cut where parameters begin. */
static void bucket_segments(struct engine *e, const struct plan_bucket *k)
{
	const struct plan *p = e->plan;
	int64_t own = p->mesh.data_rank * k->shard;
	for (int i = k->first; i < k->end; i++) {
		const struct plan_param *pr = &p->params[p->bucket_params[i]];
		int64_t begin = i == k->first ? 0 : pr->bucket_begin, end = k->count;
		if (i + 1 < k->end)
			end = p->params[p->bucket_params[i + 1]].bucket_begin;
		begin = begin > own ? begin - own : 0;
		end = end - own < k->shard ? end - own : k->shard;
		if (begin < end)
			e->segments[e->segment_count++] = (struct backend_segment){ .begin = begin,
				.end = end,
				.weights = k->own_master >= 0 ? begin : -1,
				.decay = pr->decay ? (float)e->spec->hyper.weight_decay : 0.0f };
	}
}

int engine_exec_optimize_prepare(struct engine *e, struct err *err)
{
	const struct plan *p = e->plan;
	const int64_t pad = PLAN_ALIGN_BYTES / (int64_t)sizeof(float);
	const int64_t base = weights_base(p);
	e->segments = calloc((size_t)p->param_count, sizeof(*e->segments));
	e->bucket_segments = calloc((size_t)p->bucket_count + 1, sizeof(*e->bucket_segments));
	if (!e->segments || !e->bucket_segments)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for the parameters' table");
	for (int i = 0; i < p->param_count; i++) {
		const struct plan_param *pr = &p->params[i];
		if (pr->flat < 0)
			continue;
		const struct plan_buffer *w = &p->buffers[pr->weight];
		bool rounded = base >= 0 && pr->weight != engine_tensor_exact(pr);
		add_segment(e,
			(struct backend_segment){ .begin = pr->flat,
				.end = pr->flat + (pr->count + pad - 1) / pad * pad,
				.weights = rounded ? (w->offset - base) / plan_type_bytes(w->type) : -1,
				.decay = pr->decay ? (float)e->spec->hyper.weight_decay : 0.0f });
	}
	for (int i = 0; i < p->bucket_count; i++) {
		e->bucket_segments[i] = e->segment_count;
		if (p->buckets[i].trained)
			bucket_segments(e, &p->buckets[i]);
		e->bucket_segments[i + 1] = e->segment_count;
	}
	e->update_begin = p->optimize_begin;
	while (e->update_begin < p->op_count && !is_update(p->ops[e->update_begin].kind))
		e->update_begin++;
	return 0;
}

/* SPDX-License-Identifier: Apache-2.0
 * The head of a language model and its loss. Called by plan_lm.c. */
#include "workers/plan/plan_lm.h"

enum {
	/* The head's logits are made for so many rows at a time that they take about this much, and
	 * never for fewer than the minimum: short products are slow. */
	CHUNK_BYTES = 64 * 1024 * 1024,
	CHUNK_ROWS_MIN = 64,
	CHUNK_ROWS_UNIT = 16,
};

/* Rows of a chunk: even pieces of at most CHUNK_BYTES of logits. */
static int64_t chunk_rows(const struct plan_lm *lm)
{
	int64_t most = CHUNK_BYTES / (lm->own_vocab * plan_type_bytes(lm->b->p->type));
	if (most < CHUNK_ROWS_MIN)
		most = CHUNK_ROWS_MIN;
	int64_t pieces = (lm->rows + most - 1) / most;
	int64_t even = (lm->rows + pieces - 1) / pieces;
	int64_t rounded = (even + CHUNK_ROWS_UNIT - 1) / CHUNK_ROWS_UNIT * CHUNK_ROWS_UNIT;
	if (rounded > most)
		rounded = most;
	return rounded < lm->rows ? rounded : lm->rows;
}

static void whole(struct plan_lm *lm, int x, int64_t chunk)
{
	struct plan_build *b = lm->b;
	struct plan *p = b->p;
	plan_build_op(b, PLAN_OP_CLASSIFIER, "lm_head",
		PLAN_OPERANDS(x, plan_param_weight(b, lm->head), p->inputs.labels, p->row_loss, p->row_hit,
			lm->dhead, plan_param_gradient(b, lm->head)),
		PLAN_DIMS(lm->rows, lm->c, lm->vocab, chunk),
		plan_workspace_classifier(chunk, lm->vocab, lm->c, p->type));
}

/* What all chunks of a head that ranks share use one after the other. */
struct shared {
	struct plan_dense head;
	int logits, own, all; /* buffers; own, all: statistics of the rows */
};

/* Rows [first, first + head.m): their logits, what each rank says of them, the loss, and in
 * training the gradients. */
static void shared_chunk(struct plan_lm *lm, const struct shared *s, int x, int64_t first)
{
	struct plan_build *b = lm->b;
	const struct plan *p = b->p;
	const struct plan_dense *d = &s->head;
	int ticket = plan_parallel_ticket(b);
	plan_dense_forward(b, d, x, s->logits, -1);
	plan_build_op(b, PLAN_OP_XENT_STATISTICS, d->name,
		PLAN_OPERANDS(s->logits, p->inputs.labels, s->own), PLAN_DIMS(d->m, d->n, lm->first_token),
		0)
		->shift[1] = first;
	plan_parallel_call(b, PLAN_AXIS_TENSOR, PLAN_OP_ALL_GATHER, d->name, s->own, s->all,
		d->m * PLAN_STATISTICS, ticket);
	plan_parallel_wait(b, PLAN_AXIS_TENSOR, d->name, s->own, s->all, ticket);
	struct plan_op *op = plan_build_op(b, PLAN_OP_XENT_SHARED, d->name,
		PLAN_OPERANDS(s->logits, p->inputs.labels, s->all, p->row_loss, p->row_hit),
		PLAN_DIMS(d->m, d->n, lm->first_token, lm->vocab, lm->tensor), 0);
	op->shift[1] = op->shift[3] = op->shift[4] = first;
	int begin = p->op_count;
	plan_dense_backward(b, d, x, s->logits, lm->dhead, plan_gate_none);
	for (int i = begin; i < p->op_count; i++)
		p->ops[i].train_only = true;
}

static void shared(struct plan_lm *lm, int x, int64_t chunk)
{
	struct plan_build *b = lm->b;
	struct shared s = { .head = { .name = "lm_head",
							.weight = lm->head,
							.bias = -1,
							.k = lm->c,
							.n = lm->own_vocab,
							.transposed = true } };
	s.logits = plan_build_activation(b, chunk * lm->own_vocab, "lm_head.logits");
	s.own = plan_build_statistic(b, chunk * PLAN_STATISTICS, "lm_head.statistics.own");
	s.all = plan_build_statistic(b, lm->tensor * chunk * PLAN_STATISTICS, "lm_head.statistics");
	for (int64_t first = 0; first < lm->rows && !b->code; first += chunk) {
		s.head.m = lm->rows - first < chunk ? lm->rows - first : chunk;
		s.head.x_shift = first * lm->c;
		shared_chunk(lm, &s, x, first);
	}
}

void plan_lm_head_forward(struct plan_lm *lm, int x)
{
	struct plan_build *b = lm->b;
	int64_t chunk = chunk_rows(lm);
	int all = plan_lm_gather(lm, "lm_head", x, lm->c);
	lm->dhead = plan_build_activation(b, lm->rows * lm->c, "%.64s.d.y", lm->final.name);
	if (lm->tensor == 1)
		whole(lm, all, chunk);
	else
		shared(lm, all, chunk);
	b->p->hidden = all;
	b->p->head = lm->head;
}

int plan_lm_head_backward(struct plan_lm *lm)
{
	return plan_lm_scatter(lm, "lm_head", lm->dhead, lm->c);
}

/* SPDX-License-Identifier: Apache-2.0
 * What ranks of the tensor axis share of a language model, and what goes between them: rows that
 * each has some of become all rows before a module, and the sum of what the module's ranks put out
 * is cut into rows again. Called by the other plan_lm files. */
#include "workers/plan/plan_lm.h"

static bool divides(struct plan_lm *lm, int64_t n, const char *what)
{
	if (n % lm->tensor != 0)
		plan_build_fail(lm->b, ERR_INVALID_VALUE, "$.parallelism.tensor",
			"$.parallelism.tensor: %s (%lld) must be a multiple of it (%d)", what, (long long)n,
			lm->tensor);
	return !lm->b->code;
}

void plan_lm_share(struct plan_lm *lm)
{
	int64_t n = lm->tensor, r = lm->tensor_rank;
	if (lm->b->code)
		return;
	if (!divides(lm, lm->heads, "the number of heads") ||
		!divides(lm, lm->kv_heads, "the number of key-value heads") ||
		!divides(lm, lm->inner, "the width of the mlp") ||
		!divides(lm, lm->rows, "the tokens of a micro-batch"))
		return;
	if (lm->vocab < n)
		plan_build_fail(lm->b, ERR_INVALID_VALUE, "$.parallelism.tensor",
			"$.parallelism.tensor: the vocabulary has only %lld tokens", (long long)lm->vocab);
	lm->own_rows = lm->rows / n;
	lm->own_heads = lm->heads / n;
	lm->own_kv_heads = lm->kv_heads / n;
	lm->own_inner = lm->inner / n;
	/* Any vocabulary: the first ranks have one token more. */
	int64_t each = lm->vocab / n, more = lm->vocab % n;
	lm->own_vocab = each + (r < more);
	lm->first_token = r * each + (r < more ? r : more);
}

/* A call that the next operation needs. */
static void call(
	const struct plan_lm *lm, enum plan_op_kind kind, const char *name, int x, int y, int64_t count)
{
	struct plan_build *b = lm->b;
	int ticket = plan_parallel_ticket(b);
	plan_parallel_call(b, PLAN_AXIS_TENSOR, kind, name, x, y, count, ticket);
	plan_parallel_wait(b, PLAN_AXIS_TENSOR, name, x, y, ticket);
}

int plan_lm_gather(const struct plan_lm *lm, const char *name, int x, int64_t width)
{
	if (lm->tensor == 1)
		return x;
	int y = plan_build_activation(lm->b, lm->rows * width, "%.72s.all", name);
	call(lm, PLAN_OP_ALL_GATHER, name, x, y, lm->own_rows * width);
	return y;
}

int plan_lm_scatter(const struct plan_lm *lm, const char *name, int x, int64_t width)
{
	if (lm->tensor == 1)
		return x;
	int y = plan_build_activation(lm->b, lm->own_rows * width, "%.72s.own", name);
	call(lm, PLAN_OP_REDUCE_SCATTER, name, x, y, lm->own_rows * width);
	return y;
}

struct plan_mask plan_lm_mask(const struct plan_lm *lm, int64_t width, int64_t site)
{
	int64_t own = lm->own_rows * width;
	return (struct plan_mask){ .count = own,
		.site = site,
		.p = lm->dropout,
		.cut = { .first = lm->tensor_rank * own, .run = own, .period = lm->rows * width } };
}

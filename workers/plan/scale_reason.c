/* SPDX-License-Identifier: Apache-2.0
 * Why a mesh won or lost, in plain words: what its step has more of than the winner's. Called by
 * the search. */
#include "workers/plan/scale_private.h"

#include <stdio.h>

enum loss {
	LOSS_TENSOR,
	LOSS_DATA,
	LOSS_PIPELINE,
	LOSS_BUBBLE,
	LOSS_RECOMPUTE,
	LOSS_COMPUTE,
	LOSS_CONTENTION,
	LOSS_OPTIMIZER,
	LOSS_COUNT,
};

static double seconds_of(const struct scale_cost *c, enum loss loss)
{
	switch (loss) {
	case LOSS_TENSOR: return c->tensor_s;
	case LOSS_DATA: return c->data_s;
	case LOSS_PIPELINE: return c->pipeline_s;
	case LOSS_BUBBLE: return c->bubble_s;
	case LOSS_RECOMPUTE: return c->recompute_s;
	case LOSS_COMPUTE: return c->compute_s - c->recompute_s;
	case LOSS_CONTENTION: return c->contention_s;
	case LOSS_OPTIMIZER: return c->optimizer_s;
	case LOSS_COUNT: break;
	}
	return 0;
}

/* Places behind the point, so that a small device's gigabytes are not 0. */
static int places(double bytes)
{
	return bytes < 10e9 ? 2 : 0;
}

static double percent(double part, double whole)
{
	return 100 * part / whole;
}

static void words(const struct scale_cluster *c, const struct scale_choice *best, enum loss loss,
	struct scale_choice *to)
{
	const struct scale_cost *cost = &to->cost;
	double share = percent(seconds_of(cost, loss), cost->step_s);
	char *out = to->reason;
	switch (loss) {
	case LOSS_TENSOR:
		snprintf(out, SCALE_REASON_MAX,
			"tensor parallel%s: %.0f %% of the step waits for activations",
			to->mesh.tensor > c->machine_devices ? " over machines" : "", share);
		return;
	case LOSS_DATA:
		snprintf(out, SCALE_REASON_MAX, "data parallel: %.0f %% of the step waits for %s", share,
			to->mesh.zero == 3 ? "weights and gradients of layers" : "gradients");
		return;
	case LOSS_PIPELINE:
		snprintf(
			out, SCALE_REASON_MAX, "pipeline: %.0f %% of the step waits for other stages", share);
		return;
	case LOSS_BUBBLE: snprintf(out, SCALE_REASON_MAX, "bubble %.0f %%", share); return;
	case LOSS_RECOMPUTE:
		snprintf(out, SCALE_REASON_MAX,
			"too little memory to keep activations: %.0f %% of the step computes them again",
			share);
		return;
	case LOSS_COMPUTE:
		snprintf(out, SCALE_REASON_MAX, "%s: compute takes %.0f %% longer",
			to->mesh.pipeline > best->mesh.pipeline ? "stages of unequal size or small products"
													: "small products",
			percent(seconds_of(cost, loss), seconds_of(&best->cost, loss)) - 100);
		return;
	case LOSS_CONTENTION:
		snprintf(out, SCALE_REASON_MAX, "collectives beside compute slow it by %.0f %%", share);
		return;
	case LOSS_OPTIMIZER:
		snprintf(out, SCALE_REASON_MAX, "the update takes %.0f %% of the step", share);
		return;
	case LOSS_COUNT: break;
	}
}

void scale_reason_lost(
	const struct scale_cluster *c, const struct scale_choice *best, struct scale_choice *loser)
{
	if (!loser->cost.fits) {
		snprintf(loser->reason, SCALE_REASON_MAX, "does not fit: %.*f GB of %.*f",
			places(loser->cost.memory_bytes), loser->cost.memory_bytes / 1e9,
			places(c->device.memory_bytes), c->device.memory_bytes / 1e9);
		return;
	}
	if (loser->cost.step_s <= best->cost.step_s / SCALE_BETTER) {
		snprintf(loser->reason, SCALE_REASON_MAX, "as fast, and less simple");
		return;
	}
	enum loss most = LOSS_TENSOR;
	double excess = -1e300;
	for (int i = 0; i < LOSS_COUNT; i++) {
		double more =
			seconds_of(&loser->cost, (enum loss)i) - seconds_of(&best->cost, (enum loss)i);
		if (more > excess) {
			excess = more;
			most = (enum loss)i;
		}
	}
	words(c, best, most, loser);
}

void scale_reason_won(const struct scale_cluster *c, struct scale_choice *best)
{
	const struct scale_cost *cost = &best->cost;
	snprintf(best->reason, SCALE_REASON_MAX, "%s: %.*f GB of %.*f, %.0f %% of the step computes",
		cost->fits ? "fastest that fits" : "none fits", places(cost->memory_bytes),
		cost->memory_bytes / 1e9, places(c->device.memory_bytes), c->device.memory_bytes / 1e9,
		percent(cost->compute_s, cost->step_s));
}

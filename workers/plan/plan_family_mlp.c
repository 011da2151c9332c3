/* SPDX-License-Identifier: Apache-2.0
 * The mlp family: the flattened sample through dense layers with ReLU. Parameters are named
 * layers.N.weight [out, in] and layers.N.bias. Called by plan.c. */
#include "workers/plan/plan_private.h"

void plan_family_mlp(struct plan_build *b)
{
	struct plan *p = b->p;
	int64_t features = plan_build_floats(b, p->in_channels, p->in_height, p->in_width) / 4;
	p->input = plan_build_persistent(
		b, PLAN_DATA, plan_build_floats(b, p->micro_batch, features, 1), "input");
	struct plan_head head = { 0 };
	plan_head_forward(b, &head, "layers", p->input, features);
	p->backward_begin = p->op_count;
	b->phase = PLAN_BACKWARD;
	(void)plan_head_backward(b, &head, false);
}

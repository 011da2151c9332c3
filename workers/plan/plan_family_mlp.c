/* SPDX-License-Identifier: Apache-2.0
 * The mlp family: the flattened sample through dense layers with ReLU. Parameters are named
 * layers.N.weight [out, in] and layers.N.bias. Called by plan.c. */
#include "workers/plan/plan_private.h"

void plan_family_mlp(struct plan_build *b)
{
	struct plan *p = b->p;
	int64_t features = plan_build_count(b, p->in_channels, p->in_height, p->in_width);
	int64_t count = plan_build_count(b, p->micro_batch, features, 1);
	plan_build_input(b, PLAN_INPUT, PLAN_F32, count);
	int x = plan_build_cast(b, "input", p->inputs.input, count);
	struct plan_head head = { 0 };
	plan_head_forward(b, &head, "layers", x, features);
	plan_build_backward(b);
	(void)plan_head_backward(b, &head, false);
}

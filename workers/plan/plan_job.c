/* SPDX-License-Identifier: Apache-2.0
 * The work of all ranks: that of the plan which one rank would have. */
#include "workers/plan/plan_job.h"

#include <stdlib.h>

int plan_job_of(
	const struct plan *rank, const struct job_spec *spec, struct plan_job *ret, struct err *err)
{
	cleanup(plan_destroyp) struct plan *made = NULL;
	cleanup(freep) struct job_spec *alone = malloc(sizeof(*alone));
	const struct plan *p = rank;
	if (alone == NULL)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for a plan");
	*alone = *spec;
	alone->device_count = 1;
	alone->parallel = (struct spec_parallel){ .data = 1, .tensor = 1, .pipeline = 1 };
	alone->hyper.micro_batch_size = rank->micro_batch;
	if (plan_mesh_size(&rank->mesh) > 1) {
		int rc = plan_compile(alone, &rank->dataset, &made, err);
		if (rc < 0)
			return rc;
		p = made;
	}
	*ret = (struct plan_job){ p->flops_per_step, p->flops_per_sample, p->flops_per_token };
	return 0;
}

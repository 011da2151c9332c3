/* SPDX-License-Identifier: Apache-2.0
 * What a job computes in all, however many ranks share it: for what customers are told. Called by
 * the handler that creates jobs and by the trainer. Pure. */
#pragma once

#include "workers/plan/plan.h"

/* PLAN_FLOP_CONVENTION; work that several ranks do alike is not in it. */
struct plan_job {
	double flops_per_step, flops_per_sample, flops_per_token; /* as in struct plan */
};

/* rank: any rank's plan of the spec. */
int plan_job_of(const struct plan *rank, const struct job_spec *spec, struct plan_job *ret,
	struct err *err) must_check;

/* SPDX-License-Identifier: Apache-2.0
 * Which machine takes a job, or what stands in its way: pure decisions over what a pass has read.
 * Called by pass.c. */
#pragma once

#include "core/base/attr.h"
#include "core/model/job_queue.h"

enum {
	PLACEMENT_REFUSED_MAX = 8,
	/* A job that has waited so long for a gang gets a machine kept free for it. */
	PLACEMENT_GUARD_MS = 5 * 60 * 1000,
	PLACEMENT_NONE = -1,
};

struct placement {
	int agent; /* index, or PLACEMENT_NONE: then the rest says why */
	char code[32];
	char message[JOB_QUEUE_MESSAGE_MAX];
	const char *refused[PLACEMENT_REFUSED_MAX + 1]; /* regions with free devices, NULL-terminated */
};

/* All devices of a job are on one machine of its type, in a region that its residency allows.
 * Machines that fit most tightly come first, the one where the job failed last comes last. May
 * mark one machine as reserved when the job is blocked and has waited too long: later, smaller
 * jobs of the pass leave it alone. */
void placement_choose(const struct job_queue_job *job, struct job_queue_agent *agents, int count,
	struct placement *ret);

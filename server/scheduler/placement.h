/* SPDX-License-Identifier: Apache-2.0
 * Which machine takes a job, or what stands in its way: pure decisions over what a pass has read.
 * Called by pass.c. */
#pragma once

#include "core/base/attr.h"
#include "core/model/attempt_part.h"
#include "core/model/job_queue.h"

enum {
	PLACEMENT_REFUSED_MAX = 8,
	/* A job that has waited so long for a gang gets a machine kept free for it. */
	PLACEMENT_GUARD_MS = 5 * 60 * 1000,
	PLACEMENT_NONE = -1,
};

/* Devices of one machine. */
struct placement_part {
	int agent; /* index */
	int64_t devices;
};

struct placement {
	int agent; /* index of the first machine, or PLACEMENT_NONE: then the rest says why */
	struct placement_part parts[ATTEMPT_PARTS_MAX]; /* the first, and the further ones of a gang */
	int part_count;
	char code[32];
	char message[JOB_QUEUE_MESSAGE_MAX];
	const char *refused[PLACEMENT_REFUSED_MAX + 1]; /* regions with free devices, NULL-terminated */
};

/* All devices of a job are on one machine of its type, in a region that its residency allows; or,
 * when no one has enough that are free, on as few as possible of one region, which reach each
 * other. Machines that fit most tightly come first, the one where the job failed last comes last.
 * May mark machines as reserved when the job is blocked and has waited too long: later, smaller
 * jobs of the pass leave them alone. */
void placement_choose(const struct job_queue_job *job, struct job_queue_agent *agents, int count,
	struct placement *ret);
/* The same for a job that may be elastic: where its whole wish has no place it gets the next
 * smaller size that has one, but not before it has waited elastic_wait_ms, except for going on
 * after a machine was lost. */
void placement_choose_elastic(const struct job_queue_job *job, struct job_queue_agent *agents,
	int count, int64_t elastic_wait_ms, struct placement *ret);

/* SPDX-License-Identifier: Apache-2.0
 * Where the time of a step goes: one Chrome trace file a step (Perfetto and chrome://tracing load
 * it), with the plan's operation names and the phases as categories, and a summary by kind of
 * operation at the end. Fed by the loop from engine_trace, on its thread. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "workers/engine/engine.h"
#include "workers/plan/plan.h"

#include <stdbool.h>
#include <stdint.h>

enum {
	PROFILE_STEPS = 10,                   /* steps traced unless asked otherwise */
	PROFILE_EVENTS_MAX = 1024 * 1024,     /* of one step; later ones are counted, not kept */
	PROFILE_TEXT_MAX = 512 * 1024 * 1024, /* of one file */
};

struct profile;

/* Makes the folder. plan is borrowed. Traces the first `steps` steps that it is shown. */
int profile_create(const struct plan *plan, const char *dir, int64_t steps, struct profile **ret,
	struct err *err) must_check;
void profile_destroy(struct profile *p);
void profile_destroyp(struct profile **p);

/* Before a step; false: enough has been traced, nothing more is wanted. */
bool profile_begin(struct profile *p);
/* After an operation: what engine_trace tells. */
void profile_op(
	struct profile *p, const struct plan_op *op, int64_t micro, int64_t begin_ns, int64_t end_ns);
/* After the step: writes <dir>/step-N.json. */
int profile_end(struct profile *p, const struct engine_step *step, struct err *err) must_check;
/* Writes <dir>/summary.json over all steps traced: once, when tracing ends. */
int profile_summary(const struct profile *p, struct err *err) must_check;

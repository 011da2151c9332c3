/* SPDX-License-Identifier: Apache-2.0
 * Times a job spec's training step on made-up data, in all and by kind of operation. Used by bench
 * and calibrate, on one thread. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "core/spec/spec.h"
#include "workers/engine/engine.h"
#include "workers/plan/plan.h"
#include "workers/trainer/device.h"

#include <stdint.h>

enum { MEASURE_STEPS_MAX = 10000 };

/* Everything that operations of one kind did in the steps that count. */
struct measure_kind {
	int64_t count, ns;
	double flops, bytes;
};

struct measure {
	int64_t steps;
	double step_ms, step_ms_min, step_ms_max; /* median and range */
	double samples, tokens;                   /* of one step */
	double flops_per_step;
	double loss;
	int64_t plan_bytes;     /* what the plan says */
	int64_t memory_bytes;   /* what the backend handed out */
	int64_t resident_bytes; /* the process's peak beyond what it had before the engine */
	double open_ms;         /* plan, memory, first weights */
	const char *backend;
	struct measure_kind kinds[PLAN_OP_COUNT];
};

/* warm steps first, which do not count. Where the device works behind its caller, operations are
 * timed in `steps` more, each waited for. */
int measure_run(const struct job_spec *spec, enum device_kind device, int threads, int64_t warm,
	int64_t steps, struct measure *ret, struct err *err) must_check;

/* SPDX-License-Identifier: Apache-2.0
 * config.json as Hugging Face tools read it, and the figures of a run as JSON. Pure. */
#pragma once

#include "core/base/buf.h"
#include "core/json/writer.h"
#include "core/spec/spec.h"
#include "workers/plan/plan.h"
#include "workers/trainer/checkpoint.h"

void model_config_write(const struct job_spec *spec, const struct plan *plan, struct buf *out);
/* trainyard.json: task, steps, figures; nothing that differs between two equal trainings. */
void model_config_summary(const struct job_spec *spec, const struct plan *plan, int64_t step,
	const struct checkpoint_metrics *m, struct buf *out);
/* The fields of metrics, inside an object that is open. */
void model_config_metrics(
	struct json_writer *w, const struct job_spec *spec, const struct checkpoint_metrics *m);

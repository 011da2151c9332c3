/* SPDX-License-Identifier: Apache-2.0
 * The figures of a run as JSON: in messages, in checkpoints, in a model's trainyard.json. Pure. */
#pragma once

#include "core/base/buf.h"
#include "core/json/reader.h"
#include "core/json/writer.h"
#include "core/spec/spec.h"
#include "workers/plan/plan.h"

#include <stdbool.h>
#include <stdint.h>

/* The last figures, carried through a resume so that the final model tells the same ones. */
struct summary_metrics {
	bool has_loss;
	double loss;
	int64_t evaluated_step; /* 0: not evaluated yet */
	double validation_loss, bits_per_byte, order0_bits_per_byte, accuracy, auc;
};

/* trainyard.json: task, steps, figures; nothing that differs between two equal trainings. */
void summary_write(const struct job_spec *spec, const struct plan *plan, int64_t step,
	const struct summary_metrics *m, struct buf *out);
/* The fields of metrics, inside an object that is open. */
void summary_write_metrics(
	struct json_writer *w, const struct job_spec *spec, const struct summary_metrics *m);
/* Reads such an object back; evaluated_step is not in it. */
int summary_read_metrics(
	const struct json_val *v, struct summary_metrics *m, struct err *err) must_check;

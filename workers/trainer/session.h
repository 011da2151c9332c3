/* SPDX-License-Identifier: Apache-2.0
 * All that one training needs, opened in order: checked data, plan, engine, first weights or a
 * restored checkpoint. Used by the commands, on one thread. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "core/spec/spec.h"
#include "workers/engine/engine.h"
#include "workers/engine/mesh.h"
#include "workers/plan/plan_job.h"
#include "workers/trainer/checkpoint.h"
#include "workers/trainer/device.h"

#include <stdint.h>

struct session_inputs {
	struct data_file training[SPEC_FILES_MAX];
	int training_count;
	struct data_file validation[SPEC_FILES_MAX];
	int validation_count;
	const char *init_dir;   /* Hugging Face files that training starts from; NULL: fresh weights */
	const char *resume_dir; /* a checkpoint folder, or NULL; a LoRA one needs init_dir as well */
	const char *tokenizer_path; /* tokenizer.json; NULL: the spec needs none */
	const char *scratch_dir;    /* where data sets may put what they derive; NULL: TMPDIR */
	int threads;
	enum device_kind device; /* AUTO is decided when it opens: with a mesh it is decided before */
	int64_t memory_bytes;    /* what the device has; 0: not known */
	double peak_flops;       /* of the device in the plan's type, for MFU; 0: not known, not told */
	struct mesh *mesh;       /* the other ranks; NULL: a job of one rank */
};

struct session {
	struct job_spec spec; /* what the spec left to the files that it starts from is filled in */
	struct data *training, *validation; /* validation may be NULL */
	struct plan *plan;
	struct plan_job job;     /* what all ranks compute */
	struct mesh *mesh;       /* borrowed; NULL: alone */
	enum device_kind device; /* decided */
	struct engine *engine;
	struct hf_tokenizer tokenizer;
	struct summary_metrics metrics;
	int64_t resumed_step; /* 0: from the start */
	double peak_flops;
	bool base_elsewhere; /* it started from files */
};

/* spec is copied; strings in inputs are borrowed until session_close. */
int session_open(const struct job_spec *spec, const struct session_inputs *in, struct session **ret,
	struct err *err) must_check;
void session_close(struct session *s);
void session_closep(struct session **s);
/* What the model is written from; borrows the session. */
struct hf_model session_model(const struct session *s);
/* Writes the model as it is now, with the run's figures, as a Hugging Face folder. All ranks call
 * it. */
int session_write_model(const struct session *s, const char *dir, struct err *err) must_check;
/* How data sets are to be opened. */
struct data_options session_data_options(const struct session_inputs *in);
/* Why an attempt fails with this error: the reason word of docs/protocol.md. */
const char *session_reason(int code);

/* SPDX-License-Identifier: Apache-2.0
 * The job spec's JSON (the documented form of POST /v1/jobs): read with every default filled in and
 * every rule checked, and written back resolved. Called by the jobs_create handler and, on the
 * resolved form, by the trainer. */
#pragma once

#include "core/base/attr.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/json/reader.h"
#include "core/spec/spec.h"

/* Reads and checks. Errors name the JSON path ("$.model.config.n_head"). metadata and name are
 * returned inside ret_spec->name and *ret_metadata (borrowed from the doc, NULL when absent). */
int spec_json_read(const struct json_val *v, struct job_spec *ret_spec,
	const struct json_val **ret_metadata, struct err *err) must_check;

/* Appends the resolved spec as one JSON object (the same form, nothing left out, reads back
 * identically). */
int spec_json_write(const struct job_spec *spec, struct buf *out) must_check;

/* Words of the enums, as in the JSON. */
const char *spec_task_word(enum spec_task t);
const char *spec_family_word(enum spec_family f);

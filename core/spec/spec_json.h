/* SPDX-License-Identifier: Apache-2.0
 * The job spec's JSON (the documented form of POST /v1/jobs): read with every default filled in and
 * every rule checked, and written back resolved. Called by the jobs_create handler, on the resolved
 * form by base_store and the trainer, and by bench. */
#pragma once

#include "core/base/attr.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/json/reader.h"
#include "core/spec/spec.h"

struct json_writer;

enum { SPEC_JSON_BYTES_MAX = 512 * 1024 }; /* of a resolved spec, as it is kept */

/* What a spec with model.base takes from the job that left it: its config, and its tokenizer unless
 * the spec names one. */
struct spec_base {
	struct spec_model model;
	enum spec_tokenizer tokenizer;
	char tokenizer_file[SPEC_ID_MAX];
};

/* Reads and checks. Errors name the JSON path ("$.model.config.n_head"). metadata and name are
 * returned inside ret_spec->name and *ret_metadata (borrowed from the doc, NULL when absent).
 * model.base must come with its model.config here, as it does in the resolved form. */
int spec_json_read(const struct json_val *v, struct job_spec *ret_spec,
	const struct json_val **ret_metadata, struct err *err) must_check;
/* The same for a caller that has looked the base up; base NULL = the spec names none. A config that
 * comes with it must be the base's. */
int spec_json_read_from(const struct json_val *v, const struct spec_base *base,
	struct job_spec *ret_spec, const struct json_val **ret_metadata, struct err *err) must_check;
/* What the spec that was read from v leaves open. The fields that are checked against the mesh
 * (batch_size, micro_batch_size) were not, where it is: whoever settles it compiles the plan. */
struct spec_open spec_json_open(const struct json_val *v, const struct job_spec *spec);
/* The id under model.base, NULL when there is none that could be one: what to look up first. */
const char *spec_json_base(const struct json_val *v);

/* Appends the resolved spec as one JSON object (the same form, nothing left out, reads back
 * identically). */
int spec_json_write(const struct job_spec *spec, struct buf *out) must_check;
/* The value of model.config alone: path leads the errors; m must be zeroed. */
int spec_json_read_config(
	const struct json_val *v, const char *path, struct spec_model *m, struct err *err) must_check;
void spec_json_write_config(struct json_writer *w, const struct spec_model *m);

/* Words of the enums, as in the JSON. */
const char *spec_task_word(enum spec_task t);
const char *spec_family_word(enum spec_family f);
const char *spec_format_word(enum spec_format f);
const char *spec_precision_word(enum spec_precision p);

/* SPDX-License-Identifier: Apache-2.0
 * A job spec from a file, for the commands that run without a yard. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "core/base/file.h"
#include "core/spec/spec.h"
#include "workers/plan/scale_choose.h"
#include "workers/trainer/session.h"

enum { SPEC_FILE_WHY_MAX = 512 };

/* A mesh that the spec leaves open is settled as the yard does it, by the instance type's name;
 * what has no room there is told but not refused: this may be another machine. init_dir: files that
 * training starts from, whose config a spec with model.base takes over; NULL: none. */
int spec_file_read(
	const char *path, const char *init_dir, struct job_spec *ret, struct err *err) must_check;
/* The same; why holds what was chosen where the spec leaves its mesh open, "" where it does not. */
int spec_file_read_why(const char *path, const char *init_dir, struct job_spec *ret,
	char why[static SPEC_FILE_WHY_MAX], struct err *err) must_check;
/* Finds the tokenizer: the one given, or init_dir's own when the spec needs one. The path is kept
 * in `room`. MISSING_FIELD when there is none. */
int spec_file_tokenizer(const struct job_spec *spec, struct session_inputs *in,
	char room[static FILE_PATH_MAX], struct err *err) must_check;

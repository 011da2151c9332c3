/* SPDX-License-Identifier: Apache-2.0
 * A job spec from a file, for the commands that run without a yard. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "core/spec/spec.h"

int spec_file_read(const char *path, struct job_spec *ret, struct err *err) must_check;

/* SPDX-License-Identifier: Apache-2.0
 * The file that `trainyard-trainer calibrate` writes: what a machine was measured to do. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "core/spec/spec.h"
#include "workers/plan/plan.h"

enum { RATES_BYTES_MAX = 256 * 1024 };

/* The peak of products in that precision, FLOP/s; INVALID_DATA when the file does not have it. */
int rates_read_peak(
	const char *path, enum spec_precision precision, double *ret_flops, struct err *err) must_check;

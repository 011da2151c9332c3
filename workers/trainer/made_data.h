/* SPDX-License-Identifier: Apache-2.0
 * Files of made-up data that fit a job spec, for measuring: the time of a step does not depend on
 * what the numbers are. Used by bench and calibrate. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "core/base/file.h"
#include "core/spec/spec.h"
#include "workers/trainer/session.h"

struct made_data {
	char dir[FILE_PATH_MAX]; /* made; "" before */
	char path[2][FILE_PATH_MAX];
};

/* Writes the files into a new folder under TMPDIR and names them in in->training. The spec is
 * changed to read them: tokens become bytes, images and arrays IDX, bags CSV columns c0, c1, …
 * INVALID_VALUE for a shape that the spec leaves to the data. */
int made_data_write(struct made_data *m, struct job_spec *spec, struct session_inputs *in,
	struct err *err) must_check;
/* Removes the folder; an open data set has its files mapped and does not mind. */
void made_data_remove(struct made_data *m);

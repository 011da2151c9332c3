/* SPDX-License-Identifier: Apache-2.0
 * A job's wish for devices, and the smaller numbers that an attempt may do with: its data axis may
 * shrink to a divisor (parallelism.min_data), the other axes stay. Called by the stores beside it
 * and the scheduler. Pure. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct elastic {
	int64_t data;     /* ways of the data axis, as the spec has it */
	int64_t min_data; /* the fewest; data when the job is not elastic */
	int64_t others;   /* devices of one of these ways: tensor * pipeline */
};

/* SQL: the last two of job j's numbers, in order. The first is device_count / others. */
#define ELASTIC_COLUMNS(j)                                                    \
	"coalesce((" j ".spec->'parallelism'->>'min_data')::bigint, 0),"          \
	" coalesce((" j ".spec->'parallelism'->>'tensor')::bigint, 1) * coalesce" \
	"((" j ".spec->'parallelism'->>'pipeline')::bigint, 1)"

/* min_data 0 = not elastic; others as stored, 1 and up. */
struct elastic elastic_of(int64_t device_count, int64_t min_data, int64_t others);
/* The largest data axis below these ways that the job allows; 0 when there is none. */
int64_t elastic_next(const struct elastic *e, int64_t data);
/* An attempt may have so many devices; then *ret_data is its data axis. */
bool elastic_allows(const struct elastic *e, int64_t devices, int64_t *ret_data);

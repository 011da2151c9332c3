/* SPDX-License-Identifier: Apache-2.0
 * What usage_store.c and usage_store_job.c share. Nobody else includes it. */
#pragma once

#include "core/model/usage_store.h"

/* Undecided time of an open device interval `d`, in milliseconds. */
#define USAGE_OPEN_MS \
	"(extract(epoch from greatest(d.open_since, yard_now()) - d.open_since) * 1000)::bigint"

/* Adds ms to the member that a segment's state (or "provisional") means. INVALID_VALUE when the sum
 * does not fit. */
int usage_total_add(struct usage_total *total, const char *state, int64_t ms) must_check;
/* billed_ms … amount, into an object that is open. */
void usage_total_write_members(struct json_writer *w, const struct usage_total *total);

/* SPDX-License-Identifier: Apache-2.0
 * The request target ("/v1/jobs/job_1?limit=2") taken apart. The path is split before it is
 * decoded, so an encoded slash never becomes a separator. Used by exchange.c. Pure. */
#pragma once

#include "core/base/arena.h"
#include "core/base/err.h"
#include "server/http/request_private.h"

/* Fills segments and query of ret and *ret_path (as sent, without the query). INVALID_REQUEST for
 * anything that has more than one reading: control bytes, bad escapes, encoded NULs. */
int target_parse(struct arena *arena, const char *target, struct request_data *ret,
	const char **ret_path, struct err *err) must_check;
